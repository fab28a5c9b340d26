# ruff: noqa
# fmt: off
# mypy: disable-error-code="type-arg"
from karpool.wire.proto import estimator_pb2 as _estimator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExplainRequest(_message.Message):
    __slots__ = ("cluster", "replica_requirements", "components", "namespace", "assumed_workloads", "manifest")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    replica_requirements: _estimator_pb2.ReplicaRequirements
    components: _containers.RepeatedCompositeFieldContainer[_estimator_pb2.Component]
    namespace: str
    assumed_workloads: _containers.RepeatedCompositeFieldContainer[_estimator_pb2.AssumedWorkload]
    manifest: bytes
    def __init__(self, cluster: _Optional[str] = ..., replica_requirements: _Optional[_Union[_estimator_pb2.ReplicaRequirements, _Mapping]] = ..., components: _Optional[_Iterable[_Union[_estimator_pb2.Component, _Mapping]]] = ..., namespace: _Optional[str] = ..., assumed_workloads: _Optional[_Iterable[_Union[_estimator_pb2.AssumedWorkload, _Mapping]]] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("answer", "code", "parts", "plugins", "refusals", "state_version", "unseen")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    answer: int
    code: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    plugins: _containers.RepeatedCompositeFieldContainer[Verdict]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    state_version: int
    unseen: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, answer: _Optional[int] = ..., code: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., plugins: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., state_version: _Optional[int] = ..., unseen: _Optional[_Iterable[str]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("name", "amount", "nodes", "instance_types", "price_per_hour", "reasons")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_TYPES_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    amount: int
    nodes: int
    instance_types: _containers.RepeatedScalarFieldContainer[str]
    price_per_hour: float
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., amount: _Optional[int] = ..., nodes: _Optional[int] = ..., instance_types: _Optional[_Iterable[str]] = ..., price_per_hour: _Optional[float] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("plugin", "role", "value", "code", "reasons")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    plugin: str
    role: str
    value: int
    code: str
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plugin: _Optional[str] = ..., role: _Optional[str] = ..., value: _Optional[int] = ..., code: _Optional[str] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("plugin", "reason", "nodes", "resolvable")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RESOLVABLE_FIELD_NUMBER: _ClassVar[int]
    plugin: str
    reason: str
    nodes: int
    resolvable: bool
    def __init__(self, plugin: _Optional[str] = ..., reason: _Optional[str] = ..., nodes: _Optional[int] = ..., resolvable: _Optional[bool] = ...) -> None: ...
