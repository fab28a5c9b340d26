"""The sizes a rollout chooses: within bounds at every step, and always to the end."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.kube.api.conditions import changed_fields
from karpool.model.kubernetes.meta import Condition, ObjectMeta
from karpool.model.kubernetes.pod import Pod, PodSpec, PodStatus
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.workloads.pods import removal_order
from karpool_fleet.workloads.revisions import template_hash
from karpool_fleet.workloads.rollout import (
    Bounds,
    RolloutPart,
    bounds_of,
    grow_new,
    obsolete,
    rescale,
    shrink_old,
)

NOW = 1_000_000.0
BOUNDS = st.builds(
    Bounds, desired=st.integers(1, 20), surge=st.integers(0, 8), unavailable=st.integers(0, 8)
).map(lambda b: replace(b, unavailable=min(b.desired, max(b.unavailable, 0 if b.surge else 1))))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(bounds=BOUNDS, choices=st.lists(st.integers(0, 5), min_size=400, max_size=400), data=st.data())
def test_every_rollout_ends_and_keeps_its_bounds_on_the_way(
    bounds: Bounds, choices: list[int], data: st.DataObject
) -> None:
    """Each step is one of: the Deployment decides, or one ReplicaSet catches up, or a pod gets ready."""
    first = data.draw(st.integers(0, bounds.desired))
    old = [
        RolloutPart("a", "1", first, first, first, first),
        RolloutPart("b", "2", *[bounds.desired - first] * 4),
    ]
    new = RolloutPart("c", "3")
    for choice in choices:
        if choice <= 1:
            size = grow_new(bounds, new, old)
            if size != new.size:
                new = replace(new, size=size)
            else:
                sizes = shrink_old(bounds, new, old)
                old = [replace(part, size=sizes.get(part.name, part.size)) for part in old]
        elif choice == 2:
            new = replace(new, replicas=new.size, available=min(new.available, new.size))
        elif choice == 3:
            new = replace(new, available=min(new.available + 1, new.replicas))
        else:
            part = old[choice - 4]
            available = min(part.available, part.size)
            old[choice - 4] = replace(part, replicas=part.size, available=available)
        assert sum(max(p.size, p.replicas) for p in old) + max(new.size, new.replicas) <= bounds.most
        kept = sum(min(part.size, part.available) for part in old) + new.available
        assert kept >= bounds.least_available
    if choices.count(3) >= 4 * bounds.desired and min(map(choices.count, range(6))) > 50:
        assert new.size == bounds.desired
        assert [part.size for part in old] == [0, 0]


@given(
    bounds=BOUNDS,
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    before=st.integers(1, 30),
)
def test_scaling_in_the_middle_of_a_rollout_shares_out_exactly(
    bounds: Bounds, sizes: list[int], before: int
) -> None:
    parts = [
        RolloutPart(f"p{i}", str(i), size, size, size, size, most=before, desired=0)
        for i, size in enumerate(sizes)
    ]
    chosen = rescale(bounds, parts, parts[-1], sum(sizes))
    after = [chosen.get(part.name, part.size) for part in parts]
    assert all(size >= 0 for size in after)
    active = sum(part.size > 0 for part in parts)
    assert sum(after) == (bounds.most if active > 1 else bounds.desired)


def test_percentages_round_so_that_pods_are_kept() -> None:
    strategy = {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    assert bounds_of({"replicas": 5, "strategy": strategy}) == Bounds(5, 2, 1)
    assert bounds_of({"replicas": 1, "strategy": strategy}) == Bounds(1, 1, 0)


def test_the_history_keeps_the_newest() -> None:
    parts = [(RolloutPart(f"r{number}"), number) for number in (3, 1, 2)]
    assert obsolete(parts, 2) == ["r1"]
    assert obsolete(parts, 0) == ["r1", "r2", "r3"]
    assert obsolete([(RolloutPart("busy", size=1), 1), (RolloutPart("idle"), 2)], 0) == ["idle"]


def test_a_hash_depends_on_the_template_and_the_collisions_alone() -> None:
    assert template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1})
    assert template_hash({"a": 1}) != template_hash({"a": 2})
    assert template_hash({"a": 1}, 0) != template_hash({"a": 1}, 1)


def pod(
    name: str, *, node: str = "", phase: str = "Running", ready: int | None = None, cost: str = ""
) -> Pod:
    """`ready` is for how many seconds it has been."""
    conditions = []
    if ready is not None:
        conditions = [Condition(type="Ready", status="True", last_transition_time=when(ready))]
    annotations = {"controller.kubernetes.io/pod-deletion-cost": cost} if cost else None
    return Pod(
        metadata=ObjectMeta(name=name, uid=name, annotations=annotations, creation_timestamp=when(10_000)),
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase, conditions=conditions),
    )


def when(seconds_ago: int) -> str:
    return rfc3339(NOW - seconds_ago)


def test_pods_nobody_would_miss_go_first() -> None:
    everyone = [
        pod("old", node="n1", ready=8000),
        pod("young", node="n2", ready=60),
        pod("dear", node="n3", ready=60, cost="100"),
        pod("cheap", node="n4", ready=8000, cost="-5"),
        pod("crowded", node="n5", ready=8000),
        pod("unready", node="n6"),
        pod("starting", node="n7", phase="Pending"),
        pod("waiting", phase="Pending"),
    ]
    neighbour = pod("neighbour", node="n5", ready=8000)
    order = [each.name for each in removal_order(everyone, [*everyone, neighbour], NOW)]
    assert order == ["waiting", "starting", "unready", "cheap", "crowded", "young", "old", "dear"]


VALUES = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
STATUSES = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@given(STATUSES, STATUSES)
def test_a_status_patch_turns_the_old_into_the_new(old: dict[str, object], new: dict[str, object]) -> None:
    assert merged(old, changed_fields(old, new)) == new
    assert changed_fields(new, new) == {}


def merged(target: object, patch: object) -> object:
    """RFC 7386, spelled out."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
