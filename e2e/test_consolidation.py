"""`karpool plan` and `karpool consolidator` beside real Karpenter, whose own consolidation is off."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.components import karpool_command
from e2e.kubectl import Object, wait_for
from e2e.member import Member, node_pool, without_nodes
from e2e.processes import Program
from e2e.scene import Scene
from e2e.workloads import deployment

SMART_PODS = "karpool-smart-pods"
QUICK = ("--interval=2s", "--quiet-period=2s", "--settle=2s")


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


def pool(*types: str, k: int) -> Object:
    """Karpenter keeps its hands off; what counts for Karpool stands in annotations."""
    made = node_pool(types=types)
    made["spec"]["disruption"] = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}
    made["metadata"]["annotations"] = {
        "karpool.dev/consolidation-policy": "Balanced",
        "karpool.dev/consolidation-threshold": str(k),
        "karpool.dev/consolidate-after": "0s",
    }
    return made


def planned(member: Member, *flags: str) -> Object:
    """What `karpool plan` says."""
    config = f"--kubeconfig={member.server.kubeconfig('planner')}"
    command = karpool_command("plan", config, "-o", "json", *flags)
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True, timeout=180
    )
    found: Object = json.loads(done.stdout)
    return found


def types_of(member: Member) -> list[str]:
    return sorted(
        claim["metadata"]["labels"].get("node.kubernetes.io/instance-type", "")
        for claim in member.kubectl.items("nodeclaims")
        if "deletionTimestamp" not in claim["metadata"]
    )


def consolidator(scene: Scene, member: Member) -> Program:
    return scene.karpool("consolidator", member, *QUICK)


def budget(namespace: str, **spec: Any) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "small"}}, **spec},
    }


def test_nodes_whose_pods_fit_elsewhere_go_as_soon_as_their_budget_lets_them(
    scene: Scene, empty: Member
) -> None:
    kubectl = empty.kubectl
    namespace = scene.namespace()
    kubectl.apply(pool("m5.large", k=2))
    kubectl.apply(deployment("big", namespace, 3, "1500m"))
    empty.wait_running(namespace, 3)
    kubectl.apply(deployment("small", namespace, 3, "300m"), budget(namespace, maxUnavailable=0))
    empty.wait_running(namespace, 6)
    kubectl("delete", "deployment", "big", "-n", namespace)
    empty.wait_running(namespace, 3)
    assert types_of(empty) == ["m5.large"] * 3

    plan = planned(empty)
    assert plan["moves"] == []
    assert {why["object"] for held in plan["held"] for why in held["why"]} == {
        f"poddisruptionbudget {namespace}/small"
    }
    consolidator(scene, empty)

    kubectl.apply(budget(namespace, maxUnavailable=1))
    smallest = []

    def gone() -> bool:
        smallest.append(len(empty.pods(namespace, phase="Running")))
        return types_of(empty) == ["m5.large"] and len(kubectl.items("nodes")) == 1

    assert types_of(empty) == ["m5.large"] * 3
    wait_for("two nodes went", gone)
    empty.wait_running(namespace, 3)
    assert min(smallest) >= 2, "the budget admits one at a time"


def led_by(member: Member) -> str:
    leases = member.kubectl.items("leases", "-n", "karpool-system")
    holders = [lease["spec"].get("holderIdentity") for lease in leases]
    return str(next(filter(None, holders), ""))


def bought(member: Member) -> set[str]:
    """Claims that Karpenter launched machines for, also those that are gone since."""
    events = member.kubectl.items("events", "-A", "--field-selector=involvedObject.kind=NodeClaim")
    return {event["involvedObject"]["name"] for event in events if event["reason"] == "Launched"}


def test_a_node_that_is_too_big_is_replaced_once_k_admits_it_although_the_leader_dies(
    scene: Scene, empty: Member
) -> None:
    kubectl = empty.kubectl
    namespace = scene.namespace()
    earlier = bought(empty)
    kubectl.apply(pool("m5.large", "m5.4xlarge", k=1))
    kubectl.apply(deployment("big", namespace, 1, "10"))
    empty.wait_running(namespace, 1)
    kubectl.apply(deployment("small", namespace, 2, "300m"))
    empty.wait_running(namespace, 3)
    kubectl("delete", "deployment", "big", "-n", namespace)
    empty.wait_running(namespace, 2)
    assert types_of(empty) == ["m5.4xlarge"]

    assert planned(empty)["moves"] == []
    (move,) = planned(empty, "--threshold=2")["moves"]
    assert move["kind"] == "replace"
    leader = consolidator(scene, empty)
    wait_for("it leads", lambda: led_by(empty))
    consolidator(scene, empty)
    kubectl("annotate", "nodepool", "general", "karpool.dev/consolidation-threshold=2", "--overwrite")
    wait_for("new capacity is asked for", lambda: kubectl.items("pods", "-n", SMART_PODS), every=0.05)
    leader.kill()
    wait_for("it was replaced", lambda: types_of(empty) == ["m5.large"])
    empty.wait_running(namespace, 2)
    wait_for("the old node is gone", lambda: len(kubectl.items("nodes")) == 1)
    assert not kubectl.items("pods", "-n", SMART_PODS)
    assert len(bought(empty) - earlier) == 2, "the first node, and one instead of it"


def test_a_plan_of_several_moves_is_carried_on_by_whoever_comes_after_each_of_them(
    scene: Scene, empty: Member
) -> None:
    kubectl, namespace = empty.kubectl, scene.namespace()
    kubectl.apply(pool("m5.large", k=2))
    kubectl.apply(deployment("big", namespace, 4, "1500m"))
    empty.wait_running(namespace, 4)
    kubectl.apply(deployment("small", namespace, 4, "300m"), budget(namespace, maxUnavailable=1))
    empty.wait_running(namespace, 8)
    kubectl("delete", "deployment", "big", "-n", namespace)
    empty.wait_running(namespace, 4)
    assert types_of(empty) == ["m5.large"] * 4
    assert sum(len(move["nodes"]) for move in planned(empty, "--ignore-budgets")["moves"]) == 3

    smallest: list[int] = []
    for left in (3, 2, 1):
        process = consolidator(scene, empty)

        def one_more_went(nodes: int = left) -> bool:
            smallest.append(len(empty.pods(namespace, phase="Running")))
            return len(types_of(empty)) <= nodes

        wait_for(f"{left} nodes are left", one_more_went, 300, every=0.2)
        process.kill()
    consolidator(scene, empty)
    wait_for("the nodes are gone", lambda: len(kubectl.items("nodes")) == 1)
    empty.wait_running(namespace, 4)
    assert min(smallest) >= 3, "the budget admits one at a time"
