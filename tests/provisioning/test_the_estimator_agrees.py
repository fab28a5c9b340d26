"""Whoever watches the same claims and events comes to the same verdicts; nobody shares memory."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import NODECLAIMS, NODEPOOLS, STOCK_EVENTS
from karpool.cluster.market.failures import LaunchFailure, LaunchFailures
from karpool.cluster.market.market import Market
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, NodeClaim
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from tests.cluster.feeding import tell, tell_gone
from tests.provisioning.test_claims_are_judged import START, Now

POOLS = ("one", "two")
Step = tuple[str, str, int, float]  # what, pool, number, seconds until the next


def claim(pool: str, number: int, reached: str) -> NodeClaim:
    labels = {NODEPOOL: pool, INSTANCE_TYPE: f"type-{number}", ZONE: "zone-a", CAPACITY_TYPE: "spot"}
    conditions: list[dict[str, Any]] = []
    if reached == "stuck":
        why = {"reason": "LaunchFailed", "message": "no such image"}
        conditions = [{"type": "Launched", "status": "Unknown", **why}]
    elif reached == "registered":
        conditions = [{"type": kind, "status": "True"} for kind in ("Launched", "Registered")]
    for condition in conditions:
        condition["lastTransitionTime"] = rfc3339(START + 5)
    requirements = [
        {"key": INSTANCE_TYPE, "operator": "In", "values": [f"type-{number}", "type-9"]},
        {"key": CAPACITY_TYPE, "operator": "In", "values": ["spot", "on-demand"]},
    ]
    metadata = {"name": f"{pool}-{number}", "uid": f"{pool}-{number}", "labels": labels}
    metadata["creationTimestamp"] = rfc3339(START)
    raw = {"metadata": metadata, "spec": {"requirements": requirements}, "status": {"conditions": conditions}}
    return decode(raw, NodeClaim)


def refusal(pool: str, number: int, at: float) -> KubeEvent:
    about = {"kind": "NodeClaim", "name": f"{pool}-{number}"}
    raw = {"involvedObject": about, "reason": "InsufficientCapacityError", "message": "none left"}
    return decode({**raw, "metadata": {"name": "e"}, "lastTimestamp": rfc3339(at)}, KubeEvent)


STEPS = st.tuples(
    st.sampled_from(("created", "stuck", "registered", "refused", "gone")),
    st.sampled_from(POOLS),
    st.integers(0, 2),
    st.floats(0, 200),
)


@settings(max_examples=80)
@given(st.lists(STEPS, max_size=15))
def test_the_same_news_give_the_same_failures(steps: list[Step]) -> None:
    played(steps)


def test_there_is_something_to_agree_on() -> None:
    found = played([("created", "one", 0, 0.0), ("refused", "one", 0, 0.0), ("stuck", "two", 1, 20.0)])
    assert {each.pool for each in found} == {"one", "two"}


def played(steps: list[Step]) -> list[LaunchFailure]:
    """What both find at the end; they agree after every step."""
    clock = Now()
    estimator = Cluster(
        KarpenterProvider.aspects,
        market=Market(Catalogue("test", "here")),
        failures=LaunchFailures(recovery_seconds=180),
    )
    for pool in POOLS:
        tell(estimator, NODEPOOLS, ObjectKey("", pool), {"metadata": {"name": pool}}, clock.at)
    monitor = ClaimMonitor(clock, LaunchFailures(recovery_seconds=180))
    monitor.pools_seen(POOLS)
    for what, pool, number, seconds in steps:
        key = ObjectKey("", f"{pool}-{number}")
        if what == "refused":
            event = refusal(pool, number, clock.at)
            tell(estimator, STOCK_EVENTS, key, event, clock.at)
            monitor.put_event(key, event)
        elif what == "gone":
            tell_gone(estimator, NODECLAIMS, key, clock.at)
            monitor.drop_claim(key)
        else:
            tell(estimator, NODECLAIMS, key, claim(pool, number, what), clock.at)
            monitor.put_claim(key, claim(pool, number, what))
        # The estimator understands events when it is asked; so that both are asked at the same moments.
        estimator.snapshot(clock.at)
        monitor.tick()
        assert estimator.failures.current(clock.at) == monitor.failures.current(clock.at)
        clock.at += seconds
        estimator.snapshot(clock.at)
        monitor.tick()
        assert estimator.failures.current(clock.at) == monitor.failures.current(clock.at)
    return monitor.failures.current(clock.at)
