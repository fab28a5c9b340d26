"""Vectors of the scheduler: division, selection, the summary estimate, merging, descheduling."""

from collections.abc import Iterable, Mapping
from typing import Any

from karpool.model import resources
from karpool.model.infeasible import Infeasible
from karpool.model.karmada.binding import Binding, BindingKey, TargetCluster
from karpool.model.karmada.member_cluster import read_cluster
from karpool.model.karmada.placement import ReplicaStrategy, SpreadConstraint, read_placement
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements, requirements
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.counting.first_fit import first_fit
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.scheduler.cycle.assignment import Assignment, AssignmentTask, assign
from karpool.scheduler.cycle.components import targets_for
from karpool.scheduler.cycle.decision import (
    ClusterCandidate,
    ClusterSelection,
    EstimatePart,
    NotScheduled,
    SchedulingMode,
)
from karpool.scheduler.cycle.schedule import static_weights
from karpool.scheduler.cycle.selection import (
    RegionCandidates,
    RegionGroup,
    SpreadRules,
    group_score,
    select_by_cluster,
    select_groups,
    select_regions,
)
from karpool.scheduler.cycle.settings import EstimateMergeRule, SchedulingSettings
from karpool.scheduler.cycle.webster import divide
from karpool.scheduler.descheduler.lowering import lower_targets
from karpool.scheduler.estimates import availability, cluster_summary
from karpool.wire.requests import AssumedWorkload
from tests.vectors.registry import Case, includes, kind

Given = Mapping[str, Any]
KEY = BindingKey("ResourceBinding", "default", "b")


def same_error(expected: Given, actual: Given) -> bool:
    """An error is the same when its reason is, and its message contains the words."""
    if "error" not in expected:
        return "error" not in actual and includes_all(expected, actual)
    wanted, found = expected["error"], actual.get("error") or {}
    return wanted["reason"] == found.get("reason") and wanted["message_contains"] in found.get("message", "")


def includes_all(expected: Given, actual: Given) -> bool:
    """A result names every cluster and no others."""
    return includes(expected, actual) and all(
        not isinstance(value, Mapping) or len(value) == len(actual[key]) for key, value in expected.items()
    )


def failed(failure: NotScheduled) -> Given:
    return {"error": {"reason": failure.reason.value, "message": failure.detail}}


@kind("assign", same=same_error)
def answer_assign(case: Case) -> Given:
    chosen = tuple(
        ClusterCandidate(each["name"], each.get("tier", 0), 0, each["available"], held(case, each["name"]))
        for each in case["candidates"]
    )
    is_workload = case.get("workload", True)
    found = assign(chosen, task(case)) if is_workload else Assignment({}, ())
    if isinstance(found, Infeasible):
        return failed(found)
    binding = Binding(KEY, replicas=case["replicas"], requirements=needs({}) if is_workload else None)
    settings = SchedulingSettings(propagate_empty=bool(case.get("propagate_empty")))
    targets = targets_for(binding, settings, found.replicas, [each.name for each in chosen])
    return {"clusters": {target.name: target.replicas for target in targets}}


def task(case: Case) -> AssignmentTask:
    rules = [
        {"targetCluster": {"clusterNames": rule["clusters"]}, "weight": rule["weight"]}
        for rule in case.get("weights") or ()
    ]
    scheduling = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"}
    placement = read_placement(
        {"replicaScheduling": {**scheduling, "weightPreference": {"staticWeightList": rules}}}
    )
    named = {name for rule in case.get("weights") or () for name in rule["clusters"]}
    weights = static_weights(placement, [read_cluster({"metadata": {"name": name}}) for name in named])
    return AssignmentTask(
        ReplicaStrategy(case["strategy"]),
        SchedulingMode(case["mode"]),
        case["replicas"],
        case["uid"],
        [TargetCluster(each["name"], each["replicas"]) for each in case["previous"]],
        weights,
        has_overflow=bool(case.get("overflow")),
    )


def held(case: Case, name: str) -> int:
    return next((each["replicas"] for each in case["previous"] if each["name"] == name), 0)


@kind("dispense", same=same_error)
def answer_dispense(case: Case) -> Given:
    return {"clusters": divide(case["new_replicas"], case["weights"], case["initial"], case["uid"])}


@kind("components")
def answer_components(case: Case) -> Given:
    binding = Binding(
        KEY,
        placement=read_placement({"spreadConstraints": case["spread_constraints"]}),
        components=components(case["components"]),
    )
    settings = SchedulingSettings(multiple_pod_templates=case["multi_template_gate"])
    targets = targets_for(binding, settings, {}, case["candidates"])
    return {"clusters": [target.to_json() for target in targets]}


@kind("select_groups")
def answer_select_groups(case: Case) -> Given:
    groups = [RegionGroup(each["name"], each["value"], each["weight"]) for each in case["groups"]]
    found = select_groups(groups, case["min_groups"], case["max_groups"], case["min_clusters"])
    return {"groups": found and [each.name for each in found]}


@kind("select_by_cluster", same=same_error)
def answer_select_by_cluster(case: Case) -> Given:
    constraint = SpreadConstraint("cluster", "", case["min_groups"], case["max_groups"])
    return selected(select_by_cluster(candidates(case["clusters"]), constraint, case["need_replicas"]))


@kind("select_by_region", same=same_error)
def answer_select_by_region(case: Case) -> Given:
    regions = [
        RegionCandidates(each["name"], each["score"], candidates(each["clusters"]))
        for each in case["regions"]
    ]
    return selected(select_regions(regions, rules(case["region"], case["cluster"])))


@kind("group_score")
def answer_group_score(case: Case) -> Given:
    given = rules(
        {"min_groups": case["min_groups"], "max_groups": 0},
        {"min_groups": case["cluster_min_groups"], "max_groups": 0},
        replicas=case["replicas"],
        is_duplicated=case["duplicated"],
    )
    return {"score": group_score(candidates(case["clusters"]), given)}


def rules(region: Given, cluster: Given, *, replicas: int = 0, is_duplicated: bool = False) -> SpreadRules:
    return SpreadRules(
        SpreadConstraint("region", "", region["min_groups"], region["max_groups"]),
        SpreadConstraint("cluster", "", cluster["min_groups"], cluster["max_groups"]),
        replicas,
        is_duplicated,
    )


def candidates(given: Iterable[Given]) -> list[ClusterCandidate]:
    return [ClusterCandidate(each["name"], 0, each["score"], each["available_total"], 0) for each in given]


def selected(found: ClusterSelection | NotScheduled) -> Given:
    if isinstance(found, Infeasible):
        return failed(found)
    return {"clusters": [each.name for each in found.chosen]}


@kind("general_replicas")
def answer_general_replicas(case: Case) -> Given:
    asked = None if case["requests"] is None else needs(case["requests"])
    return {"replicas": cluster_summary.replicas(summary(case), asked, assumed(case))}


@kind("general_sets")
def answer_general_sets(case: Case) -> Given:
    return {"sets": cluster_summary.sets(summary(case), components(case["components"]), assumed(case))}


def summary(case: Case) -> Any:
    given = case["cluster"]
    models = [
        {
            "grade": each["grade"],
            "ranges": [{"name": name, "min": units} for name, units in each["min"].items()],
        }
        for each in given.get("models") or ()
    ]
    reported = given["summary"]
    if reported is not None:
        reported = {**reported, "allocatableModelings": given.get("modelings")}
    raw = {
        "metadata": {"name": "c"},
        "spec": {"resourceModels": models},
        "status": {"resourceSummary": reported},
    }
    cluster = read_cluster(raw)
    assert not cluster.problems, cluster.problems
    return cluster.summary


def needs(requests: Given | None) -> ReplicaRequirements:
    return requirements(dict(requests or {}))


def components(given: Iterable[Given]) -> tuple[Component, ...]:
    return tuple(
        Component(each.get("name", ""), each["replicas"], needs(each.get("requests"))) for each in given
    )


def assumed(case: Case) -> list[AssumedWorkload]:
    return [AssumedWorkload("", components(each)) for each in case["assumed"]]


@kind("first_fit")
def answer_first_fit(case: Case) -> Given:
    """By the packing kernel. Virtual nodes, which all have 110 slots, have to agree where they can."""
    rows = [NodeRow(f"n{i:06}", {}, (), resources.parse(free)) for i, free in enumerate(case["nodes"])]
    groups = [Group(component.shape, component.replicas) for component in components(case["components"])]
    return {"sets": first_fit(snapshot_of(rows), groups, bound=case["upper_bound"], topology=False).sets}


@kind("merge_available")
def answer_merge(case: Case) -> Given:
    def part(estimator: Given, cluster: str) -> EstimatePart:
        results = {} if estimator.get("error") else estimator["results"]
        return EstimatePart(estimator["name"], results.get(cluster))

    return {
        "available": {
            cluster: availability.merge(
                [part(each, cluster) for each in case["estimators"]], EstimateMergeRule.MIN, case["replicas"]
            ).replicas
            for cluster in case["clusters"]
        }
    }


@kind("deschedule")
def answer_deschedule(case: Case) -> Given:
    targets = [TargetCluster(each["name"], each.get("replicas", 0)) for each in case["clusters"]]
    lowered, _ = lower_targets(targets, case["ready"], case["unschedulable"])
    return {"clusters": [{"name": each.name, "replicas": each.replicas} for each in lowered]}
