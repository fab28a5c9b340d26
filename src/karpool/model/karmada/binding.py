"""ResourceBindings and ClusterResourceBindings as a scheduler reads them.

`key_of` and `BindingHead` read what decides whether a binding is ours, and never fail on the rest.
`read_binding` reads all of it and raises `Invalid` with the path of the bad field, so that this binding is
reported and the others go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from karpool.model.errors import Invalid
from karpool.model.karmada.names import (
    APPLIED_PLACEMENT,
    CLUSTER_RESOURCE_BINDING,
    DEFAULT_SCHEDULER,
    RESOURCE_BINDING,
    SCHEDULED_LABELS,
)
from karpool.model.karmada.placement import KarmadaPlacement, read_placement
from karpool.model.karmada.replica_requirements import (
    Component,
    ReplicaNodeClaim,
    ReplicaRequirements,
    requirements,
)
from karpool.model.kubernetes.api_resources import CLUSTERRESOURCEBINDINGS, RESOURCEBINDINGS, ApiResource
from karpool.model.kubernetes.meta import Condition, Int32, Int64, Labels, ObjectMeta, Wire, decode
from karpool.model.requirements import NodeSelector
from karpool.model.taints import Toleration

# Limits of one binding; far above any fleet, and below what would stall a scheduler.
ENTRIES_MAX = 10_000


class BindingKey(NamedTuple):
    """Identifies a binding. Both kinds may have the same name, hence the kind."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def is_namespaced(self) -> bool:
        return self.kind == RESOURCE_BINDING

    @property
    def resource(self) -> ApiResource:
        return RESOURCEBINDINGS if self.is_namespaced else CLUSTERRESOURCEBINDINGS


def binding_key(namespace: str, name: str) -> BindingKey:
    """Return the key; a binding without a namespace is a ClusterResourceBinding."""
    return BindingKey(RESOURCE_BINDING if namespace else CLUSTER_RESOURCE_BINDING, namespace, name)


class TargetComponent(NamedTuple):
    name: str
    replicas: int


class TargetCluster(NamedTuple):
    """One entry of `spec.clusters`."""

    name: str
    replicas: int = 0
    components: tuple[TargetComponent, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without `replicas` if there are none."""
        entry: dict[str, Any] = {"name": self.name}
        if self.replicas:
            entry["replicas"] = self.replicas
        if self.components:
            entry["components"] = [component._asdict() for component in self.components]
        return entry


@dataclass(frozen=True, slots=True)
class WorkloadTemplate:
    """`spec.resource`: what the binding places."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class AggregatedStatus:
    """The status of the workload in a member cluster: `status` has the form of its kind."""

    cluster: str
    applied: bool = False
    health: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    key: BindingKey
    template: WorkloadTemplate = WorkloadTemplate()
    placement: KarmadaPlacement = field(default_factory=lambda: read_placement(None))
    raw_placement: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 0
    requirements: ReplicaRequirements | None = None
    components: tuple[Component, ...] = ()
    targets: tuple[TargetCluster, ...] = ()
    evicting: frozenset[str] = frozenset()
    scheduler_name: str = DEFAULT_SCHEDULER
    is_suspended: bool = False
    priority: int = 0
    affinity_group: str = ""
    anti_affinity_group: str = ""
    reschedule_triggered_at: str = ""
    # metadata
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    is_deleting: bool = False
    labels: Labels = field(default_factory=dict)
    annotations: Labels = field(default_factory=dict)
    # status
    observed_generation: int = 0
    observing_affinity_name: str = ""
    last_scheduled_time: str = ""
    conditions: tuple[Condition, ...] = ()
    raw_conditions: tuple[Mapping[str, Any], ...] = ()
    aggregated: tuple[AggregatedStatus, ...] = ()

    @property
    def is_workload(self) -> bool:
        return self.replicas > 0 or self.requirements is not None or bool(self.components)

    @property
    def applied_placement(self) -> str | None:
        """The JSON of the placement that led to the current result."""
        return self.annotations.get(APPLIED_PLACEMENT)

    def assigned(self) -> dict[str, int]:
        """Return replicas by cluster; the first entry of a name counts."""
        result: dict[str, int] = {}
        for target in self.targets:
            result.setdefault(target.name, target.replicas)
        return result


@dataclass(frozen=True, slots=True)
class BindingHead:
    """The fields that decide whether a binding is ours to schedule, readable even if others are wrong."""

    key: BindingKey
    scheduler_name: str
    is_suspended: bool
    is_deleting: bool
    is_carrier: bool  # only has dependencies, no policy
    generation: int
    priority: int


def key_of(raw: Mapping[str, Any]) -> BindingKey:
    meta = _mapping(raw, "metadata")
    return binding_key(str(meta.get("namespace") or ""), str(meta.get("name") or ""))


def head_of(raw: Mapping[str, Any]) -> BindingHead:
    meta, spec = _mapping(raw, "metadata"), _mapping(raw, "spec")
    labels = _mapping(meta, "labels")
    priority = _mapping(spec, "schedulePriority").get("priority")
    generation = meta.get("generation")
    return BindingHead(
        key_of(raw),
        str(spec.get("schedulerName") or DEFAULT_SCHEDULER),
        _mapping(spec, "suspension").get("scheduling") is True,
        meta.get("deletionTimestamp") is not None,
        not any(labels.get(label) for label in SCHEDULED_LABELS),
        generation if isinstance(generation, int) else 0,
        priority if isinstance(priority, int) else 0,
    )


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    field = raw.get(name)
    return field if isinstance(field, Mapping) else {}


# The wire


class _NodeClaim(Wire, frozen=True):
    hard_node_affinity: NodeSelector | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class _Requirements(Wire, frozen=True):
    node_claim: _NodeClaim | None = None
    resource_request: dict[str, str | int | float] | None = None
    namespace: str = ""
    priority_class_name: str = ""


class _Component(Wire, frozen=True):
    name: str = ""
    replicas: Int32 = 0
    replica_requirements: _Requirements | None = None


class _TargetComponent(Wire, frozen=True):
    name: str = ""
    replicas: Int32 = 0


class _Target(Wire, frozen=True):
    name: str = ""
    replicas: Int32 = 0
    components: list[_TargetComponent] | None = None


class _Template(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Eviction(Wire, frozen=True):
    from_cluster: str = ""


class _Suspension(Wire, frozen=True):
    scheduling: bool | None = None


class _Priority(Wire, frozen=True):
    priority: Int32 = 0


class _AffinityGroups(Wire, frozen=True):
    affinity_group: str = ""
    anti_affinity_group: str = ""


class _Spec(Wire, frozen=True):
    resource: _Template = _Template()
    replicas: Int32 = 0
    replica_requirements: _Requirements | None = None
    components: list[_Component] | None = None
    clusters: list[_Target] | None = None
    placement: dict[str, Any] | None = None
    graceful_eviction_tasks: list[_Eviction] | None = None
    scheduler_name: str = ""
    reschedule_triggered_at: str | None = None
    suspension: _Suspension | None = None
    schedule_priority: _Priority | None = None
    workload_affinity_groups: _AffinityGroups | None = None


class _Aggregated(Wire, frozen=True):
    cluster_name: str = ""
    applied: bool = False
    health: str = ""
    status: dict[str, Any] | None = None


class _Status(Wire, frozen=True):
    scheduler_observed_generation: Int64 = 0
    scheduler_observing_affinity_name: str = ""
    last_scheduled_time: str | None = None
    conditions: list[dict[str, Any]] | None = None
    aggregated_status: list[_Aggregated] | None = None


class _Binding(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status | None = None


def read_binding(raw: Mapping[str, Any]) -> Binding:
    """Read a binding. Raises Invalid, which names the field."""
    wire = decode(raw, _Binding)
    meta, spec, status = wire.metadata, wire.spec, wire.status or _Status()
    _check(spec)
    groups = spec.workload_affinity_groups or _AffinityGroups()
    placement, raw_placement = _placement(spec.placement)
    return Binding(
        key=key_of(raw),
        template=WorkloadTemplate(*msgspec.structs.astuple(spec.resource)),
        placement=placement,
        raw_placement=raw_placement,
        replicas=spec.replicas,
        requirements=_requirements(spec.replica_requirements, "spec.replicaRequirements"),
        components=_components(spec.components or []),
        targets=tuple(_target(cluster) for cluster in spec.clusters or ()),
        evicting=frozenset(task.from_cluster for task in spec.graceful_eviction_tasks or ()),
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER,
        is_suspended=bool(spec.suspension and spec.suspension.scheduling),
        priority=spec.schedule_priority.priority if spec.schedule_priority else 0,
        affinity_group=groups.affinity_group,
        anti_affinity_group=groups.anti_affinity_group,
        reschedule_triggered_at=spec.reschedule_triggered_at or "",
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        is_deleting=meta.deletion_timestamp is not None,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        observed_generation=status.scheduler_observed_generation,
        observing_affinity_name=status.scheduler_observing_affinity_name,
        last_scheduled_time=status.last_scheduled_time or "",
        conditions=tuple(decode(condition, Condition) for condition in status.conditions or ()),
        raw_conditions=tuple(status.conditions or ()),
        aggregated=tuple(
            AggregatedStatus(
                aggregated.cluster_name, aggregated.applied, aggregated.health, aggregated.status or {}
            )
            for aggregated in status.aggregated_status or ()
        ),
    )


def _check(spec: _Spec) -> None:
    for name, entries in (("clusters", spec.clusters), ("components", spec.components)):
        if len(entries or ()) > ENTRIES_MAX:
            raise Invalid(f"spec.{name}", len(entries or ()), f"has more than {ENTRIES_MAX} entries")
    counts = [("spec.replicas", spec.replicas)]
    counts += (
        (f"spec.clusters[{i}].replicas", target.replicas) for i, target in enumerate(spec.clusters or ())
    )
    counts += (
        (f"spec.components[{i}].replicas", component.replicas)
        for i, component in enumerate(spec.components or ())
    )
    for path, replicas in counts:
        if replicas < 0:
            raise Invalid(path, replicas, "must not be negative")


# Thousands of bindings come from a few policies and templates: equal parts are parsed and stored once.
_SHARED_MAX = 4096


def _placement(raw: Mapping[str, Any] | None) -> tuple[KarmadaPlacement, Mapping[str, Any]]:
    """Return the parsed placement and its source."""
    try:
        return _shared_placement(msgspec.json.encode(raw or {}))
    except Invalid as error:
        raise error.at("spec.placement") from None


@lru_cache(_SHARED_MAX)
def _shared_placement(encoded: bytes) -> tuple[KarmadaPlacement, Mapping[str, Any]]:
    raw = msgspec.json.decode(encoded)
    return read_placement(raw), raw


def _requirements(wire: _Requirements | None, path: str) -> ReplicaRequirements | None:
    if wire is None:
        return None
    try:
        return _shared_requirements(msgspec.json.encode(wire))
    except Invalid as error:
        raise error.at(path) from None


@lru_cache(_SHARED_MAX)
def _shared_requirements(encoded: bytes) -> ReplicaRequirements:
    wire = msgspec.json.decode(encoded, type=_Requirements)
    claim, where = wire.node_claim, None
    if claim is not None:
        where = ReplicaNodeClaim(
            claim.node_selector or {}, claim.hard_node_affinity, tuple(claim.tolerations or ())
        )
    request = {name: str(amount) for name, amount in (wire.resource_request or {}).items()}
    return requirements(request, where, wire.namespace, wire.priority_class_name)


def _components(wire: list[_Component]) -> tuple[Component, ...]:
    return tuple(
        Component(
            component.name,
            component.replicas,
            _requirements(component.replica_requirements, f"spec.components[{index}].replicaRequirements"),
        )
        for index, component in enumerate(wire)
    )


def _target(wire: _Target) -> TargetCluster:
    parts = tuple(TargetComponent(component.name, component.replicas) for component in wire.components or ())
    return TargetCluster(wire.name, wire.replicas, parts)
