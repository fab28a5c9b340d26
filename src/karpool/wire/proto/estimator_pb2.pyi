# ruff: noqa
# fmt: off
# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MaxAvailableReplicasRequest(_message.Message):
    __slots__ = ("cluster", "replica_requirements", "assumed_workloads", "wants_parts")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    WANTS_PARTS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    replica_requirements: ReplicaRequirements
    assumed_workloads: _containers.RepeatedCompositeFieldContainer[AssumedWorkload]
    wants_parts: bool
    def __init__(self, cluster: _Optional[str] = ..., replica_requirements: _Optional[_Union[ReplicaRequirements, _Mapping]] = ..., assumed_workloads: _Optional[_Iterable[_Union[AssumedWorkload, _Mapping]]] = ..., wants_parts: _Optional[bool] = ...) -> None: ...

class MaxAvailableReplicasResponse(_message.Message):
    __slots__ = ("max_replicas", "arrived", "parts")
    MAX_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    max_replicas: int
    arrived: _containers.RepeatedCompositeFieldContainer[Arrived]
    parts: RoomParts
    def __init__(self, max_replicas: _Optional[int] = ..., arrived: _Optional[_Iterable[_Union[Arrived, _Mapping]]] = ..., parts: _Optional[_Union[RoomParts, _Mapping]] = ...) -> None: ...

class MaxAvailableComponentSetsRequest(_message.Message):
    __slots__ = ("cluster", "components", "namespace", "assumed_workloads", "wants_parts")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    WANTS_PARTS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    components: _containers.RepeatedCompositeFieldContainer[Component]
    namespace: str
    assumed_workloads: _containers.RepeatedCompositeFieldContainer[AssumedWorkload]
    wants_parts: bool
    def __init__(self, cluster: _Optional[str] = ..., components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ..., namespace: _Optional[str] = ..., assumed_workloads: _Optional[_Iterable[_Union[AssumedWorkload, _Mapping]]] = ..., wants_parts: _Optional[bool] = ...) -> None: ...

class MaxAvailableComponentSetsResponse(_message.Message):
    __slots__ = ("max_sets", "arrived", "parts")
    MAX_SETS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    max_sets: int
    arrived: _containers.RepeatedCompositeFieldContainer[Arrived]
    parts: RoomParts
    def __init__(self, max_sets: _Optional[int] = ..., arrived: _Optional[_Iterable[_Union[Arrived, _Mapping]]] = ..., parts: _Optional[_Union[RoomParts, _Mapping]] = ...) -> None: ...

class UnschedulableReplicasRequest(_message.Message):
    __slots__ = ("cluster", "resource", "unschedulable_threshold")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    resource: ObjectReference
    unschedulable_threshold: int
    def __init__(self, cluster: _Optional[str] = ..., resource: _Optional[_Union[ObjectReference, _Mapping]] = ..., unschedulable_threshold: _Optional[int] = ...) -> None: ...

class UnschedulableReplicasResponse(_message.Message):
    __slots__ = ("unschedulable_replicas",)
    UNSCHEDULABLE_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    unschedulable_replicas: int
    def __init__(self, unschedulable_replicas: _Optional[int] = ...) -> None: ...

class ObjectReference(_message.Message):
    __slots__ = ("api_version", "kind", "namespace", "name")
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    api_version: str
    kind: str
    namespace: str
    name: str
    def __init__(self, api_version: _Optional[str] = ..., kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ReplicaRequirements(_message.Message):
    __slots__ = ("node_claim", "resource_request", "namespace", "priority_class_name", "resource_request_bytes")
    class ResourceRequestEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Quantity
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Quantity, _Mapping]] = ...) -> None: ...
    class ResourceRequestBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NODE_CLAIM_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_claim: NodeClaim
    resource_request: _containers.MessageMap[str, Quantity]
    namespace: str
    priority_class_name: str
    resource_request_bytes: _containers.ScalarMap[str, bytes]
    def __init__(self, node_claim: _Optional[_Union[NodeClaim, _Mapping]] = ..., resource_request: _Optional[_Mapping[str, Quantity]] = ..., namespace: _Optional[str] = ..., priority_class_name: _Optional[str] = ..., resource_request_bytes: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Component(_message.Message):
    __slots__ = ("name", "replica_requirements", "replicas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICA_REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    replica_requirements: ComponentReplicaRequirements
    replicas: int
    def __init__(self, name: _Optional[str] = ..., replica_requirements: _Optional[_Union[ComponentReplicaRequirements, _Mapping]] = ..., replicas: _Optional[int] = ...) -> None: ...

class ComponentReplicaRequirements(_message.Message):
    __slots__ = ("node_claim", "resource_request", "priority_class_name", "resource_request_bytes")
    class ResourceRequestEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Quantity
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Quantity, _Mapping]] = ...) -> None: ...
    class ResourceRequestBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NODE_CLAIM_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_claim: NodeClaim
    resource_request: _containers.MessageMap[str, Quantity]
    priority_class_name: str
    resource_request_bytes: _containers.ScalarMap[str, bytes]
    def __init__(self, node_claim: _Optional[_Union[NodeClaim, _Mapping]] = ..., resource_request: _Optional[_Mapping[str, Quantity]] = ..., priority_class_name: _Optional[str] = ..., resource_request_bytes: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class NodeClaim(_message.Message):
    __slots__ = ("node_affinity", "node_selector", "tolerations", "node_affinity_bytes", "tolerations_bytes")
    class NodeSelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    NODE_AFFINITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_affinity: NodeSelector
    node_selector: _containers.ScalarMap[str, str]
    tolerations: _containers.RepeatedCompositeFieldContainer[Toleration]
    node_affinity_bytes: bytes
    tolerations_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, node_affinity: _Optional[_Union[NodeSelector, _Mapping]] = ..., node_selector: _Optional[_Mapping[str, str]] = ..., tolerations: _Optional[_Iterable[_Union[Toleration, _Mapping]]] = ..., node_affinity_bytes: _Optional[bytes] = ..., tolerations_bytes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AssumedWorkload(_message.Message):
    __slots__ = ("namespace", "components", "workload")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    components: _containers.RepeatedCompositeFieldContainer[Component]
    workload: WorkloadReference
    def __init__(self, namespace: _Optional[str] = ..., components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ..., workload: _Optional[_Union[WorkloadReference, _Mapping]] = ...) -> None: ...

class WorkloadReference(_message.Message):
    __slots__ = ("api_version", "kind", "name", "desired")
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    api_version: str
    kind: str
    name: str
    desired: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, api_version: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., desired: _Optional[_Iterable[int]] = ...) -> None: ...

class Arrived(_message.Message):
    __slots__ = ("bound", "waiting")
    BOUND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    bound: _containers.RepeatedScalarFieldContainer[int]
    waiting: int
    def __init__(self, bound: _Optional[_Iterable[int]] = ..., waiting: _Optional[int] = ...) -> None: ...

class RoomParts(_message.Message):
    __slots__ = ("existing", "unlimited", "price_per_hour")
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    existing: int
    unlimited: bool
    price_per_hour: float
    def __init__(self, existing: _Optional[int] = ..., unlimited: _Optional[bool] = ..., price_per_hour: _Optional[float] = ...) -> None: ...

class NodeSelector(_message.Message):
    __slots__ = ("node_selector_terms",)
    NODE_SELECTOR_TERMS_FIELD_NUMBER: _ClassVar[int]
    node_selector_terms: _containers.RepeatedCompositeFieldContainer[NodeSelectorTerm]
    def __init__(self, node_selector_terms: _Optional[_Iterable[_Union[NodeSelectorTerm, _Mapping]]] = ...) -> None: ...

class NodeSelectorTerm(_message.Message):
    __slots__ = ("match_expressions", "match_fields")
    MATCH_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELDS_FIELD_NUMBER: _ClassVar[int]
    match_expressions: _containers.RepeatedCompositeFieldContainer[NodeSelectorRequirement]
    match_fields: _containers.RepeatedCompositeFieldContainer[NodeSelectorRequirement]
    def __init__(self, match_expressions: _Optional[_Iterable[_Union[NodeSelectorRequirement, _Mapping]]] = ..., match_fields: _Optional[_Iterable[_Union[NodeSelectorRequirement, _Mapping]]] = ...) -> None: ...

class NodeSelectorRequirement(_message.Message):
    __slots__ = ("key", "operator", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class Toleration(_message.Message):
    __slots__ = ("key", "operator", "value", "effect", "toleration_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    TOLERATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    value: str
    effect: str
    toleration_seconds: int
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ..., toleration_seconds: _Optional[int] = ...) -> None: ...

class Quantity(_message.Message):
    __slots__ = ("string",)
    STRING_FIELD_NUMBER: _ClassVar[int]
    string: str
    def __init__(self, string: _Optional[str] = ...) -> None: ...
