import pytest

from karpool.scheduler.cycle.decision import ClusterAvailability, EstimatePart, ScheduleReason, SchedulingMode
from karpool.scheduler.cycle.schedule import NeedsEstimates, decide, plan_cycle
from karpool.scheduler.cycle.settings import CostPreference, SchedulingSettings
from tests.scheduler.deciding import schedule
from tests.scheduler.placing import (
    AGGREGATED,
    DUPLICATED,
    DYNAMIC,
    STATIC,
    binding,
    cluster,
    clusters,
    rooms,
)

ONE = [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]
GROUPS = {
    "clusterAffinities": [
        {"affinityName": "home", "clusterNames": ["m1"]},
        {"affinityName": "away", "clusterNames": ["m2"]},
    ]
}


def placed(decision):
    return {target.name: target.replicas for target in decision.targets or ()}


# Affinity groups


def test_the_next_group_is_tried_when_one_has_no_room():
    decision = schedule(binding(5, DYNAMIC, placement=GROUPS), clusters("m1", "m2"), rooms(m1=2, m2=9))

    assert (decision.group, placed(decision)) == ("away", {"m2": 5})
    assert decision.failed_groups() == [
        "failed to schedule ResourceBinding(default/web-deployment) with clusterAffiliates index(0): "
        "failed to assign replicas: failed to scale up: "
        "Clusters available replicas 2 are not enough to schedule."
    ]


def test_groups_before_the_one_in_use_are_not_revisited():
    status = {"schedulerObservingAffinityName": "away"}
    given = binding(5, DYNAMIC, placement=GROUPS, status=status)

    assert schedule(given, clusters("m1", "m2"), rooms(m1=9, m2=9)).group == "away"
    assert schedule(given, clusters("m1", "m2"), rooms(m1=9, m2=9), mode=SchedulingMode.FRESH).group == "home"


def test_the_first_error_counts_when_all_groups_fail():
    short = schedule(binding(5, DYNAMIC, placement=GROUPS), clusters("m1"), rooms(m1=2))
    gone = schedule(binding(5, DYNAMIC, placement=GROUPS), clusters("m2"), rooms(m2=2))

    assert (short.reason, short.targets) == (ScheduleReason.UNSCHEDULABLE, None)
    assert (gone.reason, gone.targets) == (ScheduleReason.NO_CLUSTER_FIT, ())


def test_an_empty_list_of_groups_is_none():
    assert schedule(
        binding(1, DYNAMIC, placement={"clusterAffinities": []}), clusters("m1"), rooms(m1=1)
    ).is_success


def test_a_shortage_is_named_after_the_step_that_meets_it():
    by_selection = binding(5, DYNAMIC, placement={"spreadConstraints": ONE})
    members = clusters("m1")

    called = [schedule(each, members, rooms(m1=2)) for each in (by_selection, binding(5, DYNAMIC))]

    assert [each.reason for each in called] == [ScheduleReason.SCHEDULER_ERROR, ScheduleReason.UNSCHEDULABLE]


# What is asked


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        pytest.param(binding(4, DYNAMIC), {"m1", "m2"}, id="a first schedule asks"),
        pytest.param(binding(4, DYNAMIC, previous={"m1": 4}), set(), id="what is placed does not"),
        pytest.param(binding(2, DYNAMIC, previous={"m1": 4}), set(), id="scale down does not"),
        pytest.param(
            binding(4, AGGREGATED, previous={"gone": 4}), {"m1", "m2"}, id="a vanished cluster does"
        ),
        pytest.param(binding(4, DUPLICATED), set(), id="duplicated does not"),
        pytest.param(binding(4, STATIC), set(), id="static does not"),
        pytest.param(binding(0, DYNAMIC), set(), id="nothing to place"),
        pytest.param(
            binding(4, DUPLICATED, placement={"spreadConstraints": ONE}), {"m1", "m2"}, id="a choice does"
        ),
        pytest.param(
            binding(4, STATIC, placement={"spreadConstraints": ONE}), set(), id="static has no choice"
        ),
    ],
)
def test_room_is_asked_for_only_where_it_decides(given, asked):
    step = decide(plan_cycle(given, clusters("m1", "m2")), {})

    assert {each.name for each in step.clusters} == asked if isinstance(step, NeedsEstimates) else not asked


def test_only_the_group_under_trial_is_asked():
    plan = plan_cycle(binding(5, DYNAMIC, placement=GROUPS), clusters("m1", "m2"))

    first = decide(plan, {})
    second = decide(plan, rooms(m1=1))

    assert [each.name for each in first.clusters] == ["m1"]
    assert [each.name for each in second.clusters] == ["m2"]


def test_a_fresh_decision_asks_even_if_all_is_placed():
    given = binding(4, DYNAMIC, previous={"m1": 4})

    assert isinstance(
        decide(plan_cycle(given, clusters("m1"), mode=SchedulingMode.FRESH), {}), NeedsEstimates
    )


# The result


def test_an_unchanged_result_keeps_its_order():
    given = binding(2, DUPLICATED, previous={"m3": 2, "m1": 2})

    decision = schedule(given, clusters("m1", "m2", "m3"), {})

    assert [target.name for target in decision.targets] == ["m3", "m1", "m2"]


def test_a_target_named_twice_counts_once():
    entries = [{"name": "m1", "replicas": 2}, {"name": "m1", "replicas": 9}]

    assert placed(schedule(binding(3, DYNAMIC, spec={"clusters": entries}), clusters("m1"), rooms(m1=1))) == {
        "m1": 3
    }


def test_plain_resources_go_everywhere_without_replicas():
    decision = schedule(binding(0, workload=False), clusters("m2", "m1"), {})

    assert [target.to_json() for target in decision.targets] == [{"name": "m1"}, {"name": "m2"}]


def test_empty_workloads_are_propagated_on_request():
    plain = schedule(binding(0, DYNAMIC), clusters("m1"), {})
    asked = schedule(binding(0, DYNAMIC), clusters("m1"), {}, SchedulingSettings(propagate_empty=True))

    assert (plain.targets, placed(asked)) == ((), {"m1": 0})


def test_an_unknown_strategy_is_named():
    decision = schedule(binding(1, {"replicaSchedulingType": "Halved"}), clusters("m1"), {})

    assert decision.reason is ScheduleReason.SCHEDULER_ERROR
    assert decision.targets is None
    assert decision.message == (
        "failed to assign replicas: unsupported replica scheduling strategy, replicaSchedulingType: Halved, "
        "replicaDivisionPreference: , please try another scheduling strategy"
    )


def test_no_groups_allowed_is_nothing_selected():
    nowhere = {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 0, "maxGroups": 0}]}

    divided = schedule(binding(1, DYNAMIC, placement=nowhere), clusters("m1"), rooms(m1=1))
    copied = schedule(binding(1, DUPLICATED, placement=nowhere), clusters("m1"), rooms(m1=1))

    assert divided.message == "failed to select clusters: no enough resource when selecting 0 clusters"
    assert copied.message == "failed to assign replicas: no clusters available to schedule"


def test_a_decision_carries_its_numbers():
    known = {
        "m1": ClusterAvailability(
            6,
            "scheduler-estimator",
            (EstimatePart("general-estimator", 9), EstimatePart("scheduler-estimator", 6)),
        ),
        "m2": ClusterAvailability(8, "general-estimator"),
    }
    members = [*clusters("m1", "m2"), cluster("m3", apis=())]

    attempt = schedule(binding(10, AGGREGATED, previous={"m1": 1}), members, known).attempts[0]

    assert [(candidate.name, candidate.score, candidate.total) for candidate in attempt.candidates] == [
        ("m1", 100, 7),
        ("m2", 0, 8),
    ]
    assert attempt.candidates[0].availability.parts[1].value == 6
    assert attempt.refused[0].about == "m3"
    division = attempt.divisions[0]
    assert (division.action, division.target, division.kept) == ("scale up", 9, (("m1", 1),))
    assert division.weights == (("m1", 6), ("m2", 8))
    assert division.result == (("m1", 5), ("m2", 5))


# Components

FLINK = {"components": [{"name": "manager", "replicas": 1}, {"name": "worker", "replicas": 4}], "replicas": 0}


def flink(scheduling=AGGREGATED, **given):
    return binding(0, scheduling, placement={"spreadConstraints": ONE}, spec=FLINK, workload=False, **given)


def test_a_set_goes_complete_to_one_cluster():
    settings = SchedulingSettings(multiple_pod_templates=True)

    decision = schedule(flink(), clusters("m1", "m2"), rooms(m1=0, m2=3), settings)

    parts = [{"name": "manager", "replicas": 1}, {"name": "worker", "replicas": 4}]
    assert [target.to_json() for target in decision.targets] == [{"name": "m2", "components": parts}]


def test_no_room_for_a_set_is_said_in_karmadas_words():
    decision = schedule(flink(), clusters("m1"), rooms(m1=0), SchedulingSettings(multiple_pod_templates=True))

    assert decision.reason is ScheduleReason.SCHEDULER_ERROR
    assert decision.message == "failed to select clusters: no enough resource when selecting 1 clusters"


def test_room_for_sets_is_looked_for_only_by_what_is_divided():
    decision = schedule(
        flink(DUPLICATED), clusters("m1"), rooms(m1=0), SchedulingSettings(multiple_pod_templates=True)
    )

    assert [target.name for target in decision.targets] == ["m1"]


def test_a_set_that_runs_is_not_charged_for_itself():
    """Its cluster is full because of it; upstream would call that a shortage."""
    settings = SchedulingSettings(multiple_pod_templates=True)

    decision = schedule(flink(previous={"m1": 0}), clusters("m1", "m2"), rooms(m1=0, m2=0), settings)

    assert [target.name for target in decision.targets] == ["m1"]


# Partial placement

PARTIAL = SchedulingSettings(partial=True)


def test_partial_placement_places_what_fits():
    decision = schedule(binding(10, DYNAMIC), clusters("m1", "m2"), rooms(m1=2, m2=4), PARTIAL)

    assert (decision.reason, placed(decision), decision.missing) == (
        ScheduleReason.UNSCHEDULABLE,
        {"m1": 2, "m2": 4},
        4,
    )
    assert decision.message == (
        "failed to assign replicas: failed to scale up: "
        "Clusters available replicas 6 are not enough to schedule. 6 of 10 replicas are placed."
    )


def test_partial_placement_prefers_a_group_that_takes_all():
    given = binding(5, DYNAMIC, placement=GROUPS)

    whole = schedule(given, clusters("m1", "m2"), rooms(m1=2, m2=9), PARTIAL)
    partly = schedule(given, clusters("m1", "m2"), rooms(m1=2, m2=3), PARTIAL)

    assert (whole.group, whole.missing) == ("away", 0)
    assert (partly.group, placed(partly), partly.missing) == ("home", {"m1": 2}, 3)


def test_nothing_at_all_is_no_partial_placement():
    decision = schedule(binding(5, DYNAMIC), clusters("m1"), rooms(m1=0), PARTIAL)

    assert (decision.targets, decision.is_partial) == (None, False)


# Price


def priced(**prices):
    return [cluster(name, price=price) for name, price in prices.items()]


def by_price(given, known, cost, **prices):
    return placed(schedule(given, priced(**prices), known, SchedulingSettings(cost=cost)))


def test_price_is_off_by_default():
    members = priced(m1=9, m2=1)

    assert placed(schedule(binding(3, AGGREGATED), members, rooms(m1=5, m2=5))) == {"m1": 3}


def test_the_cheaper_of_equals_breaks_a_tie():
    rich = rooms(m1=5, m2=5)

    assert by_price(binding(3, AGGREGATED), rich, CostPreference.TIE_BREAK, m1=9, m2=1) == {"m2": 3}
    assert by_price(binding(3, DYNAMIC), rich, CostPreference.TIE_BREAK, m1=9, m2=1) == {"m1": 1, "m2": 2}
    assert by_price(binding(3, AGGREGATED), rooms(m1=6, m2=5), CostPreference.TIE_BREAK, m1=9, m2=1) == {
        "m1": 3
    }


def test_as_a_weight_cheaper_clusters_take_more_but_never_more_than_they_hold():
    assert by_price(binding(12, DYNAMIC), rooms(m1=20, m2=20), CostPreference.WEIGHT, m1=3, m2=1) == {
        "m1": 3,
        "m2": 9,
    }
    assert by_price(binding(30, DYNAMIC), rooms(m1=20, m2=20), CostPreference.WEIGHT, m1=3, m2=1) == {
        "m1": 10,
        "m2": 20,
    }
    assert by_price(binding(8, AGGREGATED), rooms(m1=20, m2=9), CostPreference.WEIGHT, m1=3, m2=1) == {
        "m2": 8
    }


def test_what_has_no_price_counts_as_dear():
    assert by_price(binding(4, AGGREGATED), rooms(m1=9, m2=9), CostPreference.WEIGHT, m1=None, m2=7) == {
        "m2": 4
    }
    assert by_price(binding(4, DYNAMIC), rooms(m1=9, m2=9), CostPreference.WEIGHT, m1=None, m2=None) == {
        "m1": 2,
        "m2": 2,
    }


def test_price_chooses_among_clusters_of_a_constraint():
    given = binding(2, DYNAMIC, placement={"spreadConstraints": ONE})

    assert by_price(given, rooms(m1=9, m2=3), CostPreference.WEIGHT, m1=9, m2=1) == {"m2": 2}
    assert by_price(given, rooms(m1=9, m2=3), CostPreference.OFF, m1=9, m2=1) == {"m1": 2}


def test_a_decision_says_that_price_counted():
    decision = schedule(
        binding(4, DYNAMIC),
        priced(m1=2, m2=1),
        rooms(m1=9, m2=9),
        SchedulingSettings(cost=CostPreference.WEIGHT),
    )

    assert decision.attempts[0].divisions[0].notes == (
        "weights are room times the lowest price over the cluster's",
    )


# Tainted targets


def test_a_tainted_target_keeps_its_replicas_and_gets_no_more_on_request():
    taints = [{"key": "cluster.karmada.io/not-ready", "effect": "NoSchedule"}]
    members = [cluster("m1", taints=taints), cluster("m2")]
    given, known = binding(6, DYNAMIC, previous={"m1": 2}), rooms(m1=9, m2=9)

    assert placed(schedule(given, members, known)) == {"m1": 4, "m2": 2}
    assert placed(schedule(given, members, known, SchedulingSettings(spare_tainted=True))) == {
        "m1": 2,
        "m2": 4,
    }
