"""After a few pods changed, the plan that begins with the last one is the plan of a whole search.

The twin is `plan_consolidation`, which knows nothing of plans before: the moves are the same to the last
pod."""

from contextlib import contextmanager
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from bench.consolidation import MIXED, NOW, PACKED, ROOMY, BuiltCluster
from bench.plans import change
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.consolidation.planning import search, warm_search
from karpool.consolidation.planning.plan_cache import WARM_MAX, PlanCache
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings

SETTINGS = (
    PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 2)),
    PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 1)),
    PlanSettings(override=PolicyOverride(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED)),
)


@contextmanager
def as_in_large_clusters():
    """Small clusters are searched as those of more than 300 candidates are: in one way."""
    with (
        patch.object(search, "TINY", 2),
        patch.object(search, "SMALL", 4),
        patch.object(search, "SEVERAL_WAYS_MAX", 10),
        patch.object(warm_search, "SEVERAL_WAYS_MAX", 10),
    ):
        yield


def judge(cluster, planning, chosen):
    """The plan has the moves of a whole search, and speaks of every node."""
    view = cluster.view()
    warm, whole = planning.plan(view, chosen, NOW), plan_consolidation(view, chosen, NOW)
    gone = {name for move in warm.moves for name in move.names}
    assert gone | {kept.node for kept in warm.held} == set(view.snapshot.names)
    assert not gone & {kept.node for kept in warm.held}
    assert (warm.moves, warm.pools, warm.before, warm.after) == (
        whole.moves,
        whole.pools,
        whole.before,
        whole.after,
    )
    pods = view.pods
    moving = {machine.name: set() for machine in view.machines}
    for key, row, moves in zip(pods.keys, pods.rows, pods.moves, strict=True):
        if moves:
            moving[view.snapshot.names[row]].add(key)
    for rejected in warm.rejected:
        names = rejected.move.names
        assert rejected.why and not gone & set(names)
        assert {pod.pod for pod in rejected.move.pods} == set().union(*map(moving.get, names))


@pytest.mark.long
@given(st.integers(0, 10_000), st.sampled_from((ROOMY, PACKED, MIXED)), st.sampled_from(SETTINGS))
@settings(max_examples=8, deadline=None)
def test_what_goes_is_what_a_whole_search_takes(seed, use, chosen):
    cluster, planning, chance = BuiltCluster(30, 300, use, seed), PlanCache(), Random(seed)
    with as_in_large_clusters():
        planning.plan(cluster.view(), chosen, NOW)
        for _ in range(2):
            change(cluster, chance, 0.01)
            judge(cluster, planning, chosen)
            if chance.random() < 0.3:
                cluster.end_node(chance.choice(cluster.view().snapshot.names))


def test_all_that_budgets_allow_goes_and_pods_of_today_are_named():
    cluster, planning = BuiltCluster(90, 900, ROOMY, 5), PlanCache()
    with as_in_large_clusters():
        planning.plan(cluster.view(), SETTINGS[0], NOW)
        change(cluster, Random(5), 0.01)
        judge(cluster, planning, SETTINGS[0])
    assert planning.warm == 1


def test_a_node_that_is_gone_renumbers_the_others_and_changes_nothing_else():
    cluster, planning = BuiltCluster(30, 300, ROOMY, 5), PlanCache()
    with as_in_large_clusters():
        planning.plan(cluster.view(), SETTINGS[0], NOW)
        cluster.end_node("node-00003")
        judge(cluster, planning, SETTINGS[0])
    assert planning.warm == 1


def test_after_so_many_warm_plans_a_whole_search_is_made():
    cluster, planning, chance = BuiltCluster(30, 300, ROOMY, 5), PlanCache(), Random(5)
    with as_in_large_clusters():
        warm = []
        for _ in range(WARM_MAX + 3):
            change(cluster, chance, 0.004)
            planning.plan(cluster.view(), SETTINGS[0], NOW)
            warm.append(planning.warm)
    assert warm == [*range(WARM_MAX + 1), 0, 1]


def test_after_a_search_that_failed_a_whole_one_is_made():
    cluster, planning = BuiltCluster(30, 300, ROOMY, 5), PlanCache()
    hurried = replace(SETTINGS[0], deadline_seconds=60.0)

    def fails():
        raise RuntimeError("the clock is gone")

    with as_in_large_clusters():
        planning.plan(cluster.view(), hurried, NOW, elapsed=lambda: 0.0)
        change(cluster, Random(5), 0.01)
        with pytest.raises(RuntimeError):
            planning.plan(cluster.view(), hurried, NOW, elapsed=fails)
        judge(cluster, planning, hurried)
    assert planning.warm == 0


@pytest.mark.long
def test_where_much_changed_or_groups_go_first_a_whole_search_is_made():
    cluster, planning = BuiltCluster(30, 300, ROOMY, 5), PlanCache()
    unbounded = replace(SETTINGS[2], heed_budgets=False)
    with as_in_large_clusters():
        for chosen in (SETTINGS[0], unbounded):
            planning.plan(cluster.view(), chosen, NOW)
            change(cluster, Random(5), 0.3 if chosen is SETTINGS[0] else 0.01)
            judge(cluster, planning, chosen)
            assert planning.warm == 0
