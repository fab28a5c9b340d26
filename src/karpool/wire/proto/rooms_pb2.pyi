# ruff: noqa
# fmt: off
# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ColumnKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOTS: _ClassVar[ColumnKind]
    FREE: _ClassVar[ColumnKind]
    NAME: _ClassVar[ColumnKind]
    LABEL: _ClassVar[ColumnKind]
    TAINTS: _ClassVar[ColumnKind]
    ZONE: _ClassVar[ColumnKind]
    ARRIVAL: _ClassVar[ColumnKind]
SLOTS: ColumnKind
FREE: ColumnKind
NAME: ColumnKind
LABEL: ColumnKind
TAINTS: ColumnKind
ZONE: ColumnKind
ARRIVAL: ColumnKind

class FollowRequest(_message.Message):
    __slots__ = ("protocol", "rooms", "leave")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROOMS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    rooms: _containers.RepeatedCompositeFieldContainer[RoomSubscription]
    leave: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., rooms: _Optional[_Iterable[_Union[RoomSubscription, _Mapping]]] = ..., leave: _Optional[_Iterable[str]] = ...) -> None: ...

class RoomSubscription(_message.Message):
    __slots__ = ("cluster", "epoch", "sequence", "follow", "unfollow", "anew")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    UNFOLLOW_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    epoch: int
    sequence: int
    follow: _containers.RepeatedCompositeFieldContainer[FollowedWorkload]
    unfollow: _containers.RepeatedCompositeFieldContainer[FollowedWorkload]
    anew: bool
    def __init__(self, cluster: _Optional[str] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., follow: _Optional[_Iterable[_Union[FollowedWorkload, _Mapping]]] = ..., unfollow: _Optional[_Iterable[_Union[FollowedWorkload, _Mapping]]] = ..., anew: _Optional[bool] = ...) -> None: ...

class FollowedWorkload(_message.Message):
    __slots__ = ("namespace", "api_version", "kind", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    api_version: str
    kind: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., api_version: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class RoomFrame(_message.Message):
    __slots__ = ("hello", "patch", "withdrawn", "beat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    hello: RoomHello
    patch: RoomPatch
    withdrawn: RoomWithdrawn
    beat: RoomBeat
    def __init__(self, hello: _Optional[_Union[RoomHello, _Mapping]] = ..., patch: _Optional[_Union[RoomPatch, _Mapping]] = ..., withdrawn: _Optional[_Union[RoomWithdrawn, _Mapping]] = ..., beat: _Optional[_Union[RoomBeat, _Mapping]] = ...) -> None: ...

class RoomHello(_message.Message):
    __slots__ = ("protocol", "instance")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    instance: str
    def __init__(self, protocol: _Optional[int] = ..., instance: _Optional[str] = ...) -> None: ...

class RoomWithdrawn(_message.Message):
    __slots__ = ("cluster", "reason")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    reason: str
    def __init__(self, cluster: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RoomBeat(_message.Message):
    __slots__ = ("ages",)
    AGES_FIELD_NUMBER: _ClassVar[int]
    ages: _containers.RepeatedCompositeFieldContainer[RoomAge]
    def __init__(self, ages: _Optional[_Iterable[_Union[RoomAge, _Mapping]]] = ...) -> None: ...

class RoomAge(_message.Message):
    __slots__ = ("cluster", "seconds", "epoch", "sequence")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    seconds: float
    epoch: int
    sequence: int
    def __init__(self, cluster: _Optional[str] = ..., seconds: _Optional[float] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class RoomPatch(_message.Message):
    __slots__ = ("cluster", "epoch", "base", "sequence", "more", "nodes", "columns", "dropped", "taint_sets", "quotas", "workloads", "checksum", "rules")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    TAINT_SETS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    epoch: int
    base: int
    sequence: int
    more: bool
    nodes: int
    columns: _containers.RepeatedCompositeFieldContainer[ColumnPatch]
    dropped: _containers.RepeatedCompositeFieldContainer[ColumnName]
    taint_sets: _containers.RepeatedCompositeFieldContainer[RoomTaintSet]
    quotas: _containers.RepeatedCompositeFieldContainer[NamespaceQuotas]
    workloads: _containers.RepeatedCompositeFieldContainer[WorkloadPods]
    checksum: int
    rules: RoomRules
    def __init__(self, cluster: _Optional[str] = ..., epoch: _Optional[int] = ..., base: _Optional[int] = ..., sequence: _Optional[int] = ..., more: _Optional[bool] = ..., nodes: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[ColumnPatch, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[ColumnName, _Mapping]]] = ..., taint_sets: _Optional[_Iterable[_Union[RoomTaintSet, _Mapping]]] = ..., quotas: _Optional[_Iterable[_Union[NamespaceQuotas, _Mapping]]] = ..., workloads: _Optional[_Iterable[_Union[WorkloadPods, _Mapping]]] = ..., checksum: _Optional[int] = ..., rules: _Optional[_Union[RoomRules, _Mapping]] = ...) -> None: ...

class RoomRules(_message.Message):
    __slots__ = ("counts_quotas", "quotas_match_all", "knows_owners")
    COUNTS_QUOTAS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_MATCH_ALL_FIELD_NUMBER: _ClassVar[int]
    KNOWS_OWNERS_FIELD_NUMBER: _ClassVar[int]
    counts_quotas: bool
    quotas_match_all: bool
    knows_owners: bool
    def __init__(self, counts_quotas: _Optional[bool] = ..., quotas_match_all: _Optional[bool] = ..., knows_owners: _Optional[bool] = ...) -> None: ...

class ColumnName(_message.Message):
    __slots__ = ("kind", "key")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    kind: ColumnKind
    key: str
    def __init__(self, kind: _Optional[_Union[ColumnKind, str]] = ..., key: _Optional[str] = ...) -> None: ...

class ColumnPatch(_message.Message):
    __slots__ = ("kind", "key", "first", "rows", "values", "strings")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    kind: ColumnKind
    key: str
    first: int
    rows: bytes
    values: bytes
    strings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[_Union[ColumnKind, str]] = ..., key: _Optional[str] = ..., first: _Optional[int] = ..., rows: _Optional[bytes] = ..., values: _Optional[bytes] = ..., strings: _Optional[_Iterable[str]] = ...) -> None: ...

class RoomTaintSet(_message.Message):
    __slots__ = ("taints",)
    TAINTS_FIELD_NUMBER: _ClassVar[int]
    taints: _containers.RepeatedCompositeFieldContainer[RoomTaint]
    def __init__(self, taints: _Optional[_Iterable[_Union[RoomTaint, _Mapping]]] = ...) -> None: ...

class RoomTaint(_message.Message):
    __slots__ = ("key", "value", "effect")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    effect: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ...) -> None: ...

class NamespaceQuotas(_message.Message):
    __slots__ = ("namespace", "quotas")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaRoom]
    def __init__(self, namespace: _Optional[str] = ..., quotas: _Optional[_Iterable[_Union[QuotaRoom, _Mapping]]] = ...) -> None: ...

class QuotaRoom(_message.Message):
    __slots__ = ("name", "free", "scopes")
    class FreeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: QuotaAmount
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[QuotaAmount, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    name: str
    free: _containers.MessageMap[str, QuotaAmount]
    scopes: _containers.RepeatedCompositeFieldContainer[QuotaScope]
    def __init__(self, name: _Optional[str] = ..., free: _Optional[_Mapping[str, QuotaAmount]] = ..., scopes: _Optional[_Iterable[_Union[QuotaScope, _Mapping]]] = ...) -> None: ...

class QuotaAmount(_message.Message):
    __slots__ = ("units",)
    UNITS_FIELD_NUMBER: _ClassVar[int]
    units: str
    def __init__(self, units: _Optional[str] = ...) -> None: ...

class QuotaScope(_message.Message):
    __slots__ = ("scope", "operator", "values")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    scope: str
    operator: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scope: _Optional[str] = ..., operator: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkloadPods(_message.Message):
    __slots__ = ("workload", "bound", "waiting")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    workload: FollowedWorkload
    bound: _containers.RepeatedCompositeFieldContainer[BoundPods]
    waiting: int
    def __init__(self, workload: _Optional[_Union[FollowedWorkload, _Mapping]] = ..., bound: _Optional[_Iterable[_Union[BoundPods, _Mapping]]] = ..., waiting: _Optional[int] = ...) -> None: ...

class BoundPods(_message.Message):
    __slots__ = ("requests", "pods")
    class RequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.ScalarMap[str, int]
    pods: int
    def __init__(self, requests: _Optional[_Mapping[str, int]] = ..., pods: _Optional[int] = ...) -> None: ...
