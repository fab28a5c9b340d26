"""Encodes questions for servers of every version, and decodes their answers.

Servers up to 1.17 read the typed fields, later ones the serialised fields, so both are sent. A request is
joined from parts that are encoded once: the requirements of a replica are the same for all clusters, and a
promise is the same for all questions. Answers are not trusted: bytes that are not a message raise
`Malformed`, and only known fields are used.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, ReplicaRequirements
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.requirements import NodeSelector
from karpool.model.taints import Toleration
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.proto import summary_pb2
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload, RoomParts, WorkloadReference
from karpool.wire.server_protocol import parse

_LENGTH_DELIMITED = 2
_ASSUMED_OF_REPLICAS = 3
_ASSUMED_OF_SETS = 4


@dataclass(frozen=True, slots=True)
class EstimateAnswer:
    """The answer of an estimator. `arrived` is empty for a Go server, or without overcommit protection."""

    value: int
    arrived: tuple[ArrivedReplicas, ...] = ()
    parts: RoomParts | None = None  # None: not reported by the server


@dataclass(frozen=True, slots=True)
class CapacitySummary:
    """Sums of a cluster: milli-CPU, and whole units of all other resources."""

    allocatable: Mapping[str, int]  # of existing nodes
    allocated: Mapping[str, int]
    potential: Mapping[str, int]  # upper bound for nodes that are launching or could be launched


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """An encoded question without cluster and promises; it is the same for every cluster."""

    for_sets: bool
    body: bytes

    def to(self, cluster: str, promises: Iterable[bytes] = ()) -> bytes:
        """Return the whole request. `promises` come from `encode_assumed`."""
        number = _ASSUMED_OF_SETS if self.for_sets else _ASSUMED_OF_REPLICAS
        return b"".join(
            (_field(1, cluster.encode()), self.body, *(_field(number, promise) for promise in promises))
        )

    def read(self, data: bytes) -> EstimateAnswer:
        """Decode the answer. Raises Malformed."""
        if self.for_sets:
            sets = parse(pb.MaxAvailableComponentSetsResponse, data)
            return EstimateAnswer(sets.max_sets, _arrived(sets.arrived), _parts(sets))
        replicas = parse(pb.MaxAvailableReplicasResponse, data)
        return EstimateAnswer(replicas.max_replicas, _arrived(replicas.arrived), _parts(replicas))


def ask_replicas(requirements: ReplicaRequirements | None) -> EncodedQuestion:
    message = None if requirements is None else _replica_requirements(requirements)
    request = pb.MaxAvailableReplicasRequest(replica_requirements=message, wants_parts=True)
    return EncodedQuestion(False, request.SerializeToString(deterministic=True))


def ask_component_sets(components: Iterable[Component], namespace: str = "") -> EncodedQuestion:
    message = pb.MaxAvailableComponentSetsRequest(
        components=[_component(component) for component in components],
        namespace=namespace,
        wants_parts=True,
    )
    return EncodedQuestion(True, message.SerializeToString(deterministic=True))


def encode_assumed(assumed: AssumedWorkload) -> bytes:
    reference = None
    if assumed.workload is not None:
        owner = assumed.workload
        reference = pb.WorkloadReference(
            api_version=owner.api_version, kind=owner.kind, name=owner.name, desired=owner.desired
        )
    message = pb.AssumedWorkload(
        namespace=assumed.namespace,
        components=[_component(component) for component in assumed.components],
        workload=reference,
    )
    return message.SerializeToString(deterministic=True)


def write_unschedulable(cluster: str, resource: WorkloadReference, threshold_ns: int) -> bytes:
    reference = pb.ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=resource.namespace,
        name=resource.name,
    )
    message = pb.UnschedulableReplicasRequest(
        cluster=cluster, resource=reference, unschedulable_threshold=threshold_ns
    )
    return message.SerializeToString()


def read_unschedulable(data: bytes) -> int:
    """Decode the number of unschedulable replicas. Raises Malformed."""
    return parse(pb.UnschedulableReplicasResponse, data).unschedulable_replicas


def _arrived(messages: Iterable[pb.Arrived]) -> tuple[ArrivedReplicas, ...]:
    return tuple(ArrivedReplicas(tuple(message.bound), message.waiting) for message in messages)


def _parts(
    answer: pb.MaxAvailableReplicasResponse | pb.MaxAvailableComponentSetsResponse,
) -> RoomParts | None:
    """Return the parts of an answer; values that are impossible become None."""
    if not answer.HasField("parts"):
        return None
    parts = answer.parts
    price = parts.price_per_hour if parts.HasField("price_per_hour") else None
    if price is not None and not (0 <= price < math.inf):
        price = None
    return RoomParts(max(0, parts.existing), parts.unlimited, price)


def _component(component: Component) -> pb.Component:
    requirements = component.requirements
    message = None
    if requirements is not None:
        message = pb.ComponentReplicaRequirements(
            node_claim=_claim(requirements.node_claim),
            resource_request=_quantities(requirements),
            priority_class_name=requirements.priority_class_name,
            resource_request_bytes=_serialised(requirements),
        )
    return pb.Component(name=component.name, replicas=component.replicas, replica_requirements=message)


def _replica_requirements(requirements: ReplicaRequirements) -> pb.ReplicaRequirements:
    return pb.ReplicaRequirements(
        node_claim=_claim(requirements.node_claim),
        resource_request=_quantities(requirements),
        namespace=requirements.namespace,
        priority_class_name=requirements.priority_class_name,
        resource_request_bytes=_serialised(requirements),
    )


def _quantities(requirements: ReplicaRequirements) -> dict[str, pb.Quantity]:
    return {name: pb.Quantity(string=text) for name, text in requirements.resource_request.items()}


def _serialised(requirements: ReplicaRequirements) -> dict[str, bytes]:
    return {name: quantity.SerializeToString() for name, quantity in _quantities(requirements).items()}


def _claim(claim: ReplicaNodeClaim | None) -> pb.NodeClaim | None:
    if claim is None:
        return None
    affinity = None if claim.node_affinity is None else _node_selector(claim.node_affinity)
    tolerations = [_toleration(toleration) for toleration in claim.tolerations]
    return pb.NodeClaim(
        node_affinity=affinity,
        node_selector=claim.node_selector,
        tolerations=tolerations,
        node_affinity_bytes=b"" if affinity is None else affinity.SerializeToString(),
        tolerations_bytes=[toleration.SerializeToString() for toleration in tolerations],
    )


def _node_selector(selector: NodeSelector) -> pb.NodeSelector:
    return pb.NodeSelector(
        node_selector_terms=[
            pb.NodeSelectorTerm(
                match_expressions=[_condition(expression) for expression in term.match_expressions or ()],
                match_fields=[_condition(field) for field in term.match_fields or ()],
            )
            for term in selector.node_selector_terms or ()
        ]
    )


def _condition(condition: SelectorRequirement) -> pb.NodeSelectorRequirement:
    return pb.NodeSelectorRequirement(
        key=condition.key, operator=condition.operator, values=condition.values or ()
    )


def _toleration(toleration: Toleration) -> pb.Toleration:
    return pb.Toleration(
        key=toleration.key,
        operator=toleration.operator,
        value=toleration.value,
        effect=toleration.effect,
        toleration_seconds=toleration.toleration_seconds,
    )


def _field(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited field; a message is its joined fields."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_summary(data: bytes) -> CapacitySummary:
    """Decode a summary. Raises Malformed, and Invalid for an amount below zero."""
    message = parse(summary_pb2.SummarizeResponse, data)
    amounts = {
        "allocatable": dict(message.allocatable),
        "allocated": dict(message.allocated),
        "potential": dict(message.potential),
    }
    for part, units_by_name in amounts.items():
        for name, units in units_by_name.items():
            if units < 0:
                raise Invalid(f"{part}.{name}", units, "an amount of a summary is not below zero")
    return CapacitySummary(**amounts)
