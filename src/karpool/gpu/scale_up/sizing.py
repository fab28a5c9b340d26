"""Computes how many nodes each record should have in flight: no more than the pending items can fill.

Pending items are packed into the coming units, each key into its own first, then into any. The rest opens new
nodes, largest items first and shared between keys, within the limit of nodes in flight. Units that are not
needed end while they are still only smart pods. Pure.
"""

from dataclasses import replace
from itertools import groupby

from karpool.gpu.records.scale_up_record import ATTEMPTING, ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.demand import ScaleUpCandidate, WaitingWorker
from karpool.gpu.scale_up.fill_order import best_order
from karpool.gpu.scale_up.leave_to_system import coming_bin
from karpool.gpu.scale_up.node_bins import BinPacking, DeviceRoom, NodeBin, fresh_bin, groups
from karpool.gpu.scale_up.step_state import StepState
from karpool.model.devices.node_devices import NodeYield
from karpool.provisioning.candidates.attempts import (
    CandidatesResting,
    NoCandidateLeft,
    RoundExhausted,
    TryCandidate,
    next_candidate,
)

# Ready nodes that wait for the rest of a gang must not block its other nodes.
_GROWS = ATTEMPTING - {ScaleUpState.HANDING_OFF, ScaleUpState.RETRYING}
_WITHOUT_A_NODE = frozenset((ScaleUpState.CREATING, ScaleUpState.PENDING, ScaleUpState.LAUNCHING))


def size_scale_ups(step: StepState) -> None:
    pass_ = _Balance(step)
    left = pass_.into_own()
    pass_.into_any(left)
    pass_.start_units()
    pass_.end_surplus()


class _Balance:
    def __init__(self, step: StepState) -> None:
        self.step = step
        self.names = {
            uid: name for name, demand in step.world.demand.items() for uid in (i.uid for i in demand.items)
        }
        self.coming: dict[str, list[NodeBin]] = {}  # record -> its units, as bins
        self.units: dict[str, tuple[str, ScaleUpUnit]] = {}  # bin -> record and unit
        self.fresh: dict[str, tuple[str, ScaleUpCandidate]] = {}  # bin -> record and rung
        self.packing = BinPacking()
        self.opened: list[NodeBin] = []
        self.rungs: dict[str, ScaleUpCandidate | None] = {}  # record -> the candidate that it may start now
        self.littered = {pod.request for pod in step.world.placeholders if pod.deleting_since is None}
        self.in_flight = sum(len(record.units_in_flight) for record in step.records.values())
        self.ladders = {
            name: {rung.key: rung for rung in demand.ladder} for name, demand in step.world.demand.items()
        }
        for name, record in step.records.items():
            self.coming[name] = [
                self._coming(record, unit)
                for unit in record.active_units
                if unit.stage.place < ScaleUpState.HANDING_OFF.place
            ]

    def _coming(self, record: ScaleUpRecord, unit: ScaleUpUnit) -> NodeBin:
        if record.key.system:
            bin_ = coming_bin(self.step, record, unit)
            self.units[bin_.name] = (record.name, unit)
            return bin_
        rung = self.ladders.get(record.name, {}).get(unit.candidate)
        cpu = rung.brings.cpu_milli if rung else unit.cpu_milli
        memory = rung.brings.memory_bytes if rung else unit.memory_bytes
        model = rung.brings.model if rung else record.key.model
        brings = NodeYield(unit.gpus, unit.tflops_milli, unit.vram_bytes, cpu, memory, model)

        def serves(item: WaitingWorker, room: DeviceRoom) -> bool:
            return self.step.is_served_by(item, record, unit.candidate)

        bin_ = fresh_bin(f"{record.name}/{record.epoch}/{unit.index}", brings, serves)
        self.units[bin_.name] = (record.name, unit)
        return bin_

    def into_own(self) -> list[WaitingWorker]:
        """Items that do not fit into the units of their own record.

        Members of a gang count one by one: with a low limit their nodes come one after the other, and wait
        for each other when they are ready.
        """
        step, held = self.step, self.step.held_anywhere()
        packings = {name: BinPacking(bins) for name, bins in self.coming.items()}
        waiting = [item for item in step.items.values() if item.uid not in held and step.is_whole(item)]
        left = []
        for item in (item for group in groups(waiting) for item in group):
            name = self.names[item.uid]
            if name not in packings or packings[name].put(item) is None:
                left.append(item)
        return left

    def into_any(self, left: list[WaitingWorker]) -> None:
        packing = self.packing = BinPacking(bin_ for bins in self.coming.values() for bin_ in bins)
        order = {name: record.attempt_started for name, record in self.step.records.items()}
        # The longest wait for an attempt comes first; among records without an attempt, the largest.
        left.sort(key=lambda item: order.get(self.names[item.uid], 0.0))
        for _, turn in groupby(left, key=lambda item: order.get(self.names[item.uid], 0.0)):
            for item in self._ordered([worker for worker in turn if packing.put(worker) is None]):
                packing.put_all([item], self._open)
        for bin_ in packing.bins:
            owner = self.units.get(bin_.name, ("", None))[0] or self.fresh[bin_.name][0]
            for placement in bin_.placed:
                if self.names[placement.item.uid] != owner:
                    self.step.joined[placement.item.uid] = owner
        self.opened = [bin_ for bin_ in packing.bins if bin_.name in self.fresh]

    def _ordered(self, items: list[WaitingWorker]) -> list[WaitingWorker]:
        """For each candidate to launch, the order that needs the fewest nodes of it."""
        by_rung: dict[str, tuple[ScaleUpCandidate | None, list[WaitingWorker]]] = {}
        for item in items:
            rung = self._rung(self.names[item.uid])
            by_rung.setdefault(rung.key if rung else "", (rung, []))[1].append(item)
        return [
            item
            for rung, group in by_rung.values()
            for item in (best_order(group, rung.brings) if rung is not None else group)
        ]

    def _open(self, item: WaitingWorker) -> NodeBin | None:
        """A new node for this item, if its record may start one now."""
        name = self.names[item.uid]
        rung = self._rung(name)
        settings = self.step.settings
        opened = [self.fresh[bin_.name][0] for bin_ in self.packing.bins if bin_.name in self.fresh]
        if rung is None or self.in_flight + len(opened) >= settings.in_flight_cap:
            return None
        if opened.count(name) >= settings.max_units:
            return None
        step, record, candidate = self.step, self.step.records[name], rung.key

        def serves(other: WaitingWorker, room: DeviceRoom) -> bool:
            return step.is_served_by(other, record, candidate)

        bin_ = fresh_bin(f"fresh/{len(self.fresh)}", rung.brings, serves, drivers=rung.drivers)
        self.fresh[bin_.name] = (name, rung)
        return bin_

    def _rung(self, name: str) -> ScaleUpCandidate | None:
        if name not in self.rungs:
            self.rungs[name] = self._may_start(name)
        return self.rungs[name]

    def _may_start(self, name: str) -> ScaleUpCandidate | None:
        step = self.step
        record = step.records.get(name)
        if record is None or not record.uid:
            return None
        match record.state:
            case ScaleUpState.BUFFERED:
                due = max(record.state_since + step.settings.debounce, record.next_attempt)
            case ScaleUpState.BACKOFF | ScaleUpState.EXHAUSTED:
                due = record.next_attempt
            case state if state in _GROWS:
                due = record.next_attempt
            case _:
                return None
        if step.now < due:
            step.wake.append(due)
            return None
        if record.state not in _GROWS and name in self.littered:
            return None  # smart pods of an earlier attempt must be gone first
        return self._chosen(record)

    def _chosen(self, record: ScaleUpRecord) -> ScaleUpCandidate | None:
        step = self.step
        ladder = self.ladders[record.name]
        choice = next_candidate(
            [rung.candidate for rung in ladder.values()],
            record.memory,
            round_number=record.round,
            now=step.now,
            resting=step.world.resting,
        )
        match choice:
            case TryCandidate(candidate=candidate):
                return ladder[candidate.key]
            case CandidatesResting(until=until, reason=why):
                self._note(record, record.state, until, why)
            case RoundExhausted(until=until, reason=why) if not record.active_units:
                self._note(record, ScaleUpState.EXHAUSTED, until, why)
            case NoCandidateLeft(reason=why) if not record.active_units:
                self._note(record, ScaleUpState.REJECTED, step.now + step.settings.rejected_wait, why)
        return None

    def _note(self, record: ScaleUpRecord, state: ScaleUpState, until: float, why: str) -> None:
        since = record.state_since if state is record.state else self.step.now
        self.step.wake.append(until)
        self.step.records[record.name] = replace(
            record, state=state, state_since=since, next_attempt=until, message=why
        )

    def start_units(self) -> None:
        for bin_ in self.opened:
            name, rung = self.fresh[bin_.name]
            record = self.step.records[name]
            if record.state not in ATTEMPTING:
                record = self._begin(record)
            unit = _unit(record.next_index, bin_, rung, self.step.now)
            self.step.records[name] = replace(record, units=(*record.units, unit))

    def _begin(self, record: ScaleUpRecord) -> ScaleUpRecord:
        """Start a new attempt. Its epoch is above that of any smart pod that may still exist."""
        pods = (pod.epoch for pod in self.step.world.placeholders if pod.request == record.name)
        return replace(
            record,
            epoch=max(record.epoch, *pods, 0) + 1,
            state=ScaleUpState.CREATING,
            state_since=self.step.now,
            attempt_started=self.step.now,
            units=(),
            retried={},
            reason="",
            message="",
        )

    def end_surplus(self) -> None:
        """End surplus units whose smart pod is not bound; a launched node is used or left to its
        autoscaler.
        """
        for bins in self.coming.values():
            for bin_ in reversed(bins):
                name, unit = self.units[bin_.name]
                if not bin_.placed and unit.stage in _WITHOUT_A_NODE and not unit.node:
                    self.step.end_unit(name, unit)


def _unit(index: int, bin_: NodeBin, rung: ScaleUpCandidate, now: float) -> ScaleUpUnit:
    placed = [placement.item.request for placement in bin_.placed]
    return ScaleUpUnit(
        index=index,
        gpus=bin_.used_rooms,
        cpu_milli=sum(request.cpu_milli for request in placed),
        memory_bytes=sum(request.memory_bytes for request in placed),
        candidate=rung.key,
        stage=ScaleUpState.CREATING,
        since=now,
        started=now,
        devices=rung.brings.devices,
        tflops_milli=rung.brings.tflops_milli,
        vram_bytes=rung.brings.vram_bytes,
        about=str(rung)[:200],
    )
