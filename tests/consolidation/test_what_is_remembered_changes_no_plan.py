"""Plans are the same whether the planner remembers what it found out, or finds it out each time."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type
from tests.consolidation.small_clusters import BALANCED, UNSCORED
from tests.consolidation.test_plans_hold_together import SETTINGS, random_cluster


def planned_both_ways(view, chosen):
    remembering = plan_consolidation(view, chosen, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanningState, "remembers", False)
        return remembering, plan_consolidation(view, chosen, NOW)


@given(st.integers(0, 10_000), st.sampled_from(SETTINGS))
@settings(max_examples=40)
def test_a_planner_that_remembers_plans_the_same(seed, chosen):
    remembering, forgetting = planned_both_ways(random_cluster(seed).view(), chosen)
    assert remembering == forgetting


def equal_nodes(count: int, pods: int, budget: str, limit: str = "") -> BuiltCluster:
    """Many of one kind: what is remembered of one answers for the others."""
    sold = catalogue(*(instance_type(f"t{cpu}", cpu * 1000, cpu * 4, 0.05 * cpu) for cpu in (2, 4, 8)))
    cluster = BuiltCluster(sold)
    more = {"spec": {"limits": {"cpu": limit}}} if limit else {}
    cluster.pool(disruption={"budgets": [{"nodes": budget}]}, **more)
    for number in range(count):
        cluster.node(f"n{number:02}", "t8")
        for each in range(pods):
            cluster.pod(
                f"p{number}-{each}",
                f"n{number:02}",
                cpu=1500,
                memory_mib=512,
                labels={"app": f"a{number % 3}"},
            )
    return cluster


@pytest.mark.parametrize(
    ("pods", "budget", "limit"), [(1, "2", ""), (2, "2", "210"), (5, "100%", ""), (5, "100%", "201")]
)
def test_among_equal_nodes_the_plan_is_the_same(pods, budget, limit):
    view = equal_nodes(25, pods, budget, limit).view()
    for chosen in (UNSCORED, replace(BALANCED, exhaustive_up_to=0)):
        remembering, forgetting = planned_both_ways(view, chosen)
        assert remembering == forgetting
