import json

import pytest

from karpool.model.karmada.names import APPLIED_PLACEMENT
from karpool.scheduler.cycle.decision import SchedulingMode
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.cycle.triggers import ScheduleType, TriggerAction, trigger
from tests.scheduler.placing import DUPLICATED, DYNAMIC, binding

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
NAMED = {"clusterAffinities": [{"affinityName": "a", "clusterNames": ["m1"]}, {"affinityName": "b"}]}


def settled(replicas=4, scheduling=DYNAMIC, **given):
    """A binding whose placement was applied, with four replicas on one cluster."""
    given.setdefault("previous", {"m1": 4})
    placement = {**given.get("placement", {}), "replicaScheduling": scheduling}
    applied = given.pop("applied", placement)
    meta = given.pop("meta", {})
    text = applied if isinstance(applied, str) else json.dumps(applied)
    meta = {"annotations": {APPLIED_PLACEMENT: text}, **meta}
    status = {"schedulerObservedGeneration": 1, "lastScheduledTime": EARLY, **given.pop("status", {})}
    return binding(replicas, scheduling, meta=meta, status=status, **given)


def row(given, deleting=(), **settings):
    found = trigger(given, deleting, SchedulingSettings(**settings))
    return found.action, found.schedule_type, found.mode


RECONCILE = (TriggerAction.SCHEDULE, ScheduleType.RECONCILE, SchedulingMode.STEADY)
SCALE = (TriggerAction.SCHEDULE, ScheduleType.SCALE, SchedulingMode.STEADY)
FRESH = (TriggerAction.SCHEDULE, ScheduleType.RECONCILE, SchedulingMode.FRESH)
NOTHING = (TriggerAction.NOTHING, ScheduleType.RECONCILE, SchedulingMode.STEADY)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, NOTHING, id="nothing changed"),
        pytest.param({"meta": {"annotations": {}}}, RECONCILE, id="never scheduled"),
        pytest.param({"applied": {"replicaScheduling": DUPLICATED}}, RECONCILE, id="another strategy"),
        pytest.param({"applied": "{"}, NOTHING, id="an annotation that cannot be read"),
        pytest.param({"applied": "[]"}, NOTHING, id="an annotation that is no object"),
        pytest.param({"replicas": 5}, SCALE, id="scaled"),
        pytest.param({"previous": {"m1": 3}}, SCALE, id="descheduled or evicted"),
        pytest.param({"spec": {"rescheduleTriggeredAt": LATE}}, FRESH, id="a person asked"),
        pytest.param(
            {"spec": {"rescheduleTriggeredAt": EARLY}}, NOTHING, id="in the same second is not later"
        ),
        pytest.param({"spec": {"rescheduleTriggeredAt": "soon"}}, NOTHING, id="a time that cannot be read"),
        pytest.param(
            {"spec": {"rescheduleTriggeredAt": LATE}, "status": {"lastScheduledTime": None}},
            NOTHING,
            id="asked before the first success",
        ),
        pytest.param({"scheduling": DUPLICATED}, RECONCILE, id="duplicated is looked at every time"),
        pytest.param(
            {"scheduling": DUPLICATED, "replicas": 2}, SCALE, id="duplicated with other replicas than asked"
        ),
        pytest.param({"replicas": 0, "previous": {}, "workload": False}, RECONCILE, id="not a workload"),
        pytest.param(
            {"meta": {"generation": 2}},
            (TriggerAction.OBSERVE, ScheduleType.RECONCILE, SchedulingMode.STEADY),
            id="only the generation moved",
        ),
        pytest.param(
            {"meta": {"deletionTimestamp": EARLY}},
            (TriggerAction.REFUSE, ScheduleType.RECONCILE, SchedulingMode.STEADY),
            id="deleting",
        ),
    ],
)
def test_row(given, expected):
    assert row(settled(**given)) == expected


def test_a_deleting_cluster_of_the_result_is_left():
    assert row(settled(), {"m1"}) == RECONCILE
    assert row(settled(), {"m2"}) == NOTHING


def test_being_asked_by_a_person_makes_any_reason_fresh():
    both = settled(replicas=7, spec={"rescheduleTriggeredAt": LATE})

    assert row(both) == (TriggerAction.SCHEDULE, ScheduleType.SCALE, SchedulingMode.FRESH)


def test_a_refusal_says_which_binding():
    deleting = settled(meta={"deletionTimestamp": EARLY})

    assert (
        trigger(deleting, (), SchedulingSettings()).why
        == "skip schedule deleting resourceBinding: default/web-deployment"
    )


def test_components_without_a_place_are_scheduled_behind_their_gate():
    parts = {"components": [{"name": "a", "replicas": 1}]}
    waiting = settled(replicas=0, previous={}, spec=parts)

    assert row(waiting) == NOTHING
    assert row(waiting, multiple_pod_templates=True) == SCALE


@pytest.mark.parametrize(
    ("applied", "now", "observing", "changed"),
    [
        pytest.param(
            {"clusterAffinity": {}}, {"clusterAffinity": None}, "", False, id="empty and null are absent"
        ),
        pytest.param(
            {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 0}]},
            {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1}]},
            "",
            False,
            id="zero is absent",
        ),
        pytest.param(
            {"clusterTolerations": [{"key": "a", "tolerationSeconds": 0}]},
            {"clusterTolerations": [{"key": "a"}]},
            "",
            True,
            id="zero seconds are not",
        ),
        pytest.param({"futureField": 1}, {}, "", False, id="fields nobody knows do not count"),
        pytest.param(
            NAMED, {**NAMED, "clusterTolerations": [{"key": "a"}]}, "a", True, id="tolerations count"
        ),
        pytest.param(
            NAMED,
            {"clusterAffinities": [NAMED["clusterAffinities"][0], {"affinityName": "b", "exclude": ["m1"]}]},
            "a",
            False,
            id="another group than the one in use",
        ),
        pytest.param(
            NAMED,
            {"clusterAffinities": [{"affinityName": "a", "clusterNames": ["m2"]}, {"affinityName": "b"}]},
            "a",
            True,
            id="the group in use",
        ),
        pytest.param(
            NAMED, {"clusterAffinities": [{"affinityName": "b"}]}, "a", True, id="the group in use is gone"
        ),
        pytest.param(
            NAMED, {"clusterAffinities": [NAMED["clusterAffinities"][0]]}, "", True, id="no group in use yet"
        ),
    ],
)
def test_placement_changes(applied, now, observing, changed):
    given = settled(
        placement=now,
        applied={**applied, "replicaScheduling": DYNAMIC},
        status={"schedulerObservingAffinityName": observing},
    )

    assert row(given) == (RECONCILE if changed else NOTHING)
