"""Vectors of the estimator's wire, flags and addresses."""

from collections.abc import Mapping
from typing import Any

from karpool.estimator.serving.options import EstimatorOptions
from karpool.manager.options import InvalidOptions, read_options
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, ReplicaRequirements
from karpool.wire import addresses
from karpool.wire import server_protocol as wire
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, ReplicasRequest, UnschedulableRequest
from tests.vectors.registry import Case, kind

_READERS = {
    "MaxAvailableReplicasRequest": wire.read_replicas,
    "MaxAvailableComponentSetsRequest": wire.read_component_sets,
    "UnschedulableReplicasRequest": wire.read_unschedulable,
}
_WRITERS = {
    "maxReplicas": wire.write_replicas,
    "maxSets": wire.write_component_sets,
    "unschedulableReplicas": wire.write_unschedulable,
}


@kind("wire_decode")
def answer_decode(case: Case) -> Mapping[str, Any]:
    read = _READERS[case["input"]["message"]]
    try:
        return shown(read(bytes.fromhex(case["input"]["hex"])))
    except Invalid:
        return {"error": True}


@kind("wire_encode")
def answer_encode(case: Case) -> Mapping[str, Any]:
    ((name, amount),) = case["input"]["value"].items()
    return {"hex": _WRITERS[name](amount).hex()}


@kind("service_resolution")
def answer_resolution(case: Case) -> Mapping[str, Any]:
    given = case["input"]
    try:
        found = addresses.resolve(given["service"], given["namespace"], given["service_name"], given["port"])
    except Invalid:
        return {"error": True}
    return {"addresses": found}


@kind("options_validation")
def answer_options(case: Case) -> Mapping[str, Any]:
    try:
        read_options(EstimatorOptions, case["input"]["options"])
        errors: list[str] = []
    except InvalidOptions as refused:
        errors = [str(error) for error in refused.errors]
    return {"errors": errors, "error_count": len(errors)}


def shown(request: Any) -> Mapping[str, Any]:
    match request:
        case ReplicasRequest():
            return {
                "cluster": request.cluster,
                "replica_requirements": _requirements(request.requirements),
                "assumed_workloads": [_assumed(each) for each in request.assumed],
            }
        case ComponentSetsRequest():
            return {
                "cluster": request.cluster,
                "namespace": request.namespace,
                "components": [_component(component) for component in request.components],
                "assumed_workloads": [_assumed(each) for each in request.assumed],
            }
        case UnschedulableRequest():
            resource = request.resource
            return {
                "cluster": request.cluster,
                "resource": resource
                and {
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                    "namespace": resource.namespace,
                    "name": resource.name,
                },
                "unschedulable_threshold_ns": request.threshold_ns,
            }
    raise AssertionError(request)


def _assumed(workload: AssumedWorkload) -> Mapping[str, Any]:
    return {
        "namespace": workload.namespace,
        "components": [_component(component) for component in workload.components],
    }


def _component(component: Component) -> Mapping[str, Any]:
    return {
        "name": component.name,
        "replicas": component.replicas,
        "replica_requirements": _requirements(component.requirements),
    }


def _requirements(wanted: ReplicaRequirements | None) -> Mapping[str, Any] | None:
    if wanted is None:
        return None
    return {
        "resource_request": dict(wanted.resource_request),
        "namespace": wanted.namespace,
        "priority_class_name": wanted.priority_class_name,
        "node_claim": _claim(wanted.node_claim),
    }


def _claim(claim: ReplicaNodeClaim | None) -> Mapping[str, Any] | None:
    if claim is None:
        return None
    affinity = claim.node_affinity
    return {
        "node_selector": dict(claim.node_selector),
        "node_affinity": affinity
        and {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        _condition(expression) for expression in term.match_expressions or ()
                    ],
                    "matchFields": [_condition(field) for field in term.match_fields or ()],
                }
                for term in affinity.node_selector_terms or ()
            ]
        },
        "tolerations": [
            {
                "key": toleration.key,
                "operator": toleration.operator,
                "value": toleration.value,
                "effect": toleration.effect,
                "tolerationSeconds": toleration.toleration_seconds,
            }
            for toleration in claim.tolerations
        ],
    }


def _condition(each: Any) -> Mapping[str, Any]:
    return {"key": each.key, "operator": each.operator, "values": list(each.values or ())}
