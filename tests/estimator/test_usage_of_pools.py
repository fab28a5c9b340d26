"""What pools use, from claims and nodes in whatever order they come and go."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.kinds import NODECLAIMS, NODEPOOLS, NODES, PODS
from karpool.cluster.market.market import Market
from karpool.estimator.plugins.interface import EXISTING_NODES
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.model.karmada.replica_requirements import ReplicaNodeClaim as Where
from karpool.model.karmada.replica_requirements import requirements
from karpool.model.karpenter.objects import NodeClaim, NodePool
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.taints import Toleration
from karpool.wire.requests import ReplicasRequest
from tests.estimator.pictures import Told
from tests.packing.pool_cases import catalogue, instance_type

NAMES = ("a", "b", "c")


@dataclass
class At:
    seconds: float = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def claim(name, *, launched=True, registered=False, initialized=False, going=False, cpu="4"):
    conditions = [
        {"type": kind, "status": "True" if value else "Unknown"}
        for kind, value in (("Launched", launched), ("Registered", registered), ("Initialized", initialized))
    ]
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "10"}
    status = {"conditions": conditions}
    if launched:
        status |= {"providerID": f"id-{name}", "capacity": amounts, "allocatable": amounts}
    meta = {
        "name": f"pool-{name}",
        "labels": {"karpenter.sh/nodepool": "pool"},
        "creationTimestamp": "1970-01-01T00:10:00Z",
    }
    if going:
        meta["deletionTimestamp"] = "1970-01-01T00:11:00Z"
    wanted = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["four", "eight"]}]
    return decode({"metadata": meta, "spec": {"requirements": wanted}, "status": status}, NodeClaim)


def node(name, *, registered=True, initialized=False, going=False, cpu="4", taints=()):
    labels = {"kubernetes.io/hostname": name}
    if registered:
        labels |= {"karpenter.sh/nodepool": "pool", "karpenter.sh/registered": "true"}
    if initialized:
        labels["karpenter.sh/initialized"] = "true"
    meta = {"name": name, "labels": labels}
    if going:
        meta["deletionTimestamp"] = "1970-01-01T00:11:00Z"
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "10"}
    return decode(
        {
            "metadata": meta,
            "spec": {"providerID": f"id-{name}", "taints": list(taints)},
            "status": {"capacity": amounts, "allocatable": amounts},
        },
        Node,
    )


def told(provider=None):
    types = instance_type("four", 4, 16), instance_type("eight", 8, 32)
    return Told(provider or KarpenterProvider(At()), Market(catalogue(*types)))


booleans = st.booleans()
changes = st.one_of(
    st.tuples(
        st.just("claim"),
        st.sampled_from(NAMES),
        st.fixed_dictionaries(
            {"launched": booleans, "registered": booleans, "initialized": booleans, "going": booleans}
        ),
    ),
    st.tuples(
        st.just("node"),
        st.sampled_from(NAMES),
        st.fixed_dictionaries({"registered": booleans, "initialized": booleans, "going": booleans}),
    ),
    st.tuples(st.sampled_from(["no claim", "no node"]), st.sampled_from(NAMES), st.just({})),
)


def apply(picture, change):
    kind, name, fields = change
    match kind:
        case "claim":
            picture.put(NODECLAIMS, claim(name, **fields))
        case "node":
            picture.put(NODES, node(name, **fields))
        case "no claim":
            picture.drop(NODECLAIMS, f"pool-{name}")
        case "no node":
            picture.drop(NODES, name)


def nonzero(usage):
    return {pool: {k: v for k, v in used.items() if v} for pool, used in usage.items() if any(used.values())}


@settings(max_examples=150)
@given(st.lists(changes, max_size=14))
def test_usage_follows_from_the_latest_state_alone(history):
    kept = told()
    for change in history:
        apply(kept, change)
    latest = {}
    for kind, name, fields in history:
        latest[kind.removeprefix("no "), name] = (kind, name, fields)
    rebuilt = told()
    for change in latest.values():
        apply(rebuilt, change)

    kept, rebuilt = kept.snapshot(), rebuilt.snapshot()
    assert nonzero(kept.usage) == nonzero(rebuilt.usage)
    by_claim = sorted(kept.expected(), key=lambda expected: expected.claim)
    assert by_claim == sorted(rebuilt.expected(), key=lambda expected: expected.claim)
    assert sorted(kept.leaving) == sorted(rebuilt.leaving)
    assert all(units >= 0 for used in kept.usage.values() for units in used.values())


@pytest.mark.parametrize(
    ("fields", "cpu"),
    [
        ({"launched": False}, 8000),  # the largest it may become
        ({}, 4000),
        ({"going": True}, 0),
    ],
)
def test_a_claim_counts_from_the_start_until_it_goes(fields, cpu):
    picture = told()
    apply(picture, ("claim", "a", fields))

    assert picture.snapshot().usage.get("pool", {}).get("cpu", 0) == cpu


def test_a_claim_and_its_node_are_one():
    picture = told()
    apply(picture, ("claim", "a", {"registered": True, "initialized": True}))
    apply(picture, ("node", "a", {"initialized": True, "cpu": "5"}))

    assert picture.snapshot().usage["pool"]["cpu"] == 5000
    assert picture.snapshot().usage["pool"]["nodes"] == 1


def test_a_claim_without_a_machine_promises_what_every_type_holds():
    picture = told()
    apply(picture, ("claim", "a", {"launched": False}))

    (found,) = picture.snapshot().expected()

    assert not found.launched
    assert found.row.allocatable["cpu"] == 4000


POOL = decode({"metadata": {"name": "pool"}, "spec": {"limits": {"cpu": "4"}}}, NodePool)


def pod(name, node=""):
    """One core; without a node, it has waited since 990."""
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    conditions = [] if node else [{**waiting, "lastTransitionTime": "1970-01-01T00:16:30Z"}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
        "status": {"conditions": conditions},
    }


STARTING = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("running", [0, 1])
def test_a_node_that_is_starting_is_counted_once_whoever_asks(tolerant, running):
    """Who tolerates its taint is counted on the node itself, who does not on what it will be."""
    provider = KarpenterProvider(At())
    picture = Told(provider, Market(catalogue(instance_type("four", 4, 16))))
    picture.put(NODES, node("a", taints=[STARTING]))
    for number in range(running):
        picture.put(PODS, pod(f"p{number}", node="a"))
    picture.put(NODEPOOLS, POOL)
    apply(picture, ("claim", "a", {"registered": True}))
    where = Where(tolerations=(Toleration(operator="Exists"),) if tolerant else ())
    question = EstimateQuestion(ReplicasRequest("", requirements({"cpu": "1"}, where)), picture.snapshot())

    found = NodeAutoscalerEstimator([provider]).estimate(question)

    assert found.value == 4 - running
    existing = next(part.amount for part in found.parts if part.name == EXISTING_NODES)
    assert existing == (4 - running if tolerant else 0)


def test_pods_that_wait_come_first():
    """Three wait for one claim that holds four: one place is left, and limits allow no other node."""
    provider = KarpenterProvider(At())
    picture = Told(provider, Market(catalogue(instance_type("four", 4, 16))))
    picture.put(NODEPOOLS, POOL)
    apply(picture, ("claim", "a", {}))
    for number in range(3):
        picture.put(PODS, pod(f"p{number}"))
    question = EstimateQuestion(ReplicasRequest("", requirements({"cpu": "1"})), picture.snapshot())

    found = provider.estimate(question)

    assert {part.name: part.amount for part in found.parts} == {
        "karpenter/pool/in-flight": 1,
        "karpenter/pool": 0,
    }
