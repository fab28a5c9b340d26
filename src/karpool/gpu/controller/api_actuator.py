"""Executes scale-up plans through the API: records, smart pods, and devices of pods.

Every action may be repeated. Records are updated with the resourceVersion that was read. Before a commit the
actuator asks the API server whether a smart pod still exists: a watch may lag, and a device must not be given
away while a smart pod holds it. A pod is bound only after it carries its devices; a failure on the way
releases them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from karpool.gpu.allocation.allocation import GpuAllocation
from karpool.gpu.controller.allocator_state import AllocatorState
from karpool.gpu.controller.enforcement import hami_annotations
from karpool.gpu.records.scale_up_object import SCALEUPS, owner, to_object, to_status
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpUnit
from karpool.gpu.records.written_records import WrittenRecords
from karpool.gpu.scale_up.candidates import resource_of
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import (
    CommitHold,
    CreatePlaceholder,
    DeletePlaceholder,
    HoldDevices,
    ScaleUpInput,
)
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from karpool.model.devices import tensor_fusion
from karpool.model.devices.amounts import NOTHING
from karpool.model.devices.device_reasons import stable_code
from karpool.model.devices.isolation import HARD
from karpool.model.devices.oversubscription import hard_limit_percent
from karpool.model.devices.partitions import PARTITIONS, written_form
from karpool.model.devices.systems import GpuSystem
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.api_resources import PODS, ListOptions
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import AffinityTerm
from karpool.model.resources import CPU, MEMORY
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, unit
from karpool.provisioning.placeholders.backend import ProvisioningBackend
from karpool.provisioning.placeholders.placeholder import REQUEST
from karpool.provisioning.placeholders.smart_pod import COMPONENT, SMART_SCHEDULER

log = structlog.get_logger(__name__)

WORKER_LABEL = "gpu.karpool.dev/worker"
HARD_LIMIT_PERCENT = "gpu.karpool.dev/hard-limit-percent"  # of the compute of a device
Check = Callable[[], None]
# Systems whose requests are annotations only: to an autoscaler the pods are plain ones.
_SEEN_WITHOUT_DEVICES = (GpuSystem.KAI, GpuSystem.TENSOR_FUSION)
_DEMAND_NAMED = 16  # pods named in the annotation of a smart pod, for information


class ApiScaleUpActuator:
    """`check` raises LeadershipLost if this process may no longer write."""

    def __init__(
        self,
        client: Client,
        backend: ProvisioningBackend,
        desk: AllocatorState,
        written: WrittenRecords,
        *,
        namespace: str,
        settings: ScaleUpSettings,
        check: Check = lambda: None,
        being_given: Callable[[str], frozenset[str]] = lambda node: frozenset(),
        apart: Callable[[NodeCandidate], tuple[AffinityTerm, ...]] = lambda candidate: (),
    ) -> None:
        """`being_given` returns the pods (uids) on a node that HAMi's device plugin is about to serve: it
        takes the first that it finds, so only one at a time is allowed. `apart` returns pods that distinguish
        existing nodes from a new one of a candidate.
        """
        self._apart, self._being_given = apart, being_given
        self.world = ScaleUpInput(now=0.0)  # the input of the plan
        self._client = client
        self._backend = backend
        self._desk = desk
        self._written = written
        self._namespace = namespace
        self._settings = settings
        self._check = check

    # Records

    async def store(self, record: ScaleUpRecord) -> ScaleUpRecord:
        self._check()
        try:
            if not record.uid:
                record = await self._begin(record)
            stored = await self._write(record)
        except KubeError:
            self._written.failed(record.name)
            raise
        self._written.wrote(stored)
        return stored

    async def _begin(self, record: ScaleUpRecord) -> ScaleUpRecord:
        try:
            made = await self._client.create(SCALEUPS, to_object(record, self._namespace))
        except AlreadyExists as error:
            raise Conflict(f"ScaleUp {record.name}", 409, message=str(error)) from None
        meta = made["metadata"]
        return replace(record, uid=meta["uid"], version=meta["resourceVersion"])

    async def _write(self, record: ScaleUpRecord) -> ScaleUpRecord:
        body = to_object(record, self._namespace)
        body["metadata"] |= {"uid": record.uid, "resourceVersion": record.version}
        body["status"] = to_status(record)
        made = await self._client.update(SCALEUPS, body, subresource="status")
        return replace(record, version=made["metadata"]["resourceVersion"])

    async def remove(self, record: ScaleUpRecord) -> None:
        self._check()
        with suppress(NotFound):
            await self._client.delete(
                SCALEUPS,
                record.name,
                namespace=self._namespace,
                uid=record.uid,
                resource_version=record.version,
            )
        self._written.removed(record)

    # Smart pods

    async def create(self, record: ScaleUpRecord, creates: Sequence[CreatePlaceholder]) -> None:
        by_rung: dict[str, list[CreatePlaceholder]] = {}
        for create in creates:
            by_rung.setdefault(create.rung.key, []).append(create)
        for group in by_rung.values():
            self._check()
            await self._request(record, group)

    async def _request(self, record: ScaleUpRecord, group: Sequence[CreatePlaceholder]) -> None:
        indices = [create.unit.index for create in group]
        try:
            ask = self._ask(record, group[0])
            candidate = group[0].rung.candidate
            if record.key.system:
                # Existing nodes have capacity for the smart pod, but no device for the pending pods.
                candidate = replace(candidate, apart=self._apart(candidate))
            answer = await self._backend.request(ask, candidate, indices)
        except Invalid as error:
            for index in indices:
                self._desk.refused[record.name, record.epoch, index] = str(error)
            return
        for index, refused in answer.refused.items():
            log.warning("smart pod refused", scale_up=record.name, index=index, reason=refused.detail)
            self._desk.refused[record.name, record.epoch, index] = refused.detail

    def _ask(self, record: ScaleUpRecord, create: CreatePlaceholder) -> NodeRequest:
        """All units of the epoch by index, so that names and sizes are always the same."""
        demand = self.world.demand[record.name]
        resource = resource_of(demand.items[0])
        by_index = {up_unit.index: up_unit for up_unit in record.units}
        units = tuple(
            unit(_asked(record, up_unit, resource)) if (up_unit := by_index.get(index)) else unit({})
            for index in range(record.next_index)
        )
        return NodeRequest(
            request=record.name,
            epoch=record.epoch,
            units=units,
            candidates=(create.rung.candidate,),
            pool=record.key.pool,
            model=record.key.model if record.key.model != "*" else "",
            about=str(record.key),
            demand=tuple(item.uid for item in demand.items[:_DEMAND_NAMED]),
            owner=owner(record),
            tolerations=demand.items[0].tolerations,
            deadline=create.unit.started + self._settings.maximum_age,
            # A smart pod without a device request could share a node with the next one, which needs its own
            # node.
            avoid={COMPONENT: SMART_SCHEDULER} if record.key.system else {WORKER_LABEL: "true"},
        )

    async def delete(self, delete: DeletePlaceholder) -> None:
        self._check()
        self._desk.deleted(delete.placeholder.uid, self._client.clock.now())
        await self._backend.withdraw(delete.placeholder)

    # Devices

    async def hold(self, hold: HoldDevices) -> None:
        answer = self._desk.hold(hold, hold.expires - self._settings.hold)
        if isinstance(answer, Infeasible):
            log.info(
                "hold refused", pod=hold.item.request.key, reason=stable_code(answer), detail=answer.detail
            )

    async def drop(self, uid: str) -> None:
        self._desk.drop(uid)

    async def commit(self, commit: CommitHold, record: ScaleUpRecord) -> None:
        selection = ListOptions(namespace=self._namespace, label_selector=f"{REQUEST}={record.name}")
        left = await self._client.list(PODS, into=Pod, selection=selection)
        entry = self._desk.allocator.ledger.assumed.get(commit.item.uid)
        if entry is not None and any(pod.spec.node_name == entry.node for pod in left.items):
            raise Conflict(f"node {entry.node}", 409, message="a smart pod still exists")
        self._desk.attempted.add((commit.item.uid, record.uid, commit.readiness_epoch))
        if not self._desk.takes(commit.item):
            # The kubelet would refuse the pod. It is pending again, and is served anywhere it fits.
            log.info("commit refused", pod=commit.item.request.key, reason="its node does not take the pod")
            return
        await self.bind(commit.item)

    async def bind(self, item: WaitingWorker) -> None:
        """Commit a reservation, write the devices on the pod, and bind it."""
        self._check()
        allocation = self._desk.allocator.commit(item.uid)
        if isinstance(allocation, Infeasible):
            log.info(
                "commit refused",
                pod=item.request.key,
                reason=stable_code(allocation),
                detail=allocation.detail,
            )
            return
        try:
            await self._give(item, allocation)
        except KubeError:
            if not await self._is_bound(item, allocation.node):
                self._desk.allocator.drop(item.uid)
                raise
        log.info("pod bound", pod=item.request.key, node=allocation.node, devices=allocation.gpu_ids)

    async def _give(self, item: WaitingWorker, allocation: GpuAllocation) -> None:
        request = item.request
        annotations = {tensor_fusion.GPU_IDS: allocation.gpu_ids}
        if request.isolation == HARD and (percent := self._hard_limit(item, allocation)):
            annotations[HARD_LIMIT_PERCENT] = str(percent)
        if allocation.partitions:
            annotations[PARTITIONS] = written_form(allocation.partitions)
        if item.enforcer is GpuSystem.HAMI:
            annotations |= self._for_hami(item, allocation)
        elif request.template:
            annotations[tensor_fusion.PARTITION] = request.template
        patch = {
            "metadata": {
                "uid": item.uid,
                "annotations": annotations,
                "labels": {WORKER_LABEL: "true"},
            }
        }
        await self._client.patch(PODS, request.name, patch, namespace=request.namespace)
        self._check()
        await self._client.bind(request.name, allocation.node, namespace=request.namespace, uid=item.uid)

    def _for_hami(self, item: WaitingWorker, allocation: GpuAllocation) -> dict[str, str]:
        """HAMi's annotations. Raises Conflict while its device plugin still serves another pod of
        the node.
        """
        if self._being_given(allocation.node) - {item.uid}:
            raise Conflict(f"node {allocation.node}", 409, message="HAMi is giving devices to another pod")
        pool = self._desk.allocator.devices_of(item.request.pool)
        devices = [device for device in pool if device.name in allocation.devices]
        now = self._client.clock.now()
        return hami_annotations(item, allocation.node, devices, now)

    def _hard_limit(self, item: WaitingWorker, allocation: GpuAllocation) -> int:
        """The limit for the enforcer on the node, which knows percentages only; 0: no limit."""
        devices = self._desk.allocator.devices_of(item.request.pool)
        capacities = [device.capacity or NOTHING for device in devices if device.name in allocation.devices]
        limits = [(item.request.limit.on(capacity).tflops_milli, capacity) for capacity in capacities]
        return max(
            (hard_limit_percent(limit, capacity.tflops_milli) for limit, capacity in limits if limit),
            default=0,
        )

    async def _is_bound(self, item: WaitingWorker, node: str) -> bool:
        """Whether the server has the pod bound, after a response without an answer."""
        request = item.request
        try:
            pod = await self._client.get(PODS, request.name, namespace=request.namespace, into=Pod)
        except KubeError:
            return False
        return pod.metadata.uid == item.uid and pod.spec.node_name == node


def _asked(record: ScaleUpRecord, up_unit: ScaleUpUnit, resource: str) -> dict[str, int]:
    """The requests of a unit's smart pod."""
    if record.key.system in _SEEN_WITHOUT_DEVICES:
        return {}  # the autoscaler counts the CPU and memory of these pods by itself
    asked = {CPU: up_unit.cpu_milli, MEMORY: up_unit.memory_bytes}
    # New nodes do not show the resource of another system from the start, if ever.
    return asked if record.key.system else {resource: up_unit.gpus, **asked}
