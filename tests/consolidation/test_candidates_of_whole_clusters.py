"""The published cases of who is a candidate, told as objects of a cluster and not as plain facts."""

import json
from pathlib import Path

import msgspec
import pytest

from karpool.cluster import kinds
from karpool.cluster.cluster import Cluster
from karpool.consolidation import view
from karpool.consolidation.policy.candidates import find_candidates
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.times import rfc3339
from tests.cluster.feeding import tell
from tests.vectors.consolidation import vector_pod

PUBLISHED = Path(__file__).parents[1] / "vectors" / "published" / "consolidation.json"
NOW = 1_767_225_600.0
# Facts that no object of a cluster shows, and methods that we leave to Karpenter.
_NOT_IN_OBJECTS = ("buffer_pods", "marked_for_deletion")


def cases():
    for case in json.loads(PUBLISHED.read_bytes())["vectors"]:
        given = case["input"]
        if case["category"] != "candidate_eligibility" or given["method"] == "drift":
            continue
        if not any(given["node"].get(fact) for fact in _NOT_IN_OBJECTS):
            yield pytest.param(given, case["expected"], id=case["id"].removeprefix("candidate_eligibility/"))


LABELS = {
    "karpenter.sh/nodepool": "p",
    "karpenter.sh/initialized": "true",
    "karpenter.sh/capacity-type": "on-demand",
    "topology.kubernetes.io/zone": "us-east-1a",
    "node.kubernetes.io/instance-type": "m7i.large",
}


def node(given):
    annotations = (
        {"karpenter.sh/do-not-disrupt": given["do_not_disrupt"]} if "do_not_disrupt" in given else {}
    )
    return {
        "metadata": {"name": "n", "labels": LABELS, "annotations": annotations},
        "spec": {"providerID": "x://1"},
        "status": {
            "allocatable": {"cpu": "2", "memory": "8Gi", "pods": "50"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def claim(given):
    then = rfc3339(NOW - 86_400)
    kinds = [
        "Launched",
        "Registered",
        "Initialized",
        *(["Consolidatable"] * given.get("consolidatable", True)),
    ]
    leaving = {"deletionTimestamp": then} if given.get("deleting") else {}
    return {
        "metadata": {"name": "c", "labels": LABELS, **leaving},
        "spec": {"terminationGracePeriod": given.get("termination_grace_period")},
        "status": {
            "providerID": "x://1",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": then} for kind in kinds],
        },
    }


def pool(given):
    disruption = {
        "consolidationPolicy": given.get("policy", "WhenEmptyOrUnderutilized"),
        "consolidateAfter": given.get("consolidateAfter", "0s"),
    }
    return {"metadata": {"name": "p"}, "spec": {"disruption": disruption, "replicas": given.get("replicas")}}


def budget(given, name):
    policy = given.get("unhealthy_pod_eviction_policy", "IfHealthyBudget")
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {given["matches"]: "yes"}},
            "unhealthyPodEvictionPolicy": policy,
        },
        "status": {"disruptionsAllowed": given["disruptions_allowed"]},
    }


def placed(given, index):
    made = vector_pod(given, f"pod-{index}")
    age = given.get("age_seconds", 86_400)
    spec = msgspec.structs.replace(made.spec, node_name="n")
    status = msgspec.structs.replace(made.status, start_time=None if age is None else rfc3339(NOW - age))
    return msgspec.structs.replace(made, spec=spec, status=status)


def view_of(given):
    cluster = Cluster(ASPECTS)
    if given["node"].get("has_node", True):
        tell(cluster, kinds.NODES, ObjectKey("", "n"), node(given["node"]), NOW)
    if given["node"].get("managed", True):
        tell(cluster, kinds.NODECLAIMS, ObjectKey("", "c"), claim(given["node"]), NOW)
    if given["nodepool"].get("exists", True):
        tell(cluster, kinds.NODEPOOLS, ObjectKey("", "p"), pool(given["nodepool"]), NOW)
    for index, each in enumerate(given["pods"]):
        one = placed(each, index)
        tell(cluster, kinds.PODS, ObjectKey("default", one.name), one, NOW)
    for index, each in enumerate(given.get("pdbs") or ()):
        key = ObjectKey("default", f"b{index}")
        tell(cluster, kinds.BUDGETS, key, budget(each, key.name), NOW)
    in_flight = ["n"] if given["node"].get("in_queue") else []
    return view.view_of(cluster.snapshot(NOW), NOW, in_flight=in_flight)


@pytest.mark.long
@pytest.mark.parametrize(("given", "expected"), list(cases()))
def test_published_case(given, expected):
    found = find_candidates(view_of(given), PlanSettings(), NOW)

    reasons = [why.reason for held in found.held.values() for why in held]
    reasons += [why.reason for held in found.stray for why in held.why]
    if expected["reason"] == "empty_handled_by_emptiness":
        assert found.empty.tolist() == [0]
    elif expected["reason"] == "not_empty":
        assert found.candidates.tolist() == [0]
    elif expected["should_disrupt"]:
        assert (found.empty if given["method"] == "emptiness" else found.candidates).tolist() == [0]
    else:
        assert reasons == [expected["reason"]]
