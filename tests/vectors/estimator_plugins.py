"""Vectors of the estimator's plugins, their aggregation, and whole calls."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.nodes.node_facts import claim_facts
from karpool.cluster.pods.waiting_store import WaitingPod, waiting_since
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.plugins import registry
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import (
    UNLIMITED,
    Estimate,
    EstimateCode,
    ExtensionPoint,
    PluginResult,
    PluginRole,
    merge_results,
    no_opinion,
)
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.plugins.resource_quota import ResourceQuotaEstimator
from karpool.estimator.providers.karpenter_limits import KarpenterLimitsProvider
from karpool.estimator.question import EstimateQuestion
from karpool.estimator.serving.service import WrongCluster, check_cluster
from karpool.estimator.serving.unschedulable import (
    PodController,
    UnsupportedKind,
    check_supported,
    of_deployment,
)
from karpool.manager.feature_gates import OVERCOMMIT_PROTECTION, estimator_gates
from karpool.model import quantity
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import (
    Component,
    ReplicaNodeClaim,
    ReplicaRequirements,
    requirements,
)
from karpool.model.karpenter.objects import NodeClaim as KarpenterClaim
from karpool.model.karpenter.objects import NodePool
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import Condition, OwnerReference, decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.resource_quota import ResourceQuota
from karpool.model.kubernetes.times import rfc3339
from karpool.model.requirements import NodeSelector
from karpool.model.taints import Toleration
from karpool.packing.tables.room import Room
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, ReplicasRequest, WorkloadReference
from tests.estimator.pictures import in_room
from tests.vectors.estimator import node_row
from tests.vectors.registry import Case, includes, kind

NOW = 1_767_225_600.0
Given = Mapping[str, Any]


@kind("rpc_max_available_replicas")
def answer_call(case: Case) -> Given:
    given = case["input"]
    asked = given["request"]
    switched = ",".join(f"{name}={value}" for name, value in given.get("feature_gates", {}).items())
    plugins = registry.build(registry.BY_DEFAULT, registry.PluginSettings(gates=estimator_gates(switched)))
    try:
        check_cluster(asked["cluster"], [given["server_cluster_name"]])
    except WrongCluster as error:
        return {"grpc_code": "UNKNOWN", "message": str(error)}
    request = ReplicasRequest(asked["cluster"], wanted(asked.get("replica_requirements")))
    protected = estimator_gates(switched)[OVERCOMMIT_PROTECTION]
    assumed = assumed_workloads(asked) if protected else ()
    outcome = Framework(plugins.ours).run_trusted(EstimateQuestion(request, in_room(cluster(given)), assumed))
    if outcome.code is EstimateCode.ERROR:
        return {"grpc_code": "UNKNOWN", "message": f"failed to estimate replicas: {outcome.reasons}"}
    return {"max_replicas": outcome.answer}


@kind("node_resource_components")
def answer_node_components(case: Case) -> Given:
    given = case["input"]
    plugin = NodeResourceEstimator(enabled=given.get("enabled", True))
    try:
        found = plugin.estimate_components(sets_question(given, in_room(cluster(given))))
    except Invalid as error:
        found = Estimate(0, EstimateCode.ERROR, (str(error),))
    return told("sets", found)


@kind("resource_quota_replicas")
def answer_quota_replicas(case: Case) -> Given:
    given = case["input"]
    request = ReplicasRequest("c", wanted(given.get("replica_requirements")))
    question = EstimateQuestion(request, in_room(cluster({}), quotas(given)), assumed_workloads(given))
    return told("replicas", quota_plugin(given).estimate(question))


@kind("resource_quota_components")
def answer_quota_components(case: Case) -> Given:
    given = case["input"]
    return told(
        "sets",
        quota_plugin(given).estimate_components(sets_question(given, in_room(cluster({}), quotas(given)))),
    )


def same_reasons(expected: Given, actual: Given) -> bool:
    expected = dict(expected)
    reasons = expected.pop("reasons_unordered", None)
    counted = reasons is None or Counter(reasons) == Counter(actual["reasons_unordered"])
    return counted and includes(expected, actual)


@kind("framework_replicas", same=same_reasons)
def answer_framework_replicas(case: Case) -> Given:
    return aggregated(case["input"]["plugins"], ExtensionPoint.REPLICAS)


@kind("framework_components", same=same_reasons)
def answer_framework_components(case: Case) -> Given:
    return aggregated(case["input"]["plugins"], ExtensionPoint.COMPONENTS)


def aggregated(plugins: Iterable[Given], point: ExtensionPoint) -> Given:
    """Karmada knows no sources: all its plugins cap."""
    verdicts = [
        PluginResult(
            plugin["name"],
            PluginRole.LIMIT,
            Estimate(plugin["value"], EstimateCode(plugin["code"]), tuple(plugin.get("reasons") or ())),
        )
        for plugin in plugins
    ]
    found = merge_results(verdicts, point)
    return {"value": found.value, "code": found.code.value, "reasons_unordered": list(found.reasons)}


@kind("unschedulable_replicas")
def answer_unschedulable(case: Case) -> Given:
    given = case["input"]
    raw = given["workload"]
    meta = raw["metadata"]
    reference = WorkloadReference(raw["apiVersion"], raw["kind"], meta.get("namespace", ""), meta["name"])
    try:
        check_supported(reference, ["Deployment"])  # what Karmada supports; ours supports all by default
    except UnsupportedKind:
        return {"error": True}
    threshold = given["threshold_seconds"]
    overdue = [pod for each in given["pods"] if (pod := waiting(each)) and pod.is_overdue(NOW, threshold)]
    return {
        "unschedulable_replicas": of_deployment(
            decode(raw, PodController), [replica_set(each) for each in given["replica_sets"]], overdue
        )
    }


@kind("pod_unschedulable")
def answer_pod_unschedulable(case: Case) -> Given:
    given = case["input"]
    pod = waiting({"name": "p", "namespace": "n", **given})
    return {"unschedulable": pod is not None and pod.is_overdue(NOW, given["threshold_seconds"])}


@kind("karpenter_limits_model")
def answer_limits(case: Case) -> Given:
    given = case["input"]
    provider = KarpenterLimitsProvider(
        Standing(),
        failure_threshold_seconds=given.get("failure_threshold_seconds", 180),
        recovery_interval_seconds=given.get("recovery_interval_seconds", 600),
    )
    state = given.get("state") or {}
    provider.tracking.failed_since.update(_moments(state.get("failed_age_seconds")))
    provider.tracking.zero_claims_since.update(_moments(state.get("zero_claims_age_seconds")))
    pools = [
        decode({"metadata": {"name": each["name"]}, "spec": {"limits": each.get("limits")}}, NodePool)
        for each in given["node_pools"]
    ]
    claims = [
        claim_facts(
            decode(
                {
                    "metadata": {"name": each["name"], "labels": each.get("labels")},
                    "status": {"allocatable": each.get("allocatable")},
                },
                KarpenterClaim,
            )
        )
        for each in given["node_claims"]
    ]
    asked = (given.get("replica_requirements") or {}).get("resource_request") or {}
    milli = {name: quantity.milli_value(text) for name, text in asked.items()}
    found = provider.total(pools, claims, milli, pending=given.get("pending_bound_pod_in_snapshot", False))
    return {
        "replicas": found.value,
        "failed_pools": sorted(provider.tracking.failed_since),
        "zero_claim_pools": sorted(provider.tracking.zero_claims_since),
    }


@kind("node_autoscaler_sum")
def answer_sum(case: Case) -> Given:
    given = case["input"]
    plugin = NodeAutoscalerEstimator([FixedProvider(each) for each in given["providers"]])
    request = ReplicasRequest("c", wanted(given.get("replica_requirements")))
    return told("replicas", plugin.estimate(EstimateQuestion(request, in_room(cluster(given)))))


@dataclass(frozen=True)
class FixedProvider:
    given: Given
    name: str = "fixed"

    def estimate(self, question: EstimateQuestion) -> Estimate:
        code = EstimateCode(self.given.get("code", "Success"))
        if not self.given.get("available", True) or code is EstimateCode.NOOPERATION:
            return no_opinion()
        return Estimate(self.given["replicas"], code)


@dataclass
class Standing:
    """A clock that stands at NOW."""

    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return NOW

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def _moments(ages: Mapping[str, float] | None) -> dict[str, float]:
    return {name: NOW - age for name, age in (ages or {}).items()}


# From a case to our values


def wanted(given: Given | None) -> ReplicaRequirements | None:
    if given is None:
        return None
    claim = given.get("node_claim")
    affinity = (claim or {}).get("node_affinity")
    return requirements(
        given.get("resource_request"),
        None
        if claim is None
        else ReplicaNodeClaim(
            claim.get("node_selector") or {},
            None if affinity is None else decode(affinity, NodeSelector),
            tuple(decode(each, Toleration) for each in claim.get("tolerations") or ()),
        ),
        given.get("namespace", ""),
        given.get("priority_class_name", ""),
    )


def components(given: Iterable[Given] | None) -> tuple[Component, ...]:
    return tuple(
        Component(each.get("name", ""), each.get("replicas", 0), wanted(each.get("replica_requirements")))
        for each in given or ()
    )


def assumed_workloads(given: Given) -> tuple[AssumedWorkload, ...]:
    return tuple(
        AssumedWorkload(each.get("namespace", ""), components(each.get("components")))
        for each in given.get("assumed_workloads") or ()
    )


def sets_question(given: Given, snapshot: Snapshot) -> EstimateQuestion:
    request = ComponentSetsRequest("c", components(given.get("components")), given.get("namespace", ""))
    return EstimateQuestion(request, snapshot, assumed_workloads(given))


def quota_plugin(given: Given) -> ResourceQuotaEstimator:
    return ResourceQuotaEstimator(enabled=given.get("enabled", True))


def quotas(given: Given) -> Iterable[ResourceQuota]:
    for each in given.get("resource_quotas") or ():
        meta = {"name": each["name"], "namespace": each["namespace"]}
        body = {"metadata": meta, "spec": each.get("spec") or {}, "status": each.get("status") or {}}
        yield decode(body, ResourceQuota)


def cluster(given: Given) -> Room:
    state = ClusterRoom(volumes=False)
    for node in given.get("nodes") or ():
        state.put_node(node_row(node))
    for pod in given.get("pods") or ():
        state.upsert_pod(decode(pod_object(pod), Pod))
    return state.snapshot()


def pod_object(given: Given) -> Given:
    def listed(key: str) -> list[Given]:
        return [{"resources": {"requests": each}} for each in given.get(key) or ()]

    return {
        "metadata": {"name": given["name"], "namespace": "default", "uid": given.get("uid", "")},
        "spec": {
            "nodeName": given.get("node", ""),
            "containers": listed("containers"),
            "initContainers": listed("init_containers"),
            "overhead": given.get("overhead"),
        },
        "status": {"phase": given.get("phase", "")},
    }


def waiting(given: Given) -> WaitingPod | None:
    conditions = [
        Condition(
            type=each["type"],
            status=each["status"],
            reason=each.get("reason"),
            last_transition_time=rfc3339(NOW - each.get("last_transition_age_seconds", 0)),
        )
        for each in given.get("conditions") or ()
    ]
    since = waiting_since(conditions)
    if since is None:
        return None
    key = ObjectKey(given["namespace"], given["name"])
    return WaitingPod(key, given.get("labels") or {}, _controller(given), since)


def replica_set(given: Given) -> PodController:
    meta = {key: given.get(key) for key in ("name", "namespace", "uid", "labels")}
    meta["creationTimestamp"] = rfc3339(NOW - given.get("creation_age_seconds", 0))
    controller = _controller(given)
    if controller is not None:
        meta["ownerReferences"] = [{"kind": controller.kind, "uid": controller.uid, "controller": True}]
    return decode({"metadata": meta, "spec": {"template": given.get("template")}}, PodController)


def _controller(given: Given) -> OwnerReference | None:
    owner = given.get("controller")
    return owner and OwnerReference(kind=owner["kind"], uid=owner["uid"], controller=True)


def told(name: str, found: Estimate) -> Given:
    return {name: min(found.value, UNLIMITED), "code": found.code.value, "reasons": list(found.reasons)}
