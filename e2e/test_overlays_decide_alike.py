"""Real Karpenter that reads NodeOverlays, and `karpool plan`: both replace a node by the same type, or both
keep it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.components import karpool_command
from e2e.control_plane import etcd
from e2e.kubectl import Object, condition, wait_for
from e2e.market import SOLD
from e2e.member import Member, feature_gates, member, node_pool, without_nodes
from e2e.peers import Built
from e2e.workloads import deployment

TYPES = ("m5.large", "m5.xlarge", "m5.2xlarge")
NAMESPACE = "overlays"


@pytest.fixture(scope="module")
def overlaid(peers: dict[str, Built], place: Path) -> Iterator[Member]:
    """A member of its own, whose Karpenter reads overlays."""
    folder = place / "overlaid"
    folder.mkdir()
    with (
        etcd(peers["etcd"], folder) as url,
        member(
            peers, folder, url, "overlaid", instance_types=SOLD, karpenter_env=feature_gates("NodeOverlay")
        ) as one,
    ):
        one.kubectl("create", "namespace", NAMESPACE)
        yield one


def overlay(name: str, *types: str, **spec: Any) -> Object:
    about = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)}]
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": name},
        "spec": {"requirements": about, **spec},
    }


# m5.large lists at 0.096, m5.xlarge, the node that runs, at 0.192, m5.2xlarge at 0.384.
CASES = {
    "nothing": ([], "m5.large"),
    "prices": (
        [overlay("a", "m5.large", price="0.5"), overlay("b", "m5.2xlarge", price="0.05")],
        "m5.2xlarge",
    ),
    "shares": (
        [
            overlay("a", "m5.large", priceAdjustment="+200%"),
            overlay("b", "m5.2xlarge", priceAdjustment="-60%"),
        ],
        "m5.2xlarge",
    ),
    "amounts": (
        [
            overlay("a", "m5.large", priceAdjustment="+0.1"),
            overlay("b", "m5.2xlarge", priceAdjustment="-0.2"),
        ],
        "m5.2xlarge",
    ),
    "weights": (
        [
            overlay("a", "m5.large", price="0.5", weight=10),
            overlay("b", "m5.large", price="0.01", weight=5),
            overlay("c", "m5.2xlarge", price="0.05", weight=1),
        ],
        "m5.2xlarge",
    ),
    "the node itself": ([overlay("a", "m5.xlarge", price="0.09")], ""),
    "all dearer": ([overlay("a", "m5.large", "m5.2xlarge", price="0.2")], ""),
}


def types_of(cluster: Member) -> list[str]:
    return [
        claim["metadata"]["labels"].get("node.kubernetes.io/instance-type", "")
        for claim in cluster.kubectl.items("nodeclaims")
        if "deletionTimestamp" not in claim["metadata"]
    ]


def planned(cluster: Member) -> Object:
    config = f"--kubeconfig={cluster.server.kubeconfig()}"
    words = ("plan", config, "-o", "json", "--policy=WhenEmptyOrUnderutilized", "--ignore-budgets")
    done = subprocess.run(
        [str(word) for word in karpool_command(*words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    plan: Object = json.loads(done.stdout)
    return plan


def is_looked_at(cluster: Member) -> bool:
    """Whether Karpenter takes its nodes for ones that may go."""
    claims = cluster.kubectl.items("nodeclaims")
    return all(condition(claim, "Consolidatable").get("status") == "True" for claim in claims)


@pytest.mark.parametrize("case", CASES)
def test_both_choose_the_same_replacement(overlaid: Member, case: str) -> None:
    overlays, expected = CASES[case]
    kubectl = overlaid.kubectl
    with without_nodes(overlaid):
        pool = node_pool(types=TYPES)
        pool["spec"]["disruption"] = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}
        pool["metadata"]["annotations"] = {"karpool.dev/consolidate-after": "0s"}
        kubectl.apply(pool)
        kubectl.apply(deployment("big", NAMESPACE, 1, "2500m"))
        overlaid.wait_running(NAMESPACE, 1)
        kubectl.apply(deployment("small", NAMESPACE, 1, "300m"))
        overlaid.wait_running(NAMESPACE, 2)
        kubectl("delete", "deployment", "big", "-n", NAMESPACE)
        overlaid.wait_running(NAMESPACE, 1)
        assert types_of(overlaid) == ["m5.xlarge"]
        try:
            if overlays:
                kubectl.apply(*overlays)
            wait_for(
                "overlays are read",
                lambda: all(
                    condition(one, "Ready").get("status") == "True" for one in kubectl.items("nodeoverlays")
                ),
            )
            moves = planned(overlaid)["moves"]
            first = [
                replacement["options"][0]["instance_type"]
                for move in moves
                for replacement in move["new_nodes"]
            ]
            assert first == ([expected] if expected else [])

            pool["spec"]["disruption"] = {
                "consolidationPolicy": "WhenEmptyOrUnderutilized",
                "consolidateAfter": "0s",
                "budgets": [{"nodes": "100%"}],
            }
            kubectl.apply(pool)
            if expected:
                wait_for("Karpenter replaced it", lambda: types_of(overlaid) == [expected])
            else:
                wait_for("Karpenter looks at it", lambda: is_looked_at(overlaid))
                assert types_of(overlaid) == ["m5.xlarge"]
                kubectl("delete", "nodeoverlays", "--all")
                wait_for("nothing holds it any more", lambda: types_of(overlaid) == ["m5.large"])
        finally:
            kubectl("delete", "nodeoverlays", "--all")
            kubectl("delete", "deployments", "--all", "-n", NAMESPACE)
