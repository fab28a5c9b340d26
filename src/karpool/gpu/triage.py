"""Who of the waiting workers is served now, whom a node would help, and whom nothing helps.

Everybody is first tried on the devices that are free; only what fails there for lack of
room is demand. Devices of nodes that came for a scale-up are left to it until it is
done. Demand counts against quota together with the demand before it, so that no node is
bought for a pod that its quota will not admit. Reservations made here are real; the
caller commits them or drops them. No I/O.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from karpool.gpu.allocation import Allocation
from karpool.gpu.allocator import Allocator, known_charge
from karpool.gpu.demand import Demand, Item, Rung, by_key
from karpool.gpu.feasibility import Answers, feasible
from karpool.gpu.quantity import by_service, signature
from karpool.gpu.refusals import Code, Refusal
from karpool.gpu.world import Explanation, Tell
from karpool.model.taints import Taint, Toleration, untolerated

Ladders = Callable[[Item], tuple[Rung, ...]]
Why = Callable[[Item], str]
_BAD = frozenset((Code.POOL_NAME_EMPTY, Code.GPU_COUNT_OUT_OF_RANGE, Code.BAD_GPU_INDICES, Code.BAD_REQUEST))


@dataclass
class Triage:
    served: list[tuple[Item, Allocation]] = field(default_factory=list)
    demand: dict[str, Demand] = field(default_factory=dict)
    refused: dict[str, Explanation] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)


def triage(
    items: Sequence[Item],
    allocator: Allocator,
    ladders: Ladders,
    *,
    now: float,
    until: float,
    reserved_nodes: Collection[str] = (),
    taints: Mapping[str, Sequence[Taint]] | None = None,
    gangs_running: Mapping[str, int] | None = None,
    answers: Answers | None = None,
    why_none: Why = lambda item: "",
) -> Triage:
    """`until` is when reservations for those served now lapse. Items with a hold stay demand.

    `why_none` says why an item has no candidate at all.
    """
    found = Triage()
    open_ = _Open(allocator, frozenset(reserved_nodes), taints or {})
    failed: list[Item] = []
    known: dict[object, Refusal] = {}  # devices only get fuller here: equal pods get equal answers
    for group in by_service(items):
        held = any(item.uid in allocator.ledger.assumed for item in group)
        if held or not _is_whole(group, gangs_running or {}):
            failed.extend(group)
            continue
        alike = (group[0].request.namespace, signature(group[0])) if len(group) == 1 else None
        answer = known.get(alike) or _serve(group, allocator, open_, now, until)
        if isinstance(answer, Refusal):
            failed.extend(group)
            found.refusals.update({item.uid: answer for item in group})
            if alike is not None:
                known[alike] = answer
        else:
            found.served.extend(zip(group, answer, strict=True))
    _weigh(failed, allocator, ladders, found, answers=answers, why_none=why_none)
    return found


class _Open:
    """The devices of its pool that an item may take: not reserved, and on nodes it tolerates."""

    def __init__(
        self, allocator: Allocator, reserved: frozenset[str], taints: Mapping[str, Sequence[Taint]]
    ) -> None:
        self._allocator = allocator
        self._reserved = reserved
        self._taints = taints
        self._known: dict[tuple[str, tuple[Toleration, ...]], frozenset[str]] = {}

    def of(self, item: Item) -> frozenset[str] | None:
        """None: all of them."""
        if not self._reserved and not self._taints:
            return None
        key = (item.request.pool, item.tolerations)
        if key not in self._known:
            refused = {
                node
                for node, taints in self._taints.items()
                if untolerated(taints, item.tolerations) is not None
            }
            closed = self._reserved | refused
            every = self._allocator.devices_of(item.request.pool)
            self._known[key] = frozenset(each.name for each in every if each.node not in closed)
        return self._known[key]


def _is_whole(group: Sequence[Item], running: Mapping[str, int]) -> bool:
    gang = group[0].request.gang
    return gang is None or len(group) + running.get(gang.group, 0) >= gang.required_members


def _serve(
    group: Sequence[Item], allocator: Allocator, open_: _Open, now: float, until: float
) -> list[Allocation] | Refusal:
    """All of a group, or none."""
    served: list[Allocation] = []
    for item in group:
        answer = allocator.try_allocate(item.request, now, only=open_.of(item), until=until)
        if isinstance(answer, Refusal):
            for done in served:
                allocator.drop(done.uid)
            return answer
        served.append(answer)
    return served


def _weigh(
    failed: Sequence[Item],
    allocator: Allocator,
    ladders: Ladders,
    found: Triage,
    *,
    answers: Answers | None,
    why_none: Why,
) -> None:
    """Could a new node help, and would quota let it? Demand is counted as it is accepted."""
    counted = []
    accepted: list[Item] = []
    rungs: dict[str, tuple[Rung, ...]] = {}
    judged: dict[object, tuple[Rung, ...] | Refusal] = {}
    for key, items in by_key(failed).items():
        for item in items:
            refusal = found.refusals.get(item.uid)
            if refusal is not None and refusal.code in (*_BAD, Code.QUOTA_EXCEEDED, Code.NOT_RECOVERED):
                found.refused[item.uid] = _told(item, refusal)
                continue
            kind = (signature(item), item.request.indices)
            if kind not in judged:
                rungs_of = ladders(item)
                judged[kind] = (
                    feasible(item, rungs_of, allocator.settings, answers)
                    if rungs_of
                    else Refusal(Code.NO_CANDIDATES, why_none(item) or "there is no candidate")
                )
            answer = judged[kind]
            if isinstance(answer, Refusal):
                found.refused[item.uid] = _told(item, answer, never=True)
                continue
            common = _common(rungs.get(key.name), answer)
            if not common:  # amounts of one key differ by less than they are rounded, yet matter here
                found.refused[item.uid] = Explanation(
                    item.uid, Tell.WAITING, "others of its shape come first"
                )
                continue
            if item.uid not in allocator.ledger.assumed:
                charge = known_charge(item.request)
                over = allocator.quotas.check(item.request.namespace, charge)
                if over is not None:
                    found.refused[item.uid] = _told(item, over)
                    continue
                allocator.quotas.assume(item.request.namespace, charge)
                counted.append((item.request.namespace, charge))
            accepted.append(item)
            rungs[key.name] = common
    for namespace, charge in counted:
        allocator.quotas.forget(namespace, charge)
    for key, items in by_key(accepted).items():
        found.demand[key.name] = Demand(key, items, rungs[key.name])


def _common(one: tuple[Rung, ...] | None, other: tuple[Rung, ...]) -> tuple[Rung, ...]:
    """Candidates that serve both, in the order of the first."""
    if one is None or one == other:
        return other
    keys = {rung.key for rung in other}
    return tuple(rung for rung in one if rung.key in keys)


def _told(item: Item, refusal: Refusal, *, never: bool = False) -> Explanation:
    if refusal.code is Code.QUOTA_EXCEEDED:
        advice = "waiting cannot help" if refusal.unresolvable else "it waits for quota, not for nodes"
        return Explanation(item.uid, Tell.QUOTA, f"{refusal.message}; {advice}")
    if refusal.code in _BAD:
        return Explanation(item.uid, Tell.BAD_REQUEST, refusal.message)
    if never:
        text = f"no node that may be launched could serve it, so none is bought: {refusal.message}"
        return Explanation(item.uid, Tell.NEVER_FITS, text)
    return Explanation(item.uid, Tell.WAITING, refusal.message)
