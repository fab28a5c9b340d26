"""Kinds of DRA that may not be listed: commands say that they cannot tell; without the kind there is none."""

import json
from contextlib import asynccontextmanager

import pytest
import yaml

from karpool.cli import cluster_source
from karpool.cli.main import run
from karpool.kube.snapshots.writer import take_snapshot
from karpool.kube.transport.rest import RetryPolicy
from tests.cli.test_plans_know_resource_claims import (
    CLASS,
    TEMPLATE,
    allocated,
    claiming,
    devices,
    node,
    pool,
    removed,
    two_nodes,
)
from tests.consolidation.cluster_objects import flat, pod
from tests.kube.tiny_server import Fault, TinyServer, answer, status
from tests.kube.virtual import client_of, virtually

DRA = "/apis/resource.k8s.io/v1"
KINDS = ["resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses"]
PLURALS = {
    "Node": "nodes",
    "Pod": "pods",
    "Namespace": "namespaces",
    "NodePool": "nodepools",
    "NodeClaim": "nodeclaims",
    "EC2NodeClass": "ec2nodeclasses",
    "ReplicaSet": "replicasets",
    "Deployment": "deployments",
    "DeviceClass": "deviceclasses",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceSlice": "resourceslices",
}


def served(*objects):
    server = TinyServer()
    for obj in flat(*objects):
        version, meta = obj["apiVersion"], obj["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        within = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
        server.put(f"{root}{within}/{PLURALS[obj['kind']]}/{meta['name']}", obj)
    return server


def forbidding(server, plural, *, discovered=True):
    """403 on lists of one kind, as it is answered also of kinds that are not there; and discovery."""
    names = [kind for kind in KINDS if discovered or kind != plural]

    def fault(request):
        if request.path == f"{DRA}/{plural}":
            return Fault(response=status(403, "Forbidden", f"cannot list {plural}"))
        if request.path == DRA:
            return Fault(response=answer(200, {"resources": [{"name": name} for name in names]}))
        return Fault(response=answer(200, {"gitVersion": "v1.36.4"})) if request.path == "/version" else None

    server.fault = fault
    return server


@pytest.fixture(params=["live", "file"])
def ask(request, monkeypatch, tmp_path, capsys):
    """A command about a server: as it is, or as a snapshot taken with the same rights."""

    def command(server, *words):
        if request.param == "file":
            path = tmp_path / "saved.gz"
            virtually(take_snapshot(client_of(server, retry=RetryPolicy(attempts=1)), path))
            words = *words, "--snapshot", str(path)
        else:

            @asynccontextmanager
            async def connect(options, report=None):
                async with client_of(server, retry=RetryPolicy(attempts=1)) as client:
                    yield client

            monkeypatch.setattr(cluster_source, "connect", connect)
            monkeypatch.setattr(cluster_source, "own_namespace", lambda options: "default")
        run([*words, "-o", "json"], "karpool")
        shown = capsys.readouterr()
        assert shown.out, shown.err
        return json.loads(shown.out), shown.err

    return command


ONE = "one"


def roomy(*more):
    """A node with a device that nobody holds, as far as can be seen."""
    return [pool("web", types=("m5.large",)), node("other", "m5.large", pool="web"), CLASS, TEMPLATE, *more]


def workload(tmp_path, claim=ONE):
    spec = claiming("train", "", resourceClaimTemplateName=claim)["spec"]
    spec.pop("nodeName", None)
    if not claim:
        del spec["resourceClaims"]
    path = tmp_path / "train.yaml"
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "team"}}
    path.write_text(yaml.safe_dump({**manifest, "spec": spec}))
    return str(path)


@pytest.mark.parametrize("plural", KINDS)
def test_capacity_cannot_tell(ask, tmp_path, plural):
    world = roomy(devices("other", 1))

    seen, _ = ask(served(*world), "capacity", "-f", workload(tmp_path))
    unseen, _ = ask(forbidding(served(*world), plural), "capacity", "-f", workload(tmp_path))
    without, _ = ask(forbidding(served(*world), plural), "capacity", "-f", workload(tmp_path, claim=""))

    assert [report["verdict"] for report in (seen, unseen, without)] == [
        "fits now",
        "cannot tell: resource claims",
        "fits now",
    ]


def test_a_kind_that_is_not_there_is_none(ask, tmp_path):
    """Forbidden is also said of what a server does not have; discovery tells."""
    server = forbidding(served(*roomy(devices("other", 1))), "devicetaintrules", discovered=False)

    report, _ = ask(server, "capacity", "-f", workload(tmp_path))

    assert report["verdict"] == "fits now"


@pytest.mark.parametrize("plural", KINDS)
def test_explain_pod_cannot_tell(ask, plural):
    waiting = claiming("train", "", resourceClaimTemplateName=ONE)
    waiting["spec"].pop("nodeName", None)
    waiting["status"] = {"phase": "Pending"}
    world = roomy(devices("other", 1), waiting)

    seen, _ = ask(served(*world), "explain", "pod", "team/train")
    unseen, _ = ask(forbidding(served(*world), plural), "explain", "pod", "team/train")

    assert seen["verdict"] == "fits on a node that exists"
    assert unseen["verdict"] == "waits, and it cannot be told whether a new node would take it"


@pytest.mark.parametrize("plural", KINDS)
def test_a_plan_leaves_pods_with_claims_where_they_are(ask, plural):
    web = claiming("web", "big", resourceClaimTemplateName=ONE)
    held = allocated("web-gpu", "big", "gpu-0", owner="web")
    world = two_nodes(web, held, devices("big", 1), devices("other", 1))

    seen, _ = ask(served(*world), "plan")
    unseen, said = ask(forbidding(served(*world), plural), "plan")

    assert removed(seen) == ["big"]
    assert removed(unseen) == []
    assert f"{plural}.resource.k8s.io" in said


@pytest.mark.parametrize("plural", KINDS)
def test_top_gpus_says_that_devices_of_drivers_are_not_known(ask, plural):
    world = roomy(devices("other", 1))
    world = json.loads(json.dumps(flat(*world)).replace("gpu.example.com", "gpu.nvidia.com"))

    seen, _ = ask(served(*world), "top", "gpus")
    unseen, _ = ask(forbidding(served(*world), plural), "top", "gpus")

    assert [item["device"] for item in seen["items"]] == ["gpu-0"]
    assert seen["problems"] == []
    assert unseen["items"] == []
    assert "cannot tell" in unseen["problems"][0]


def test_budgets_that_may_not_be_looked_at_may_forbid_a_departure(ask):
    """Nobody who may not list budgets is told that pods may go."""
    holder, stuck = pod("holder", "other", cpu="1500m"), pod("stuck", "", cpu="1500m")
    holder["spec"]["priority"] = -5
    stuck["spec"].pop("nodeName", None)
    stuck["status"] = {"phase": "Pending"}
    server = served(*roomy(holder, stuck))

    def fault(request):
        if request.path == "/apis/policy/v1/poddisruptionbudgets":
            return Fault(response=status(403, "Forbidden", "cannot list poddisruptionbudgets"))
        return Fault(response=answer(200, {"gitVersion": "v1.36.4"})) if request.path == "/version" else None

    server.fault = fault

    shown, said = ask(server, "explain", "pod", f"{stuck['metadata']['namespace']}/stuck")

    assert [gone["pod"].rpartition("/")[2] for gone in shown["wouldFitWithout"]["pods"]] == ["holder"]
    assert "disruption budgets cannot be read" in shown["wouldFitWithout"]["forbiddenBy"]
    assert "poddisruptionbudgets" in said
