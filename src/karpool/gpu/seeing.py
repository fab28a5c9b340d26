"""The cluster as the watches show it, in the words of the desk.

Pods become workers or what they take of a node; nodes become devices and room; ScaleUps
become records. Records that we wrote ourselves count as written even while the watch is
behind. An object that cannot be understood is left out and says why; it stops nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import structlog

from karpool.cluster.changes import ObjectChange, PutDropSink
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.kinds import LIVE_PODS
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.nodes.expected import is_ephemeral, same_taint
from karpool.gpu.allocation.allocator_state import GpuNodeFacts, GpuWorker, View
from karpool.gpu.controller.wake_ups import should_wake
from karpool.gpu.records.scale_up_object import SCALEUPS, ScaleUp, from_scale_up, without_status
from karpool.gpu.records.scale_up_record import ScaleUpRecord
from karpool.gpu.scale_up.candidates import CandidateFinder
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.kube.watched import WatchedKind
from karpool.model.devices import node_devices, pod_requests, tensor_fusion
from karpool.model.devices.device import POOL_LABEL, SMART_POD_USE, Device, GpuObject, from_object
from karpool.model.devices.gpu_quota import QUOTAS, GpuResourceQuota, quota_admitting_nothing, quota_of
from karpool.model.devices.quota import GpuQuota
from karpool.model.devices.tensor_fusion import BadGpuRequest
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NODEPOOL, NodePool, pool_of
from karpool.model.kubernetes.api_resources import (
    GPUS,
    NODEPOOLS,
    NODES,
    PODS,
    ApiResource,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.times import moment
from karpool.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, Taint
from karpool.packing.tables.room import Room
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.claims.node_readiness import emptiness_warning, readiness
from karpool.provisioning.names import digest
from karpool.provisioning.placeholders.placeholder import Placeholder

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A pod of ours. `said` is what its condition says now; `problem` why it cannot be read."""

    key: ObjectKey
    uid: str
    worker: GpuWorker | None
    said: tuple[str, str]
    problem: str = ""
    is_bound: bool = False
    version: str = ""  # of the pod, for who writes over exactly that


class Sight:
    """`now` stands in for creation times that cannot be read."""

    def __init__(
        self,
        ladders: CandidateFinder,
        cluster: ClusterRoom,
        *,
        namespace: str,
        scheduler_name: str,
        default_pool: str = "",
        hold_seconds: float = 120.0,
    ) -> None:
        self.ladders = ladders
        self._hold_seconds = hold_seconds
        self.workers: dict[ObjectKey, SeenWorker] = {}
        self.problems: dict[str, str] = {}
        self.quotas: dict[str, GpuQuota] = {}  # by namespace
        self.quota_keys: dict[str, ObjectKey] = {}  # of the object, by namespace
        self.written: dict[str, ScaleUpRecord] = {}  # by us, and perhaps not seen yet
        self._namespace = namespace
        self._scheduler_name = scheduler_name
        self._default_pool = default_pool
        self._records: dict[str, ScaleUpRecord] = {}
        self._removed: set[str] = set()  # uids
        self._nodes: dict[str, Node] = {}
        self._gpu_nodes: set[str] = set()
        self._cluster = cluster

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        own = ListOptions(namespace=self._namespace)
        return (
            WatchedKind(PODS, Pod, PutDropSink(self.put_pod, self.drop_pod), LIVE_PODS),
            WatchedKind(NODES, Node, PutDropSink(self.put_node, self.drop_node)),
            WatchedKind(NODEPOOLS, NodePool, PutDropSink(self.put_pool, self.drop_pool), optional=True),
            WatchedKind(
                QUOTAS, GpuResourceQuota, PutDropSink(self.put_quota, self.drop_quota), optional=True
            ),
            WatchedKind(SCALEUPS, ScaleUp, PutDropSink(self.put_record, self.drop_record), own),
        )

    # Hearing

    def put_pod(self, key: ObjectKey, pod: Pod) -> None:
        if pod.is_terminal:
            self.drop_pod(key)
        elif pod.spec.scheduler_name == self._scheduler_name:
            self.workers[key] = self._worker(key, pod)

    def drop_pod(self, key: ObjectKey) -> None:
        self.workers.pop(key, None)

    def _worker(self, key: ObjectKey, pod: Pod) -> SeenWorker:
        meta = pod.metadata
        condition = next((each for each in pod.status.conditions or () if each.type == "PodScheduled"), None)
        said = (condition.reason or "", condition.message or "") if condition else ("", "")
        seen = partial(
            SeenWorker,
            key,
            meta.uid,
            said=said,
            is_bound=bool(pod.spec.node_name),
            version=meta.resource_version,
        )
        try:
            item = self._item(pod)
        except (BadGpuRequest, Invalid) as error:
            return seen(worker=None, problem=str(error))
        if isinstance(item, str):
            return seen(worker=None, problem=item)
        devices = tensor_fusion.assigned(pod.annotations)
        worker = GpuWorker(
            item,
            pod.spec.node_name,
            tuple(devices),
            leaving=pod.is_terminating,
            nominated_node=pod.status.nominated_node_name or "",
            released=pod.is_terminating
            and not pod.metadata.finalizers
            and pod.metadata.deletion_grace_period_seconds == 0,
        )
        return seen(worker=worker)

    def _item(self, pod: Pod) -> WaitingWorker | str:
        """Raises BadRequest or Invalid; a text where it is understood and cannot be served here."""
        request = pod_requests.gpu_request_of(pod, self._default_pool)
        if request is None:
            return (
                f"it asks for no GPU; set {tensor_fusion.VRAM_REQUEST}, "
                f"or remove schedulerName {self._scheduler_name}"
            )
        if request.is_of_plugin:
            return f"{request.resource} is handed out by its device plugin; use the default scheduler"
        request = replace(request, resource="", model=node_devices.model_name(request.model))
        shape = shape_of(pod)
        # Pods of very different CPU and memory need different nodes; a little more or less does not.
        size = (request.cpu_milli.bit_length(), request.memory_bytes.bit_length())
        where = (shape.node_selector, shape.node_terms, request.preferred, shape.tolerations, size)
        created = moment(pod.metadata.creation_timestamp) or 0.0
        return WaitingWorker(request, created, digest(repr(where)), shape)

    def concerns(self, resource: ApiResource, change: ObjectChange[Any]) -> bool:
        """Whether a change may matter here: most pods and nodes of a cluster have nothing to do with GPUs."""
        seen, key = change.object, change.key
        if resource == NODES:
            return key.name in self._gpu_nodes or (seen is not None and node_devices.has_gpus(seen))
        if resource == GPUS:
            return self._gpu_concerns(key.name, None if change.type == "DELETED" else seen)
        if resource != PODS:
            return True
        known = self.workers.get(key)
        if known is not None:
            # What we tell a pod changes it, and must not make us look again.
            now = None if seen is None or change.type == "DELETED" else self._worker(key, seen)
            return now is None or (now.worker, now.problem) != (known.worker, known.problem)
        if seen is not None and seen.spec.scheduler_name == self._scheduler_name:
            return True
        return (self._cluster.node_of(str(key)) or (seen.spec.node_name if seen else "")) in self._gpu_nodes

    def _gpu_concerns(self, name: str, gpu: GpuObject | None) -> bool:
        """A scale-up follows the devices of its nodes; else a step is due only if it may help who waits."""
        old = self._cluster.described_device(name)
        try:
            new = None if gpu is None else _read_device(gpu)
        except Invalid:
            new = None
        if self._records or self.written:
            return old != new
        # The object does not say what is free of it: our ledger does. All of it may be.
        old, new = (device and replace(device, available=device.capacity) for device in (old, new))
        return any(
            should_wake(seen.worker.item.request, old, new, seen.worker.nominated_node)
            for seen in self.workers.values()
            if seen.worker is not None and not seen.worker.node and not seen.worker.leaving
        )

    def put_node(self, key: ObjectKey, node: Node) -> None:
        self._nodes[node.name] = node
        if node_devices.has_gpus(node):
            self._gpu_nodes.add(node.name)
        try:
            self.ladders.market.learn(node)
        except Invalid as error:
            self._problem(f"node {node.name}", str(error))

    def drop_node(self, key: ObjectKey) -> None:
        self._nodes.pop(key.name, None)
        self._gpu_nodes.discard(key.name)

    def put_pool(self, key: ObjectKey, pool: NodePool) -> None:
        self.ladders.market.see_pool(pool)
        try:
            compiled = pool_of(pool)
            self.ladders.put_pool(compiled)
            if POOL_LABEL in compiled.labels and (warning := emptiness_warning(compiled, self._hold_seconds)):
                self._problem(f"NodePool {pool.name} is used as it is", warning)
        except Invalid as error:
            self.ladders.drop_pool(pool.name)
            self._problem(f"NodePool {pool.name}", str(error))

    def drop_pool(self, key: ObjectKey) -> None:
        self.ladders.drop_pool(key.name)

    def put_quota(self, key: ObjectKey, quota: GpuResourceQuota) -> None:
        self.quota_keys[key.namespace] = key
        try:
            self.quotas[key.namespace] = quota_of(quota)
        except Invalid as error:
            self.quotas[key.namespace] = quota_admitting_nothing(key.namespace)
            self._problem(f"GPUResourceQuota {key}", str(error))

    def drop_quota(self, key: ObjectKey) -> None:
        self.quotas.pop(key.namespace, None)
        self.quota_keys.pop(key.namespace, None)

    def put_record(self, key: ObjectKey, found: ScaleUp) -> None:
        try:
            self._records[key.name] = from_scale_up(found)
        except Invalid as error:
            self._problem(f"ScaleUp {key.name}", str(error))
            try:
                self._records[key.name] = without_status(found)
            except Invalid:
                self._records.pop(key.name, None)

    def drop_record(self, key: ObjectKey) -> None:
        gone = self._records.pop(key.name, None)
        written = self.written.get(key.name)
        if gone is not None and written is not None and written.uid == gone.uid:
            del self.written[key.name]

    def _problem(self, what: str, why: str) -> None:
        if self.problems.get(what) != why:
            log.warning("object skipped", object=what, reason=why)
        self.problems[what] = why

    # What we wrote ourselves

    def wrote(self, record: ScaleUpRecord) -> None:
        self.written[record.name] = record

    def removed(self, record: ScaleUpRecord) -> None:
        self._removed.add(record.uid)
        self.written.pop(record.name, None)

    def records(self) -> dict[str, ScaleUpRecord]:
        """Ours where the watch has not caught up with it yet."""
        found = {name: each for name, each in self._records.items() if each.uid not in self._removed}
        self._removed &= {record.uid for record in self._records.values()}
        for name, ours in list(self.written.items()):
            seen = found.get(name)
            if seen is not None and _is_as_new(seen, ours):
                del self.written[name]
            else:
                found[name] = ours
        return found

    # Looking

    def view(
        self,
        now: float,
        placeholders: Sequence[Placeholder],
        claims: Mapping[str, ClaimProgress],
        resting: Mapping[str, float],
        busy: Mapping[str, frozenset[str]],
    ) -> View:
        """`busy` are devices with workers, by node."""
        room = self._cluster.snapshot()
        on_node: dict[str, list[Placeholder]] = {}
        for pod in placeholders:
            if pod.node:
                on_node.setdefault(pod.node, []).append(pod)
        return View(
            now=now,
            workers=tuple(seen.worker for seen in self.workers.values() if seen.worker is not None),
            records=self.records(),
            placeholders=tuple(placeholders),
            claims=claims,
            nodes=tuple(
                self._facts(node, room, on_node.get(node.name, ()), busy.get(node.name, frozenset()))
                for node in self._nodes.values()
                if node.name in self._gpu_nodes
                or node.name in on_node
                or self._cluster.described_devices(node.name)
            ),
            resting=resting,
            room=room,
        )

    def _others_on(self, room: Room, node: str) -> dict[str, Mapping[str, int]]:
        """What pods that are not workers take of a node, by pod."""
        row = room.find(node)
        pods = {} if row is None else room.pods_on(row)
        return {
            key: dict(room.shapes[shape].requests)
            for key, shape in pods.items()
            if ObjectKey(*key.split("/", 1)) not in self.workers
        }

    def _facts(
        self, node: Node, room: Room, placeholders: Sequence[Placeholder], busy: frozenset[str]
    ) -> GpuNodeFacts:
        try:
            offered = allocatable(node)
        except Invalid as error:
            self._problem(f"node {node.name}", str(error))
            offered = {}
        used = self._others_on(room, node.name)
        smart_pods = {pod.uid: _gpus_of(used.get(str(pod.key), {})) for pod in placeholders}
        own = {str(pod.key) for pod in placeholders}
        others = sum(_gpus_of(needs) for key, needs in used.items() if key not in own)
        described = self._cluster.described_devices(node.name)
        if described:
            devices = _with_our_marks(described, smart_pods)
        else:
            devices = node_devices.node_devices(
                node.name, node.labels, offered, smart_pods=smart_pods, others=others, busy=busy
            )
        infeasible = readiness(node, {})
        lack = infeasible.reason if infeasible is not None else None
        return GpuNodeFacts(
            node.name,
            ready=lack is None or (lack is LaunchReason.NODE_NOT_INITIALIZED and not self._is_starting(node)),
            going=lack is LaunchReason.NODE_GOING,
            labels=node.labels,
            devices=devices,
            cpu_milli=offered.get(CPU, 0) - sum(needs.get(CPU, 0) for needs in used.values()),
            memory_bytes=offered.get(MEMORY, 0) - sum(needs.get(MEMORY, 0) for needs in used.values()),
            host_memory_bytes=offered.get(MEMORY, 0),
            host_disk_bytes=offered.get(EPHEMERAL_STORAGE, 0),
            taints=_taints(node),
        )

    def _is_starting(self, node: Node) -> bool:
        """Whether it has taints that keep pods away only until it is up."""
        pool = next(
            (
                compiled_pool
                for compiled_pool in self.ladders.pools
                if compiled_pool.name == node.labels.get(NODEPOOL)
            ),
            None,
        )
        starting = pool.startup_taints if pool is not None else ()
        return any(
            is_ephemeral(taint) or any(same_taint(taint, each) for each in starting)
            for taint in node.spec.taints or ()
        )

    def unreadable(self) -> dict[str, WaitExplanation]:
        """Pods that ask for something in our name that cannot be understood."""
        return {
            seen.uid: WaitExplanation(seen.uid, WaitReason.BAD_REQUEST, seen.problem)
            for seen in self.workers.values()
            if seen.problem
        }


def _gpus_of(needs: Mapping[str, int]) -> int:
    return sum(needs.get(resource, 0) for resource in node_devices.RESOURCES)


def _read_device(gpu: GpuObject) -> Device:
    device = from_object(gpu)
    return replace(device, model=node_devices.model_name(device.model))


def _with_our_marks(devices: Sequence[Device], smart_pods: Mapping[str, int]) -> tuple[Device, ...]:
    """A device that some plugin uses while a smart pod is there is used by that smart pod."""
    marks = [f"{SMART_POD_USE}{uid}" for uid, gpus in sorted(smart_pods.items()) for _ in range(gpus)]
    return tuple(
        replace(device, used_by=marks.pop()) if marks and not device.is_ours else device
        for device in sorted(devices, key=lambda each: each.name)
    )


def _taints(node: Node) -> tuple[Taint, ...]:
    """Those that keep new pods away; a cordon counts as one even before it is written as one."""
    given = tuple(taint for taint in node.spec.taints or () if taint.effect in (NO_SCHEDULE, NO_EXECUTE))
    return (*given, UNSCHEDULABLE) if node.spec.unschedulable and UNSCHEDULABLE not in given else given


def _is_as_new(seen: ScaleUpRecord, ours: ScaleUpRecord) -> bool:
    if seen.uid != ours.uid:
        return True  # somebody made it anew
    if seen.version.isdecimal() and ours.version.isdecimal():
        return int(seen.version) >= int(ours.version)
    return True
