"""The decisions behind the controllers, as functions of plain values."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.karpenter.objects import NodePool, NodeRequirement, requirements_of
from karpool.model.kubernetes.meta import Condition, decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool.model.requirements import ValueSet
from karpool_fleet.cloud.cloud import CloudOffer
from karpool_fleet.karpenter.lifecycle.conditions import FALSE, OF_CLAIM, READY, TRUE, UNKNOWN, Conditions
from karpool_fleet.karpenter.provisioning.batch_window import BatchWindow
from karpool_fleet.karpenter.provisioning.claims import pool_hash, wire_requirements
from karpool_fleet.karpenter.provisioning.market import Priced, chosen
from karpool_fleet.karpenter.termination.drain_plan import STUCK_SECONDS, drain_plan, is_waited_for
from tests.fleet.karpenter import acting

NOW = parse_rfc3339("2026-01-01T12:00:00Z")


# Batches


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5)), min_size=1, max_size=40))
def test_a_window_closes_after_a_second_of_silence_or_ten_in_all(steps: list[tuple[float, int]]) -> None:
    window = BatchWindow(1.0, 10.0)
    now, news, seen = 0.0, 0.0, set[int]()
    window.trigger("first", now)
    for wait, uid in steps:
        now += wait
        window.trigger(str(uid), now)
        news = news if uid in seen else now
        seen.add(uid)
    assert window.closes_at() == min(news + 1.0, 10.0)
    window.close()
    assert window.closes_at() is None


# Conditions

statuses = st.sampled_from([TRUE, FALSE, UNKNOWN])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([*OF_CLAIM, "Drifted"]), statuses), max_size=20))
def test_ready_follows_its_dependents_and_times_follow_the_status(changes: list[tuple[str, str]]) -> None:
    held: list[Condition] = []
    for second, (kind, status) in enumerate(changes, start=1):
        before = {each.type: each for each in held}
        conditions = Conditions(held, OF_CLAIM, created=rfc3339(NOW), generation=1, now=rfc3339(NOW + second))
        conditions.set(kind, status, "Because")
        wire = conditions.wire()
        if wire is None:
            assert before[kind].status == status
            continue
        held = [decode(each, Condition) for each in wire]
        for each in held:
            if each.type in before and before[each.type].status == each.status:
                assert each.last_transition_time == before[each.type].last_transition_time
            elif each.type in before or each.type == kind:
                assert each.last_transition_time == rfc3339(NOW + second) or each.status == UNKNOWN
        found = {each.type: each.status for each in held}
        states = [found[dependent] for dependent in OF_CLAIM]
        assert found[READY] == (FALSE if FALSE in states else UNKNOWN if UNKNOWN in states else TRUE)


# Drains


def draining(name: str, **more: Any) -> Pod:
    """A running pod; `ends_in` seconds if it terminates."""
    raw = acting.pod(name, annotations=more.pop("annotations", None), **more.pop("spec", {}))
    raw["metadata"]["uid"] = name
    if "ends_in" in more:
        raw["metadata"]["deletionTimestamp"] = rfc3339(NOW + more["ends_in"])
    if owner := more.get("owner"):
        api = "apps/v1" if owner == "DaemonSet" else "v1"
        raw["metadata"]["ownerReferences"] = [{"kind": owner, "apiVersion": api, "name": "x", "uid": "x"}]
    raw["status"] = {"phase": more.get("phase", "Running"), "startTime": rfc3339(NOW - more.get("age", 3600))}
    return decode(raw, Pod)


def names(pods: Any) -> list[str]:
    return [pod.name for pod in pods]


def test_tiers_leave_one_after_the_other() -> None:
    critical = {"priorityClassName": "system-node-critical"}
    pods = [
        draining("critical-daemon", owner="DaemonSet", spec=critical),
        draining("critical", spec=critical),
        draining("daemon", owner="DaemonSet"),
        draining("plain"),
    ]
    left = list(pods)
    order = []
    while left:
        plan = drain_plan(left, NOW, None)
        assert len(plan.evict) == 1
        order += names(plan.evict)
        left = [pod for pod in left if pod not in plan.evict]
    assert order == ["plain", "daemon", "critical", "critical-daemon"]
    assert drain_plan([], NOW, None).is_drained


@pytest.mark.parametrize(
    ("pod", "waited"),
    [
        (draining("running"), True),
        (draining("done", phase="Succeeded"), False),
        (draining("static", owner="Node"), False),
        (draining("tolerant", spec={"tolerations": [{"operator": "Exists"}]}), False),
        (draining("terminating", ends_in=10), True),
        (draining("late", ends_in=-STUCK_SECONDS), True),
        (draining("stuck", ends_in=-STUCK_SECONDS - 1), False),
        (draining("protected", annotations={"karpenter.sh/do-not-disrupt": "true"}), True),
    ],
    ids=lambda value: value.name if isinstance(value, Pod) else "",
)
def test_who_is_waited_for(pod: Pod, waited: bool) -> None:
    assert is_waited_for(pod, NOW) is waited


def test_a_protected_pod_is_not_evicted_and_its_turn_is_known() -> None:
    for_ever = draining("always", annotations={"karpenter.sh/do-not-disrupt": "true"})
    for_now = draining("soon", annotations={"karpenter.sh/do-not-disrupt": "2h"})
    plan = drain_plan([for_ever, for_now], NOW, None)
    assert (plan.evict, plan.waiting) == ((), 2)
    assert plan.again_seconds == 3600
    assert names(drain_plan([for_ever, for_now], NOW + 3600, None).evict) == ["soon"]


@settings(max_examples=80)
@given(
    grace=st.integers(0, 120),
    ahead=st.integers(-50, 300),
    ends_in=st.one_of(st.none(), st.integers(-30, 400)),
)
def test_with_a_deadline_every_pod_is_told_in_time(grace: int, ahead: int, ends_in: int | None) -> None:
    more = {} if ends_in is None else {"ends_in": ends_in}
    pod = draining("p", spec={"terminationGracePeriodSeconds": grace}, **more)
    plan = drain_plan([pod], NOW, NOW + ahead)
    if ends_in is None:
        assert bool(plan.force) == (grace > ahead)
    for forced in plan.force:
        assert forced.grace_seconds == max(1, ahead)
        assert ends_in is None or ends_in > max(1, ahead)
    if not plan.force and ends_in is None:
        # It is looked at again before it is too late by more than a second.
        assert plan.again_seconds is not None
        assert plan.again_seconds <= ahead - grace + 1


# Buying


def offer(kind: str, price: float, type_: str = "m", *, exotic: bool = False) -> Priced:
    return Priced(price, CloudOffer(type_, "z", kind), exotic)


def test_spot_is_bought_only_where_it_is_cheaper_than_on_demand() -> None:
    sold = [offer("on-demand", 1.0), offer("spot", 0.4), offer("spot", 1.5, "x")]
    assert chosen(sold, 60) == (CloudOffer("m", "z", "spot"),)
    assert chosen([offer("on-demand", 1.0), offer("spot", 1.5)], 60) == (CloudOffer("m", "z", "on-demand"),)


def test_accelerators_are_bought_only_when_nothing_else_is_left() -> None:
    gpu = offer("on-demand", 0.1, "gpu", exotic=True)
    assert chosen([gpu, offer("on-demand", 1.0)], 60) == (CloudOffer("m", "z", "on-demand"),)
    assert chosen([gpu], 60) == (gpu.offer,)


def test_a_launch_names_so_many_types_and_no_more_cheapest_first() -> None:
    sold = [offer("on-demand", float(price), f"t{price:03}") for price in reversed(range(100))]
    assert [each.type for each in chosen(sold, 60)] == [f"t{price:03}" for price in range(60)]
    assert chosen([], 60) == ()


# Claims

values = st.frozensets(st.sampled_from(["1", "2", "3", "x"]), max_size=3)
bounds = st.one_of(st.none(), st.integers(0, 5))


@settings(max_examples=100)
@given(values, st.booleans(), bounds, bounds)
def test_requirements_survive_being_written_into_a_claim(
    chosen_values: frozenset[str], complement: bool, low: int | None, high: int | None
) -> None:
    wanted = ValueSet(chosen_values, complement) & ValueSet(complement=True, at_least=low, at_most=high)
    wire = wire_requirements({"some": wanted}, ["m"], ["spot"])
    read = requirements_of([decode(each, NodeRequirement) for each in wire], "")
    for value in ("0", "1", "2", "3", "4", "7", "x", "y"):
        assert (value in read["some"]) == (value in wanted)


def test_the_hash_ignores_order_requirements_and_everything_outside_the_template() -> None:
    def hashed(**changes: Any) -> str:
        return pool_hash(decode(acting.pool(**changes), NodePool))

    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    assert hashed(template={"taints": taints}) == hashed(template={"taints": taints[::-1]})
    assert hashed() == hashed(types=("large",)) == hashed(weight=7, limits={"cpu": "1"})
    assert len({hashed(), hashed(template={"taints": taints}), hashed(labels={"a": "b"})}) == 3
