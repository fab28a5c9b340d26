"""Decides which pending workers are served now, which a new node would help, and which nothing helps.

Every worker is first tried on free devices; only a failure for lack of capacity is demand. Devices of nodes
that were launched for a scale-up are left to it until it is complete. Demand counts against quota together
with the demand before it, so that no node is launched for a pod that its quota will not admit. Reservations
made here are real; the caller commits or drops them. No I/O.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from karpool.gpu.allocation.allocation import GpuAllocation
from karpool.gpu.allocation.allocator import Allocator, known_charge
from karpool.gpu.allocation.open_nodes import NodeHold, OpenNodes
from karpool.gpu.allocation.preemption import PreemptionVictims, find_victims
from karpool.gpu.scale_up.demand import GpuDemand, ScaleUpCandidate, WaitingWorker, by_key
from karpool.gpu.scale_up.feasibility import Answers, feasible
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.gpu.scale_up.node_bins import by_service, signature
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.infeasible import Infeasible

CandidateSource = Callable[[WaitingWorker], tuple[ScaleUpCandidate, ...]]
Why = Callable[[WaitingWorker], str]
_BAD = frozenset(
    (
        DeviceReason.POOL_NAME_EMPTY,
        DeviceReason.GPU_COUNT_OUT_OF_RANGE,
        DeviceReason.BAD_GPU_INDICES,
        DeviceReason.BAD_REQUEST,
    )
)


@dataclass
class TriageResult:
    served: list[tuple[WaitingWorker, GpuAllocation]] = field(default_factory=list)
    demand: dict[str, GpuDemand] = field(default_factory=dict)
    refused: dict[str, WaitExplanation] = field(default_factory=dict)
    refusals: dict[str, NoDevice] = field(default_factory=dict)


def triage(
    items: Sequence[WaitingWorker],
    allocator: Allocator,
    ladders: CandidateSource,
    *,
    now: float,
    until: float,
    reserved_nodes: Collection[str] = (),
    open_nodes: OpenNodes | None = None,
    gangs_running: Mapping[str, int] | None = None,
    nominated: Mapping[WaitingWorker, str] | None = None,
    answers: Answers | None = None,
    why_none: Why = lambda item: "",
    unenforced: Why = lambda item: "",
) -> TriageResult:
    """`until` is when the reservations of workers served now expire. Items with a hold stay demand.

    `open_nodes` says which nodes fit a pod; None if only devices are known. `nominated` are workers with a
    nominated node (by name). `why_none` says why an item has no candidate at all.
    """
    result = TriageResult()
    promised = _Promised(allocator, nominated or {}, now)
    serving = _Serving(allocator, open_nodes, frozenset(reserved_nodes), now, until)
    failed: list[WaitingWorker] = []
    refused_alike: dict[object, NoDevice] = {}  # devices only fill up here: equal pods get equal answers
    failed.extend(item for item in items if item.system is not None)  # its own scheduler found no capacity
    ours = [item for item in items if item.system is None]
    for item in ours:
        if why := unenforced(item):
            result.refused[item.uid] = WaitExplanation(item.uid, WaitReason.NOT_ENFORCED, why)
    for group in by_service(item for item in ours if item.uid not in result.refused):
        held = any(item.uid in allocator.ledger.assumed for item in group)
        if held or not _is_whole(group, gangs_running or {}):
            failed.extend(group)
            continue
        promised.reserve_before(group)
        alike = _alike(group[0]) if len(group) == 1 else None
        answer = refused_alike.get(alike) or serving.serve(group)
        if isinstance(answer, Infeasible):
            failed.extend(group)
            result.refusals.update({item.uid: answer for item in group})
            if alike is not None:
                refused_alike[alike] = answer
        else:
            result.served.extend(zip(group, answer, strict=True))
    promised.drop()
    _weigh(failed, allocator, ladders, result, answers=answers, why_none=why_none)
    return result


class _Promised:
    """Reserves devices for nominated workers while workers that must not take them are served."""

    def __init__(self, allocator: Allocator, nominated: Mapping[WaitingWorker, str], now: float) -> None:
        self._allocator = allocator
        self._waiting = dict(nominated)
        self._now = now
        self._reserved: list[str] = []

    def reserve_before(self, group: Sequence[WaitingWorker]) -> None:
        ahead = [worker for worker in self._waiting if any(must_leave_room(item, worker) for item in group)]
        for worker in sorted(ahead, key=lambda worker: worker.rank):
            node = self._waiting.pop(worker)
            devices = self._allocator.devices_of(worker.request.pool)
            only = [device.name for device in devices if device.node == node]
            chosen = self._allocator.find(worker.request, only)
            if isinstance(chosen, Infeasible):
                continue
            if not isinstance(self._allocator.hold(worker.request, chosen, self._now), Infeasible):
                self._reserved.append(worker.uid)

    def drop(self) -> None:
        for uid in self._reserved:
            self._allocator.drop(uid)


def must_leave_room(current: WaitingWorker, nominated: WaitingWorker) -> bool:
    """Whether the nominated worker goes first: it has a higher priority, or the same and is of the
    same gang.
    """
    if nominated.request.priority != current.request.priority:
        return nominated.request.priority > current.request.priority
    return current.request.gang is not None and nominated.gang == current.gang


def _alike(item: WaitingWorker) -> object:
    """Equal for workers that fit in exactly the same places now."""
    return item.request.namespace, signature(item), item.shape


def _is_whole(group: Sequence[WaitingWorker], running: Mapping[str, int]) -> bool:
    gang = group[0].request.gang
    return gang is None or len(group) + running.get(gang.group, 0) >= gang.required_members


@dataclass(frozen=True)
class _Serving:
    """Reservations on nodes that fit the pod and are not reserved for a scale-up."""

    allocator: Allocator
    open_nodes: OpenNodes | None
    reserved: frozenset[str]
    now: float
    until: float

    def serve(self, group: Sequence[WaitingWorker]) -> list[GpuAllocation] | NoDevice:
        """Serve all of a group, or none."""
        served: list[GpuAllocation] = []
        for item in group:
            answer = self._one(item)
            if isinstance(answer, Infeasible):
                for done in served:
                    self._drop(done.uid)
                return answer
            served.append(answer)
        return served

    def _one(self, item: WaitingWorker) -> GpuAllocation | NoDevice:
        open_nodes = self.open_nodes
        answer = self.allocator.try_allocate(
            item.request,
            self.now,
            avoid_nodes=self.reserved,
            nodes=None if open_nodes is None else open_nodes.choice(item.shape),
            until=self.until,
        )
        if open_nodes is not None and isinstance(answer, GpuAllocation):
            open_nodes.hold(item.uid, NodeHold(answer.node, item.shape, answer.devices))
        return answer

    def _drop(self, uid: str) -> None:
        self.allocator.drop(uid)
        if self.open_nodes is not None:
            self.open_nodes.drop(uid)


def _weigh(
    failed: Sequence[WaitingWorker],
    allocator: Allocator,
    ladders: CandidateSource,
    result: TriageResult,
    *,
    answers: Answers | None,
    why_none: Why,
) -> None:
    """Check whether a new node could help and quota would admit it. Accepted demand counts for the next."""
    counted = []
    accepted: list[WaitingWorker] = []
    rungs: dict[str, tuple[ScaleUpCandidate, ...]] = {}
    judged: dict[object, tuple[ScaleUpCandidate, ...] | NoDevice] = {}
    for key, items in by_key(failed).items():
        for item in items:
            refusal = result.refusals.get(item.uid)
            if refusal is not None and refusal.reason in (
                *_BAD,
                DeviceReason.QUOTA_EXCEEDED,
                DeviceReason.NOT_RECOVERED,
            ):
                result.refused[item.uid] = _told(item, refusal)
                continue
            kind = (signature(item), item.request.indices)
            if kind not in judged:
                judged[kind] = _rungs(item, allocator, ladders, answers, why_none)
            answer = judged[kind]
            if isinstance(answer, Infeasible):
                victims = find_victims(allocator, item.request) if refusal is not None else None
                result.refused[item.uid] = _told(item, answer, never=True, victims=victims)
                continue
            common = _common(rungs.get(key.name), answer)
            if not common:  # amounts of one key differ by less than the rounding, but matter here
                result.refused[item.uid] = WaitExplanation(
                    item.uid, WaitReason.WAITING, "others of its shape come first"
                )
                continue
            if item.system is None and item.uid not in allocator.ledger.assumed:
                charge = known_charge(item.request)
                over = allocator.quotas.check(item.request.namespace, charge)
                if over is not None:
                    result.refused[item.uid] = _told(item, over)
                    continue
                allocator.quotas.assume(item.request.namespace, charge)
                counted.append((item.request.namespace, charge))
            accepted.append(item)
            rungs[key.name] = common
    for namespace, charge in counted:
        allocator.quotas.forget(namespace, charge)
    for key, items in by_key(accepted).items():
        result.demand[key.name] = GpuDemand(key, items, rungs[key.name])


def _rungs(
    item: WaitingWorker,
    allocator: Allocator,
    ladders: CandidateSource,
    answers: Answers | None,
    why_none: Why,
) -> tuple[ScaleUpCandidate, ...] | NoDevice:
    """The candidates for the item; those of other systems' pods are checked when they are made."""
    rungs = ladders(item)
    if not rungs:
        return no_device(DeviceReason.NO_CANDIDATES, why_none(item) or "there is no candidate")
    return rungs if item.system is not None else feasible(item, rungs, allocator.settings.policy, answers)


def _common(
    one: tuple[ScaleUpCandidate, ...] | None, other: tuple[ScaleUpCandidate, ...]
) -> tuple[ScaleUpCandidate, ...]:
    """Candidates that serve both, in the order of the first."""
    if one is None or one == other:
        return other
    keys = {rung.key for rung in other}
    return tuple(rung for rung in one if rung.key in keys)


def _told(
    item: WaitingWorker, refusal: NoDevice, *, never: bool = False, victims: PreemptionVictims | None = None
) -> WaitExplanation:
    if refusal.reason is DeviceReason.QUOTA_EXCEEDED:
        advice = "it waits for quota, not for nodes" if refusal.resolvable else "waiting cannot help"
        return WaitExplanation(item.uid, WaitReason.QUOTA, f"{refusal.detail}; {advice}")
    if refusal.reason in _BAD:
        return WaitExplanation(item.uid, WaitReason.BAD_REQUEST, refusal.detail)
    if never:
        text = f"no node that can be launched would serve it: {refusal.detail}"
        if victims is not None:
            text += f"; {victims}"
        return WaitExplanation(item.uid, WaitReason.NEVER_FITS, text)
    return WaitExplanation(item.uid, WaitReason.WAITING, refusal.detail)
