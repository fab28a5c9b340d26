"""The state of one step: the changing records, and the actions decided for them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.demand import GpuDemand, WaitingWorker, key_of
from karpool.gpu.scale_up.input import (
    CommitHold,
    CreatePlaceholder,
    DeletePlaceholder,
    DeviceHold,
    HoldDevices,
    ReleaseHold,
    ScaleUpInput,
    WaitExplanation,
)
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.provisioning.candidates.attempts import attempt_delay_seconds, remember
from karpool.provisioning.names import digest
from karpool.provisioning.placeholders.placeholder import Placeholder

PodKey = tuple[str, int, int]  # record, epoch, index


class StepState:
    def __init__(self, world: ScaleUpInput, settings: ScaleUpSettings) -> None:
        self.world = world
        self.settings = settings
        self.now = world.now
        self.records: dict[str, ScaleUpRecord] = dict(sorted(world.records.items()))
        self.pods: dict[PodKey, Placeholder] = {
            (pod.request, pod.epoch, pod.index): pod for pod in world.placeholders
        }
        self.items: dict[str, WaitingWorker] = {
            item.uid: item
            for demand in world.demand.values()
            for item in demand.items
            if item.uid not in world.committed
        }
        self.holds: dict[str, DeviceHold] = dict(world.holds)
        self._gangs = Counter(item.gang for item in self.items.values())
        self.remove: list[ScaleUpRecord] = []
        self.creates: list[CreatePlaceholder] = []
        self.deletes: dict[str, DeletePlaceholder] = {}
        self.new_holds: list[HoldDevices] = []
        self.drops: list[ReleaseHold] = []
        self.commits: list[CommitHold] = []
        self.explanations: dict[str, WaitExplanation] = {}
        self.joined: dict[str, str] = {}  # uid -> the record whose units will serve it
        self.wake: list[float] = []

    def demand(self, name: str) -> GpuDemand | None:
        return self.world.demand.get(name)

    def waiting(self, name: str) -> list[WaitingWorker]:
        """Pending items of a record's key that can start and are not committed, in the order of service."""
        demand = self.demand(name)
        items = () if demand is None else demand.items
        return [item for item in items if item.uid in self.items and self.is_whole(item)]

    def is_whole(self, item: WaitingWorker) -> bool:
        """Whether enough members of its gang exist to start it; later members join the running ones."""
        gang = item.request.gang
        if gang is None:
            return True
        return self._gangs[item.gang] + self.world.gangs_running.get(gang.group, 0) >= gang.required_members

    def is_served_by(self, item: WaitingWorker, record: ScaleUpRecord, candidate: str) -> bool:
        """Whether a node of this candidate, launched for the record, would also serve the item."""
        if (item.system or "") != record.key.system:
            return False
        name = key_of(item).name
        demand = self.demand(name)
        return name == record.name or (demand is not None and demand.rung(candidate) is not None)

    def pod(self, record: ScaleUpRecord, unit: ScaleUpUnit) -> Placeholder | None:
        return self.pods.get((record.name, record.epoch, unit.index))

    def held_anywhere(self) -> set[str]:
        return {uid for record in self.records.values() for unit in record.active_units for uid in unit.held}

    def put_unit(self, name: str, unit: ScaleUpUnit) -> None:
        record = self.records[name]
        units = tuple(unit if up_unit.index == unit.index else up_unit for up_unit in record.units)
        if units != record.units:
            self.records[name] = replace(record, units=units)

    def fail_unit(self, name: str, unit: ScaleUpUnit, setback: LaunchReason) -> None:
        """End the unit, release its holds, and remember the failure of its candidate."""
        self.release(unit.held)
        self.put_unit(name, replace(unit, ended=setback, held=(), since=self.now))
        record = self.records[name]
        if setback is LaunchReason.DEVICE_NOT_READY:
            record = replace(record, bad_nodes=tuple(sorted({*record.bad_nodes, unit.node}))[-_NODES_KEPT:])
        self.records[name] = with_setback(record, unit.candidate, setback, self.now)
        if setback is LaunchReason.STOCK_OUT:
            self._end_idle_siblings(name, unit.candidate)

    def _end_idle_siblings(self, name: str, candidate: str) -> None:
        """End units whose smart pod has no reaction yet: the autoscaler would try the same offering again for
        them.
        """
        for unit in self.records[name].active_units:
            if unit.candidate == candidate and unit.stage in (ScaleUpState.CREATING, ScaleUpState.PENDING):
                self.put_unit(name, replace(unit, ended=LaunchReason.STOCK_OUT, since=self.now))

    def end_unit(self, name: str, unit: ScaleUpUnit) -> None:
        """End a unit that is not needed, without learning from it."""
        self.release(unit.held)
        self.put_unit(name, replace(unit, ended=LaunchReason.SURPLUS, held=(), since=self.now))

    def release(self, uids: Iterable[str]) -> None:
        for uid in uids:
            if self.holds.pop(uid, None) is not None:
                self.drops.append(ReleaseHold(uid))

    def delete(self, pod: Placeholder, reason: str) -> None:
        """Delete a smart pod; retries have an exponential back-off."""
        last, times = self.world.deletes.get(pod.uid, (None, 0))
        if pod.deleting_since is not None:  # it is being deleted already, perhaps by an earlier process
            last, times = max(last or 0.0, pod.deleting_since), max(times, 1)
        if last is not None:
            wait = min(
                self.settings.delete_retry * 2.0 ** min(times - 1, 20), self.settings.delete_retry_limit
            )
            if self.now < last + wait:
                self.wake.append(last + wait)
                return
        self.deletes[pod.uid] = DeletePlaceholder(pod, reason)
        self.wake.append(self.now + self.settings.delete_retry)


_NODES_KEPT = 20


def with_setback(record: ScaleUpRecord, candidate: str, setback: LaunchReason, now: float) -> ScaleUpRecord:
    """The record after a failed unit. The wait before the next attempt grows with each counted failure; the
    jitter is derived from the record, so that a step can be repeated.
    """
    if setback is not LaunchReason.CREATE_REFUSED:  # that says nothing about the candidate
        memory = remember(record.memory, candidate, setback, round_number=record.round, now=now)
        spent = memory[candidate].round >= record.round and not memory[candidate].excluded
        record = replace(record, memory=memory)
        if not spent:
            return replace(record, next_attempt=max(record.next_attempt, now))
    attempts = record.attempts + 1
    draw = int(digest(f"{record.name}/{record.epoch}/{attempts}", 8), 16) / 0xFFFFFFFF
    wait = attempt_delay_seconds(attempts, draw)
    return replace(record, attempts=attempts, next_attempt=max(record.next_attempt, now + wait))
