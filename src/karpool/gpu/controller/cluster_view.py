"""Reads the input of a step from one snapshot: workers, nodes with devices, records, quotas.

The only state is a cache of unchanged objects. An object that cannot be read is left out with its reason and
does not affect others. A quota that cannot be read admits nothing.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import structlog
from msgspec import structs

from karpool.cluster import kinds
from karpool.cluster.devices.device_store import DeviceUse
from karpool.cluster.nodes.expected import is_ephemeral, same_taint
from karpool.cluster.snapshot import Snapshot
from karpool.gpu.controller.allocator_state import GpuNodeFacts, View
from karpool.gpu.controller.enforcement import Enforcers, declared_enforcer, enforcer_of_node
from karpool.gpu.controller.worker_pods import WorkerPod, WorkerPods
from karpool.gpu.records.scale_up_object import ScaleUp, from_scale_up, without_status
from karpool.gpu.records.scale_up_record import ScaleUpRecord
from karpool.gpu.records.written_records import WrittenRecords
from karpool.gpu.scale_up.system_nodes import ShownNode, shown_by
from karpool.model.devices import node_devices
from karpool.model.devices.amounts import NOTHING
from karpool.model.devices.device import POOL_LABEL, RUNNING, SMART_POD_USE, Device
from karpool.model.devices.gpu_quota import GpuResourceQuota, quota_admitting_nothing, quota_of
from karpool.model.devices.inventory import (
    AMD_PLUGIN,
    HAMI,
    NVIDIA_PLUGIN,
    VOLCANO,
    DeviceForm,
    inventory_of,
)
from karpool.model.devices.quota import GpuQuota
from karpool.model.devices.systems import MIG_RESOURCES, TIME_SLICES_RESOURCE, GpuSystem
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import DISRUPTED, NODEPOOL, CompiledPool
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape
from karpool.model.labels import LabelMatcher, requirement
from karpool.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, is_extended
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, Taint
from karpool.packing.dra.driver_templates import DriverTemplates, published_devices
from karpool.packing.tables.columns import Bools
from karpool.packing.tables.node_table import NodeTable
from karpool.packing.tables.room import Room
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.claims.node_readiness import emptiness_warning
from karpool.provisioning.node_request import NodeCandidate
from karpool.provisioning.placeholders.placeholder import Placeholder

log = structlog.get_logger(__name__)

_NOT_DAEMONS = LabelMatcher((requirement("pod-template-generation", "DoesNotExist"),))
OTHERS = "another-scheduler"
# KAI shares the devices that the vendor's plugin counts.
_SHOWN_BY = {
    HAMI: GpuSystem.HAMI,
    VOLCANO: GpuSystem.VOLCANO,
    NVIDIA_PLUGIN: GpuSystem.KAI,
    AMD_PLUGIN: GpuSystem.KAI,
}


@dataclass(frozen=True, slots=True)
class GpuClusterView:
    """The values read from one snapshot. `quota_keys` are the quota objects by namespace."""

    snapshot: Snapshot
    workers: Mapping[ObjectKey, WorkerPod] = field(default_factory=dict)
    records: Mapping[str, ScaleUpRecord] = field(default_factory=dict)
    quotas: Mapping[str, GpuQuota] = field(default_factory=dict)
    quota_keys: Mapping[str, ObjectKey] = field(default_factory=dict)

    @property
    def quota_objects(self) -> Mapping[ObjectKey, GpuResourceQuota | None]:
        return self.snapshot.objects(kinds.GPU_RESOURCE_QUOTAS)


class GpuClusterReader:
    def __init__(
        self, workers: WorkerPods, written: WrittenRecords, *, namespace: str, hold_seconds: float = 120.0
    ) -> None:
        self.problems: dict[str, str] = {}
        self._workers = workers
        self._written = written
        self._namespace = namespace
        self._hold_seconds = hold_seconds
        self._records: dict[ObjectKey, tuple[Any, ScaleUpRecord | None]] = {}
        self._quotas: tuple[object, dict[str, GpuQuota], dict[str, ObjectKey]] = (None, {}, {})
        self._pools: object = None

    def read(self, snapshot: Snapshot) -> GpuClusterView:
        quotas, quota_keys = self._read_quotas(snapshot)
        self._warn_of_pools(snapshot.pools)
        return GpuClusterView(
            snapshot,
            self._workers.of(snapshot.kept_pods),
            self._written.merged(self._read_records(snapshot)),
            quotas,
            quota_keys,
        )

    def _read_records(self, snapshot: Snapshot) -> dict[str, ScaleUpRecord]:
        """Records of our namespace only: another scaler may have its own."""
        objects = snapshot.objects(kinds.SCALE_UPS)
        records = {}
        for key, raw in objects.items():
            if key.namespace != self._namespace:
                continue
            old = self._records.get(key)
            records[key] = old if old is not None and old[0] is raw else (raw, self._read_record(key, raw))
        self._records = records
        return {key.name: record for key, (_, record) in records.items() if record is not None}

    def _read_record(self, key: ObjectKey, raw: Any) -> ScaleUpRecord | None:
        try:
            scale_up = decode(raw, ScaleUp)
            try:
                return from_scale_up(scale_up)
            except Invalid as error:
                self._problem(f"ScaleUp {key.name}", str(error))
                return without_status(scale_up)
        except Invalid as error:
            self._problem(f"ScaleUp {key.name}", str(error))
            return None

    def _read_quotas(self, snapshot: Snapshot) -> tuple[dict[str, GpuQuota], dict[str, ObjectKey]]:
        """The first quota by name if a namespace has several; it should have one."""
        objects = snapshot.objects(kinds.GPU_RESOURCE_QUOTAS)
        if self._quotas[0] is not objects:
            quotas: dict[str, GpuQuota] = {}
            keys: dict[str, ObjectKey] = {}
            for key in sorted(objects, key=str):
                if key.namespace in quotas:
                    first = keys[key.namespace].name
                    self._problem(f"GPUResourceQuota {key}", f"the namespace has {first} already; delete one")
                    continue
                keys[key.namespace] = key
                try:
                    if objects[key] is None:
                        raise Invalid("", "", "it cannot be decoded")
                    quotas[key.namespace] = quota_of(objects[key])
                except Invalid as error:
                    quotas[key.namespace] = quota_admitting_nothing(key.namespace)
                    self._problem(f"GPUResourceQuota {key}", str(error))
            self._quotas = objects, quotas, keys
        return self._quotas[1:]

    def _warn_of_pools(self, pools: Mapping[str, CompiledPool]) -> None:
        if pools is self._pools:
            return
        self._pools = pools
        for pool in pools.values():
            if POOL_LABEL in pool.labels and (warning := emptiness_warning(pool, self._hold_seconds)):
                self._problem(f"NodePool {pool.name} is used as it is", warning)

    def _problem(self, what: str, why: str) -> None:
        if self.problems.get(what) != why:
            log.warning("object skipped", object=what, reason=why)
        self.problems[what] = why


def step_view(
    seen: GpuClusterView,
    *,
    now: float,
    placeholders: Sequence[Placeholder],
    claims: Mapping[str, ClaimProgress],
    resting: Mapping[str, float],
    busy: Mapping[str, frozenset[str]],
    only_enforced: bool = False,
) -> View:
    """`busy` are devices that we have allocated or hold, by node: their pods may not be seen there yet.
    `only_enforced`: ignore devices of nodes on which nothing enforces shares.
    """
    on_node: dict[str, list[Placeholder]] = {}
    for pod in placeholders:
        if pod.node:
            on_node.setdefault(pod.node, []).append(pod)
    concerned = gpu_nodes(seen.snapshot) | on_node.keys() | {progress.node for progress in claims.values()}
    concerned |= {unit.node for record in seen.records.values() for unit in record.active_units}
    systems = [record for record in seen.records.values() if record.key.system]
    coming = {unit.node for record in systems for unit in record.active_units}
    return View(
        now=now,
        workers=tuple(pod.worker for pod in seen.workers.values() if pod.worker is not None),
        records=seen.records,
        placeholders=tuple(placeholders),
        claims=claims,
        nodes=tuple(
            facts if not only_enforced or facts.enforcer is not None else replace(facts, devices=())
            for name in sorted(concerned)
            if (row := seen.snapshot.room.find(name)) is not None
            for facts in [
                _facts(
                    seen,
                    row,
                    on_node.get(name, ()),
                    busy.get(name, frozenset()),
                    shows=name in coming,
                    enforced=only_enforced,
                )
            ]
        ),
        resting=resting,
        room=seen.snapshot.room,
    )


def enforcers(nodes: Iterable[GpuNodeFacts], pools: Iterable[CompiledPool]) -> Enforcers:
    """By pool of devices: the systems that enforce shares, from its nodes and its NodePools."""
    systems: dict[str, set[GpuSystem]] = {}
    for node in nodes:
        if node.enforcer is not None:
            systems.setdefault(node_devices.pool_of_node(node.labels), set()).add(node.enforcer)
    for pool in pools:
        if (declared := declared_enforcer(pool.labels)) is not None:
            systems.setdefault(pool.labels.get(POOL_LABEL) or pool.name, set()).add(declared)
    return {pool: frozenset(names) for pool, names in systems.items()}


def gpu_nodes(snapshot: Snapshot) -> set[str]:
    """Nodes that have or will have devices, or belong to a GPU pool."""
    room = snapshot.room
    rows: Bools = room.nodes.per_node("has gpus", _labelled_with_gpus).copy()
    for resource in node_devices.RESOURCES:
        rows |= room.allocatable(resource) > 0
    return {room.names[row] for row in np.flatnonzero(rows).tolist()} | snapshot.devices.keys()


def _labelled_with_gpus(nodes: NodeTable) -> Bools:
    labelled = [node_devices.promises_gpus(nodes.labels_of(row)) for row in range(nodes.n)]
    return np.array(labelled, dtype=np.bool_)


def _facts(
    seen: GpuClusterView,
    row: int,
    placeholders: Sequence[Placeholder],
    busy: frozenset[str],
    *,
    shows: bool,
    enforced: bool,
) -> GpuNodeFacts:
    """`shows`: include what systems show on the node, needed only for a node launched for one of their pods.
    `enforced`: include the enforcer of shares.
    """
    name = seen.snapshot.room.names[row]
    room, state = seen.snapshot.room, seen.snapshot.nodes[row]
    labels, taints = room.nodes.labels_of(row), room.taint_sets[room.taint_codes[row]]
    others = {
        key: dict(room.shapes[shape].requests)
        for key, shape in room.pods_on(row).items()
        if ObjectKey(*key.split("/", 1)) not in seen.workers
    }
    offered = {
        resource: int(room.allocatable(resource)[row])
        for resource in (CPU, MEMORY, EPHEMERAL_STORAGE, *node_devices.RESOURCES)
    }
    described = [use.device for use in seen.snapshot.devices.get(name, ()) if use.described]
    registers = state.node.annotations if state.node is not None else {}
    going = state.is_leaving or any(taint.key == DISRUPTED.key for taint in taints)
    is_up = state.is_initialized or not state.pool or not _is_starting(seen.snapshot, state.pool, taints)
    return GpuNodeFacts(
        name,
        ready=not going and state.node is not None and state.node.is_ready and is_up,
        going=going,
        labels=labels,
        devices=_marked_devices(
            described,
            lambda marks, taken: _less_others(
                seen,
                name,
                node_devices.node_devices(
                    name, labels, offered, registers, smart_pods=marks, others=taken, busy=busy
                ),
                row,
            ),
            others,
            placeholders,
        ),
        cpu_milli=offered[CPU] - sum(needs.get(CPU, 0) for needs in others.values()),
        memory_bytes=offered[MEMORY] - sum(needs.get(MEMORY, 0) for needs in others.values()),
        host_memory_bytes=offered[MEMORY],
        host_disk_bytes=offered[EPHEMERAL_STORAGE],
        taints=tuple(taint for taint in taints if taint.effect in (NO_SCHEDULE, NO_EXECUTE)),
        shown=_shown(seen.snapshot, name, row) if shows else {},
        enforcer=enforcer_of_node(labels, registers, _offered(room, row), described) if enforced else None,
    )


def _less_others(
    seen: GpuClusterView, name: str, devices: tuple[Device, ...], row: int
) -> tuple[Device, ...]:
    """The devices less the amounts of pods of other schedulers, which our ledger does not know."""
    uses = {use.device.name: use for use in seen.snapshot.devices.get(name, ()) if use.holders}
    if not uses:
        return devices
    room = seen.snapshot.room
    pods = {key: room.shapes[shape] for key, shape in room.pods_on(row).items()}
    return tuple(
        _less_strangers(device, uses[device.name], seen.workers, pods) if device.name in uses else device
        for device in devices
    )


def _less_strangers(
    device: Device, use: DeviceUse, workers: Container[ObjectKey], pods: Mapping[str, PodShape]
) -> Device:
    taken = NOTHING
    for key in use.holders:
        if ObjectKey(*key.split("/", 1)) in workers:
            continue
        demand = pods[key].devices if key in pods else None
        if device.capacity is None or demand is None or not demand.is_readable or use.closed:
            return structs.replace(device, used_by=OTHERS)  # an unreadable amount may be the whole device
        taken += demand.share.on(device.capacity)
    return structs.replace(device, strangers=taken)


def _offered(room: Room, row: int) -> dict[str, int]:
    """Extended resources of a node."""
    columns = ((resource, room.allocatable(resource)) for resource in room.resources if "/" in resource)
    return {resource: units for resource, column in columns if (units := int(column[row])) > 0}


def _shown(snapshot: Snapshot, name: str, row: int) -> dict[str, int]:
    """The number of devices by system as the node shows them; MIG slices by their profile."""
    room, facts = snapshot.room, snapshot.nodes[row].node
    offered = _offered(room, row)
    shown: Counter[str] = Counter()
    if facts is not None:
        for group in inventory_of(facts.labels, facts.annotations, offered).groups:
            system = _SHOWN_BY.get(group.handed_out_by)
            if system is not None and group.form is DeviceForm.WHOLE and not group.unstable:
                shown[system] += group.devices
    for resource, units in offered.items():
        if resource.startswith(MIG_RESOURCES):
            shown[resource.removeprefix(MIG_RESOURCES)] = units
    shown[GpuSystem.TIME_SLICES] = offered.get(TIME_SLICES_RESOURCE, 0)
    shown[GpuSystem.TENSOR_FUSION] = sum(
        use.described and use.device.phase == RUNNING for use in snapshot.devices.get(name, ())
    )
    if room.dra is not None and facts is not None:
        shown[GpuSystem.DRA] = published_devices(room.dra, name, facts.labels)
    return dict(+shown)


def nodes_shown(snapshot: Snapshot) -> dict[tuple[str, str], ShownNode]:
    """What live nodes show, by pool and instance type; the minimum if they differ."""
    least: dict[tuple[str, str], ShownNode] = {}
    for name in gpu_nodes(snapshot):
        row = snapshot.room.find(name)
        state = snapshot.nodes[row] if row is not None else None
        if row is None or state is None or state.node is None or state.is_leaving:
            continue
        facts, offered = state.node, _offered(snapshot.room, row)
        key = (state.pool, facts.labels.get(INSTANCE_TYPE, ""))
        shown = shown_by(offered, facts.labels, facts.annotations)
        before = least.get(key)
        least[key] = shown if before is None else before.least(shown)
    return least


def learn_drivers(snapshot: Snapshot, templates: DriverTemplates) -> None:
    """Remember what drivers published on existing nodes."""
    state = snapshot.room.dra
    if state is None:
        return
    named = ((name, snapshot.room.find(name)) for name in state.stock.slices.nodes)
    rows = [
        (name, snapshot.nodes[row], snapshot.room.nodes.labels_of(row))
        for name, row in named
        if row is not None
    ]
    templates.learn(
        state, ((name, labels, node.pool, labels.get(INSTANCE_TYPE, "")) for name, node, labels in rows)
    )


def pods_apart(snapshot: Snapshot, candidate: NodeCandidate) -> tuple[AffinityTerm, ...]:
    """Pods that hold devices on nodes like those of a candidate, so that a smart pod avoids such nodes.

    Karpenter does not support host names in pod anti-affinity. A node without device holders has capacity,
    and a smart pod may use it. Daemons run on every node and are recognised by their labels.
    """
    room = snapshot.room
    namespaces: set[str] = set()
    for row in range(room.nodes.n):
        labels = room.nodes.labels_of(row)
        if candidate.pools and labels.get(NODEPOOL) not in candidate.pools:
            continue
        if candidate.instance_types and labels.get(INSTANCE_TYPE) not in candidate.instance_types:
            continue
        for key, shape in room.pods_on(row).items():
            if _has_devices(room.shapes[shape]):
                namespaces.add(key.partition("/")[0])
    if not namespaces:
        return ()
    return (AffinityTerm(_NOT_DAEMONS, HOSTNAME, frozenset(namespaces)),)


def _has_devices(shape: PodShape) -> bool:
    return (
        shape.devices is not None
        or bool(shape.resource_claims)
        or any(is_extended(resource) for resource, _ in shape.requests)
    )


def _marked_devices(
    described: Sequence[Device],
    labelled: Callable[[Mapping[str, int], int], tuple[Device, ...]],
    others: Mapping[str, Mapping[str, int]],
    placeholders: Sequence[Placeholder],
) -> tuple[Device, ...]:
    """Devices by GPU objects, or else by labels and plugin; marked if a smart pod or a plain pod uses them.
    `others` are the needs of pods that are not workers.
    """
    smart_pods = {pod.uid: _gpus_of(others.get(str(pod.key), {})) for pod in placeholders}
    if described:
        return _with_our_marks(described, smart_pods)
    taken = sum(_gpus_of(needs) for needs in others.values()) - sum(smart_pods.values())
    return labelled(smart_pods, taken)


def _is_starting(snapshot: Snapshot, pool_name: str, taints: Iterable[Taint]) -> bool:
    """Whether the node has startup taints that keep pods away until it is ready."""
    pool = snapshot.pools.get(pool_name)
    starting = pool.startup_taints if pool is not None else ()
    return any(
        is_ephemeral(taint) or any(same_taint(taint, startup) for startup in starting) for taint in taints
    )


def _gpus_of(needs: Mapping[str, int]) -> int:
    return sum(needs.get(resource, 0) for resource in node_devices.RESOURCES)


def _with_our_marks(devices: Sequence[Device], smart_pods: Mapping[str, int]) -> tuple[Device, ...]:
    """Mark a device as used by the smart pod on its node if a plugin reports it as used."""
    marks = [f"{SMART_POD_USE}{uid}" for uid, gpus in sorted(smart_pods.items()) for _ in range(gpus)]
    return tuple(
        structs.replace(device, used_by=marks.pop()) if marks and not device.is_ours else device
        for device in sorted(devices, key=lambda device: device.name)
    )
