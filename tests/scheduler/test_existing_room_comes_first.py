"""Nodes that exist are filled before nodes are bought, unless somebody chooses otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karmada.binding import TargetCluster
from karpool.model.karmada.placement import ReplicaStrategy
from karpool.scheduler.cycle.assignment import AssignmentTask, assign
from karpool.scheduler.cycle.decision import (
    ACCURATE,
    GENERAL,
    ClusterAvailability,
    ClusterCandidate,
    EstimatePart,
    SchedulingMode,
)
from karpool.scheduler.cycle.settings import EstimateMergeRule, RoomOrder, SchedulingSettings
from karpool.scheduler.estimates.availability import merge
from karpool.wire.requests import RoomParts

DYNAMIC, AGGREGATED = ReplicaStrategy.DYNAMIC, ReplicaStrategy.AGGREGATED


def cluster(name, now, later=0, *, assigned=0, **parts):
    room = RoomParts(now, **parts) if later or parts else None
    availability = ClusterAvailability(now + later, ACCURATE, (), room)
    return ClusterCandidate(name, 0, 0, now + later, assigned, availability=availability)


def divided(chosen, replicas, *, strategy=DYNAMIC, order=RoomOrder.EXISTING_FIRST, mode="Steady", **more):
    previous = [TargetCluster(each.name, each.assigned) for each in chosen if each.assigned]
    task = AssignmentTask(strategy, SchedulingMode(mode), replicas, "", previous, room_order=order, **more)
    return assign(chosen, task).replicas


def test_idle_machines_are_used_although_another_cluster_could_buy_thousands():
    idle, growing = cluster("idle", 14), cluster("growing", 0, 7031, is_unlimited=True)

    assert divided([growing, idle], 14) == {"idle": 14}
    assert divided([growing, idle], 20) == {"idle": 14, "growing": 6}
    assert divided([growing, idle], 14, order=RoomOrder.BY_TOTAL) == {"growing": 14}
    assert divided([growing, idle], 14, strategy=AGGREGATED) == {"idle": 14}


def test_pools_without_limits_weigh_what_is_configured():
    limited, endless = cluster("limited", 0, 50), cluster("endless", 0, 9000, is_unlimited=True)

    assert divided([limited, endless], 30, unlimited_weight=50) == {"limited": 15, "endless": 15}
    assert divided([limited, endless], 30, unlimited_weight=100) == {"limited": 10, "endless": 20}
    # Weights share out; room decides.
    assert divided([limited, endless], 1050, unlimited_weight=50) == {"limited": 50, "endless": 1000}


def test_by_price_buys_where_it_is_cheapest_once_nothing_is_idle():
    chosen = [
        cluster("dear", 2, 100, price_per_hour=0.4),
        cluster("cheap", 1, 5, price_per_hour=0.1),
        cluster("unknown", 0, 100),
        cluster("middle", 0, 10, price_per_hour=0.2),
    ]

    assert divided(chosen, 3, order=RoomOrder.BY_PRICE) == {"dear": 2, "cheap": 1}
    assert divided(chosen, 12, order=RoomOrder.BY_PRICE) == {"dear": 2, "cheap": 6, "middle": 4}
    assert divided(chosen, 120, order=RoomOrder.BY_PRICE) == {
        "dear": 102,
        "cheap": 6,
        "middle": 10,
        "unknown": 2,
    }


def test_a_scale_up_keeps_what_runs_and_fills_idle_machines_first():
    chosen = [cluster("a", 0, 40, assigned=5), cluster("b", 3, 40, assigned=1)]

    assert divided(chosen, 9) == {"a": 5, "b": 4}
    assert sum(divided(chosen, 19).values()) == 19
    assert divided(chosen, 9, mode="Fresh") == {"a": 5, "b": 4}
    assert divided([cluster("a", 0, 40, assigned=5)], 3) == {"a": 3}


sizes = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50), st.booleans()), min_size=1, max_size=5)


@given(sizes, st.integers(1, 200), st.sampled_from(list(RoomOrder)), st.sampled_from([DYNAMIC, AGGREGATED]))
def test_nobody_gets_more_than_it_has_and_nothing_is_bought_while_machines_idle(
    given_sizes, replicas, order, strategy
):
    chosen = [
        cluster(f"m{number}", now, later, is_unlimited=endless)
        for number, (now, later, endless) in enumerate(given_sizes)
    ]
    if replicas > sum(each.available for each in chosen):
        return

    result = divided(chosen, replicas, order=order, strategy=strategy)

    assert sum(result.values()) == replicas
    assert all(result.get(each.name, 0) <= each.available for each in chosen)
    if order is not RoomOrder.BY_TOTAL:
        there = {each.name: each.available - each.after_scale_up for each in chosen}
        bought = sum(max(0, result.get(name, 0) - room) for name, room in there.items())
        assert bought == max(0, replicas - sum(there.values()))


@given(sizes, st.integers(1, 200), st.sampled_from([DYNAMIC, AGGREGATED]))
def test_where_nobody_tells_the_parts_the_order_makes_no_difference(given_sizes, replicas, strategy):
    chosen = [cluster(f"m{number}", now) for number, (now, _, _) in enumerate(given_sizes)]
    if replicas > sum(each.available for each in chosen):
        return

    results = [divided(chosen, replicas, order=order, strategy=strategy) for order in RoomOrder]

    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("general", "accurate", "room"), [(3, 9, RoomParts(2)), (3, 1, RoomParts(1)), (1, 3, None)]
)
def test_the_parts_are_those_of_the_source_that_counts(general, accurate, room):
    parts = [EstimatePart(GENERAL, general), EstimatePart(ACCURATE, accurate, room=room)]

    assert merge(parts, EstimateMergeRule.ACCURATE_IF_HIGHER, 7).room == room
    smaller = merge(parts, EstimateMergeRule.MIN, 7)
    assert smaller.room == (room if smaller.source == ACCURATE else None)


def test_existing_first_is_the_default_of_ours():
    assert SchedulingSettings().room_order is RoomOrder.EXISTING_FIRST
