"""Decodes requests of every client version into plain values, and encodes answers.

Serialised fields (`...Bytes`) take precedence over their typed peers, field by field, as in the 1.18 server;
clients up to 1.17 send only typed fields. There are three errors, because callers get different answers:
`MalformedMessage` (the bytes are not a message), `MessageTooLarge` (more than an honest client sends), and
`Invalid` (the content cannot be used). The budget bounds time and memory, whatever the sender sends.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from karpool.model import quantity
from karpool.model.errors import Invalid, ModelError
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, ReplicaRequirements
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.model.taints import Toleration
from karpool.wire import requests
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import (
    ArrivedReplicas,
    AssumedOwner,
    AssumedWorkload,
    ComponentSetsRequest,
    ReplicasRequest,
    RoomParts,
    UnschedulableRequest,
    WorkloadReference,
)

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)
MESSAGE_BYTES_MAX = 4 * 1024 * 1024  # the default of gRPC servers, including Go's
# A scheduler that assumes 50 workloads a second for five minutes stays well below all three limits.
_PARTS_MAX = 200_000  # components, resources, values: all parts that cost a few microseconds
_SELECTORS_MAX = 20_000  # label conditions and tolerations: each is checked against every node
_SHAPES_MAX = 4_096  # different pod shapes
# Per template. Real ones have fewer than a hundred terms; a thousand conditions take 10 ms to read.
_TERMS_MAX = 1_000
_VALUES_MAX = 10_000

M = TypeVar("M", bound=Message)


class MalformedMessage(ModelError):
    """The bytes are not a message of the expected type."""


class MessageTooLarge(ModelError):
    """The message causes more work than one of an honest client."""


def read_replicas(data: bytes) -> ReplicasRequest:
    message = parse(pb.MaxAvailableReplicasRequest, data)
    reader = RequestReader()
    requirements = message.replica_requirements if message.HasField("replica_requirements") else None
    return ReplicasRequest(
        message.cluster,
        None if requirements is None else reader.replica_requirements(requirements),
        reader.assumed(message.assumed_workloads),
        message.wants_parts,
    )


def read_component_sets(data: bytes) -> ComponentSetsRequest:
    message = parse(pb.MaxAvailableComponentSetsRequest, data)
    reader = RequestReader()
    return ComponentSetsRequest(
        message.cluster,
        reader.components(message.components, "components"),
        message.namespace,
        reader.assumed(message.assumed_workloads),
        message.wants_parts,
    )


def read_unschedulable(data: bytes) -> UnschedulableRequest:
    message = parse(pb.UnschedulableReplicasRequest, data)
    resource = None
    if message.HasField("resource"):
        reference = message.resource
        resource = WorkloadReference(
            reference.api_version, reference.kind, reference.namespace, reference.name
        )
    return UnschedulableRequest(message.cluster, resource, message.unschedulable_threshold)


def write_replicas(
    amount: int, arrived: Iterable[ArrivedReplicas] = (), parts: RoomParts | None = None
) -> bytes:
    message = pb.MaxAvailableReplicasResponse(
        max_replicas=saturated(amount), arrived=_arrived(arrived), parts=_parts(parts)
    )
    return message.SerializeToString()


def write_component_sets(
    amount: int, arrived: Iterable[ArrivedReplicas] = (), parts: RoomParts | None = None
) -> bytes:
    message = pb.MaxAvailableComponentSetsResponse(
        max_sets=saturated(amount), arrived=_arrived(arrived), parts=_parts(parts)
    )
    return message.SerializeToString()


def _parts(parts: RoomParts | None) -> pb.RoomParts | None:
    if parts is None:
        return None
    return pb.RoomParts(
        existing=saturated(parts.existing), unlimited=parts.is_unlimited, price_per_hour=parts.price_per_hour
    )


def write_unschedulable(amount: int) -> bytes:
    return pb.UnschedulableReplicasResponse(unschedulable_replicas=saturated(amount)).SerializeToString()


def _arrived(arrived: Iterable[ArrivedReplicas]) -> list[pb.Arrived]:
    return [
        pb.Arrived(bound=map(saturated, replicas.bound), waiting=saturated(replicas.waiting))
        for replicas in arrived
    ]


def saturated(amount: int) -> int:
    return max(INT32_MIN, min(INT32_MAX, amount))


def parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(f"{kind.DESCRIPTOR.name} cannot be read: {error}") from None


class RequestReader:
    """Reads the messages of one request within one budget."""

    def __init__(self) -> None:
        self._parts = self._selectors = 0
        self._shapes: set[object] = set()

    def replica_requirements(self, message: pb.ReplicaRequirements) -> ReplicaRequirements:
        return self._requirements(message, "replicaRequirements", message.namespace)

    def components(self, messages: Iterable[pb.Component], path: str) -> tuple[Component, ...]:
        return tuple(self._component(message, f"{path}[{index}]") for index, message in enumerate(messages))

    def assumed(self, messages: Iterable[pb.AssumedWorkload]) -> tuple[AssumedWorkload, ...]:
        return tuple(
            self._assumed(message, f"assumedWorkloads[{index}]") for index, message in enumerate(messages)
        )

    def _assumed(self, message: pb.AssumedWorkload, path: str) -> AssumedWorkload:
        self._spend(1)
        workload = None
        if message.HasField("workload"):
            owner = message.workload
            self._spend(len(owner.desired))
            workload = AssumedOwner(owner.api_version, owner.kind, owner.name, tuple(owner.desired))
        components = self.components(message.components, f"{path}.components")
        return AssumedWorkload(message.namespace, components, workload)

    def _component(self, message: pb.Component, path: str) -> Component:
        self._spend(1)
        if message.replicas < 0:
            raise Invalid(f"{path}.replicas", message.replicas, "must not be negative")
        if not message.HasField("replica_requirements"):
            return Component(message.name, message.replicas)
        requirements = self._requirements(message.replica_requirements, f"{path}.replicaRequirements")
        return Component(message.name, message.replicas, requirements)

    def _requirements(
        self,
        message: pb.ReplicaRequirements | pb.ComponentReplicaRequirements,
        path: str,
        namespace: str = "",
    ) -> ReplicaRequirements:
        try:
            claim = self._claim(message.node_claim, path) if message.HasField("node_claim") else None
            requirements = requests.requirements(
                self._request(message.resource_request_bytes, message.resource_request),
                claim,
                namespace,
                message.priority_class_name,
            )
        except Invalid as error:
            raise error.at(path) from None
        self._shapes.add(requirements.shape)
        if len(self._shapes) > _SHAPES_MAX:
            raise MessageTooLarge(f"{path}: more than {_SHAPES_MAX} different requirements in one request")
        return requirements

    def _request(self, serialised: Mapping[str, bytes], typed: Mapping[str, pb.Quantity]) -> dict[str, str]:
        self._spend(len(serialised) or len(typed))
        if serialised:
            amounts = {name: _quantity(_inner(pb.Quantity, data, name)) for name, data in serialised.items()}
        else:
            amounts = {name: _quantity(message) for name, message in typed.items()}
        for name, text in amounts.items():
            if text.startswith("-") and quantity.nano_value(text) < 0:
                raise Invalid(f"resourceRequest.{name}", text, "must not be negative")
        return amounts

    def _claim(self, message: pb.NodeClaim, path: str) -> ReplicaNodeClaim:
        affinity: pb.NodeSelector | None = None
        if message.node_affinity_bytes:
            affinity = _inner(pb.NodeSelector, message.node_affinity_bytes, "nodeClaim.nodeAffinity")
        elif message.HasField("node_affinity"):
            affinity = message.node_affinity
        tolerations: Iterable[pb.Toleration] = message.tolerations
        if message.tolerations_bytes:
            path = "nodeClaim.tolerations"
            tolerations = [_inner(pb.Toleration, data, path) for data in message.tolerations_bytes]
        selector = dict(message.node_selector)
        _check_cost(path, selector, affinity, message)
        self._select(len(selector))
        return ReplicaNodeClaim(
            selector,
            None if affinity is None else self._node_selector(affinity),
            tuple(self._toleration(toleration) for toleration in tolerations),
        )

    def _node_selector(self, message: pb.NodeSelector) -> NodeSelector:
        return NodeSelector(node_selector_terms=[self._term(term) for term in message.node_selector_terms])

    def _term(self, message: pb.NodeSelectorTerm) -> NodeSelectorTerm:
        return NodeSelectorTerm(
            match_expressions=[self._condition(expression) for expression in message.match_expressions],
            match_fields=[self._condition(field) for field in message.match_fields],
        )

    def _condition(self, message: pb.NodeSelectorRequirement) -> SelectorRequirement:
        values = list(message.values)
        self._select(1)
        self._spend(len(values))
        return SelectorRequirement(key=message.key, operator=message.operator, values=values)

    def _toleration(self, message: pb.Toleration) -> Toleration:
        self._select(1)
        seconds = message.toleration_seconds if message.HasField("toleration_seconds") else None
        return Toleration(
            key=message.key,
            operator=message.operator,
            value=message.value,
            effect=message.effect,
            toleration_seconds=seconds,
        )

    def _spend(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _PARTS_MAX:
            raise MessageTooLarge(f"the request has more than {_PARTS_MAX} parts")

    def _select(self, conditions: int) -> None:
        self._selectors += conditions
        if self._selectors > _SELECTORS_MAX:
            raise MessageTooLarge(f"the request has more than {_SELECTORS_MAX} conditions on nodes")


def _check_cost(
    path: str, selector: Mapping[str, str], affinity: pb.NodeSelector | None, claim: pb.NodeClaim
) -> None:
    """Check how many conditions a template has, before any of it is read. Raises MessageTooLarge."""
    tolerations = max(len(claim.tolerations), len(claim.tolerations_bytes))
    sizes = {"nodeSelector": len(selector), "tolerations": tolerations, "nodeAffinity": 0}
    values = 0
    for term in affinity.node_selector_terms if affinity is not None else ():
        sizes["nodeAffinity"] += 1 + len(term.match_expressions) + len(term.match_fields)
        values += sum(len(condition.values) for condition in (*term.match_expressions, *term.match_fields))
        if sizes["nodeAffinity"] > _TERMS_MAX or values > _VALUES_MAX:
            break
    for name, size in sizes.items():
        if size > _TERMS_MAX:
            raise MessageTooLarge(
                f"{path}.nodeClaim.{name}: more than {_TERMS_MAX} conditions of one template"
            )
    if values > _VALUES_MAX:
        raise MessageTooLarge(
            f"{path}.nodeClaim.nodeAffinity: more than {_VALUES_MAX} values of one template"
        )


def _inner(kind: type[M], data: bytes, path: str) -> M:
    """Decode a message inside a bytes field.

    It raises Invalid, because the Go server reads it inside a plugin.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Invalid(path, data, f"is not a serialised {kind.DESCRIPTOR.name}") from None


def _quantity(message: pb.Quantity) -> str:
    return message.string if message.HasField("string") else "0"
