"""Random bindings on random clusters: the scheduler and its slow twin decide the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karmada.binding import read_binding
from karpool.model.karmada.member_cluster import read_cluster
from karpool.scheduler.cycle.decision import ClusterAvailability, ScheduleReason, SchedulingMode
from karpool.scheduler.cycle.schedule import FilteredClusters, NeedsEstimates, decide, plan_cycle
from karpool.scheduler.cycle.settings import SchedulingSettings
from tests.scheduler import naive
from tests.scheduler.deciding import schedule
from tests.scheduler.placing import AGGREGATED, DUPLICATED, DYNAMIC, STATIC, raw_binding, raw_cluster

NAMES = [f"member{number}" for number in range(1, 7)]
SOME = st.lists(st.sampled_from(NAMES), max_size=5, unique=True)
SPREADS = [(), (), (), ("cluster",), ("cluster",), ("region", "cluster"), ("zone", "cluster"), ("provider",)]
TAINT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
SOFT = {"key": "dedicated", "effect": "PreferNoSchedule"}


@st.composite
def fleets(draw):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True))
    return [
        raw_cluster(
            name,
            region=draw(st.sampled_from(["eu", "us", "ap", "eu", "us", "ap", ""])),
            provider=draw(st.sampled_from(["aws", ""])),
            zones=draw(st.sampled_from([None, ["a"], ["a", "b"]])),
            labels={"tier": draw(st.sampled_from(["gold", "silver"]))},
            taints=draw(st.sampled_from([None, None, None, None, [SOFT], [TAINT]])),
            apis=draw(st.sampled_from([(("apps/v1", "Deployment"),)] * 9 + [(("v1", "ConfigMap"),)])),
            deleting=draw(st.integers(0, 9)) == 0,
        )
        for name in names
    ]


@st.composite
def affinities(draw):
    affinity = {}
    if draw(st.integers(0, 2)) == 0:
        affinity["clusterNames"] = draw(SOME)
    if draw(st.integers(0, 5)) == 0:
        affinity["exclude"] = draw(SOME)
    if draw(st.integers(0, 5)) == 0:
        affinity["labelSelector"] = {"matchLabels": {"tier": "gold"}}
    if draw(st.integers(0, 5)) == 0:
        key = draw(st.sampled_from(["region", "provider", "zone"]))
        operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
        term = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            term["values"] = draw(st.sampled_from([["eu"], ["a"], ["aws", "us"]]))
        affinity["fieldSelector"] = {"matchExpressions": [term]}
    return affinity


@st.composite
def placements(draw):
    placement = {}
    scheduling = draw(st.sampled_from([None, DUPLICATED, STATIC, DYNAMIC, DYNAMIC, AGGREGATED, AGGREGATED]))
    overflows = 2 if scheduling in (DYNAMIC, AGGREGATED) else 0
    if draw(st.booleans()):
        placement["clusterAffinity"] = draw(affinities())
    else:
        placement["clusterAffinities"] = [
            {
                **draw(affinities()),
                "affinityName": f"group{number}",
                "overflowAffinities": [draw(affinities()) for _ in range(draw(st.integers(0, overflows)))],
            }
            for number in range(draw(st.integers(1, 3)))
        ]
    if draw(st.booleans()):
        placement["clusterTolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    spread = draw(st.sampled_from(SPREADS))
    constraints = []
    for field in spread:
        least = draw(st.integers(1, 2))
        constraints.append(
            {"spreadByField": field, "minGroups": least, "maxGroups": least + draw(st.integers(0, 2))}
        )
    placement["spreadConstraints"] = constraints
    if scheduling is STATIC and draw(st.booleans()):
        rules = [
            {
                "targetCluster": {"clusterNames": [draw(st.sampled_from(NAMES))]},
                "weight": draw(st.integers(1, 9)),
            }
            for _ in range(draw(st.integers(1, 4)))
        ]
        scheduling = {**STATIC, "weightPreference": {"staticWeightList": rules}}
    if scheduling is not None:
        placement["replicaScheduling"] = scheduling
    return placement


@st.composite
def cases(draw):
    placement = draw(placements())
    groups = [each["affinityName"] for each in placement.get("clusterAffinities", ())]
    binding = raw_binding(
        draw(st.integers(0, 25)),
        previous=draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9), max_size=4)),
        placement=placement,
        uid=draw(st.sampled_from(["", "d43fdeeb-d750-4e2b-bee3-64eb94534f4c"])),
        workload=draw(st.integers(0, 5)) > 0,
        evicting=draw(st.sampled_from([(), (), ("member1",)])),
        status={"schedulerObservingAffinityName": draw(st.sampled_from(["", *groups]))} if groups else {},
    )
    available = {name: draw(st.integers(0, 20)) for name in NAMES}
    return binding, draw(fleets()), available, draw(st.booleans())


@given(cases())
def test_decisions_are_those_of_the_twin(case):
    raw, fleet, available, fresh = case
    known = {name: ClusterAvailability(replicas, "test") for name, replicas in available.items()}

    found = schedule(
        read_binding(raw),
        [read_cluster(each) for each in fleet],
        known,
        mode=SchedulingMode.FRESH if fresh else SchedulingMode.STEADY,
    )

    try:
        group, replicas = naive.schedule(raw, fleet, available, fresh=fresh)
    except naive.Failed as error:
        assert found.reason == error.reason
        assert found.message.endswith(error.message)
        assert found.targets == (() if error.reason == "NoClusterFit" else None)
    else:
        assert found.reason is ScheduleReason.SUCCESS, found.message
        assert {target.name: target.replicas for target in found.targets} == replicas
        assert found.group == group


@given(cases())
def test_a_second_pass_changes_nothing(case):
    """A result is kept, entry by entry. By region it may move once: locality counts there."""
    raw, fleet, available, _ = case
    clusters = [read_cluster(each) for each in fleet]
    known = {name: ClusterAvailability(replicas, "test") for name, replicas in available.items()}
    first = schedule(read_binding(raw), clusters, known)
    if not first.is_success:
        return
    placed = replace(read_binding(raw), targets=first.targets, observing_affinity_name=first.group)
    held = placed.assigned()
    left = {
        name: ClusterAvailability(max(replicas - held.get(name, 0), 0), "test")
        for name, replicas in available.items()
    }

    second = schedule(placed, clusters, left)

    if placed.placement.spread_by("region") is None:
        assert second.targets == first.targets


@given(cases())
def test_partial_placement_places_all_that_fits_and_says_what_is_missing(case):
    raw, fleet, available, _ = case
    binding, clusters = read_binding(raw), [read_cluster(each) for each in fleet]
    known = {name: ClusterAvailability(replicas, "test") for name, replicas in available.items()}
    whole, partly = (
        schedule(binding, clusters, known, SchedulingSettings(partial=each)) for each in (False, True)
    )

    if whole.is_success:
        assert partly.targets == whole.targets
    if partly.is_partial:
        placed = {target.name: target.replicas for target in partly.targets}
        held = binding.assigned()
        assert partly.missing == binding.replicas - sum(placed.values()) > 0
        assert all(count <= held.get(name, 0) + available[name] for name, count in placed.items())
        assert f"{sum(placed.values())} of {binding.replicas} replicas are placed" in partly.message


@given(cases())
def test_only_clusters_that_passed_the_filters_are_asked_and_each_once(case):
    raw, fleet, available, fresh = case
    clusters = [read_cluster(each) for each in fleet]
    plan = plan_cycle(
        read_binding(raw), clusters, mode=SchedulingMode.FRESH if fresh else SchedulingMode.STEADY
    )
    known, asked = {}, []
    while isinstance(step := decide(plan, known), NeedsEstimates):
        assert step.clusters
        for cluster in step.clusters:
            asked.append(cluster.name)
            known[cluster.name] = ClusterAvailability(available[cluster.name], "test")

    refused = [{each.about for each in attempt.refused} for attempt in step.attempts]
    assert len(asked) == len(set(asked))
    assert not set(asked) & set.intersection(*refused)
    everything = {name: ClusterAvailability(replicas, "test") for name, replicas in available.items()}
    mode = SchedulingMode.FRESH if fresh else SchedulingMode.STEADY
    assert step == schedule(read_binding(raw), clusters, everything, mode=mode)


@pytest.mark.long
@given(st.lists(cases(), min_size=2, max_size=4), fleets(), st.booleans())
def test_filtered_clusters_that_were_kept_are_those_of_every_binding(several, fleet, is_replaced):
    """Bindings of one placement and kind share what the filters let through, until the clusters change."""
    kept = FilteredClusters()
    clusters = tuple(read_cluster(each) for each in fleet)
    for raw, other_fleet, available, fresh in (*several, *several):
        binding = read_binding(raw)
        if is_replaced:
            clusters = tuple(read_cluster(each) for each in other_fleet)
        mode = SchedulingMode.FRESH if fresh else SchedulingMode.STEADY
        known = {name: ClusterAvailability(replicas, "test") for name, replicas in available.items()}
        with_kept = plan_cycle(binding, clusters, mode=mode, filtered=kept)

        assert decide(with_kept, known) == decide(plan_cycle(binding, clusters, mode=mode), known)
