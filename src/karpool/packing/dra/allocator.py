"""The search for devices: first fit, depth first, in the order of Kubernetes' allocator (v0.36.6).

Claims are tried in the order of the pod, requests in the order of the claim, and devices in the order of
pools, slices and devices; the first full solution wins. Inside one request only later devices are tried, so
that a request never takes a device twice. The search is exhaustive up to `STEPS_MAX` steps; beyond that the
result is unknown.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from karpool.model.dra.claim import (
    ALL,
    EXACT_COUNT,
    AllocatedDevice,
    Allocation,
    ClaimSpec,
    DeviceRequest,
    DraClass,
)
from karpool.model.dra.device import DeviceId, DeviceSlice, DraDevice, PoolKey
from karpool.model.dra.selector import SelectorError
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.requirements import NodeSelector, NodeSelectorTerm, node_terms_of
from karpool.model.taints import untolerated
from karpool.packing.dra import consumption
from karpool.packing.dra.constraints import ClaimConstraint, constraint_of
from karpool.packing.dra.held import AllocatedState
from karpool.packing.dra.outcome import DraFailure, DraOutcome, DraStatus
from karpool.packing.dra.pools import BadPlace, DevicePool, NodeView, serves
from karpool.packing.dra.stock import DeviceStock

RESULTS_MAX = 32  # limit of the API for one claim
# Devices tried in one search: well below a second. kube-scheduler gives up after ten seconds.
STEPS_MAX = 200_000
NEW_SHARE = "new"  # placeholder for the share ID that the writer of the claim generates


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A claim to allocate: its name for messages, and its spec."""

    name: str
    spec: ClaimSpec


def allocate(
    stock: DeviceStock,
    node: NodeView,
    claims: Sequence[NamedClaim],
    held: AllocatedState,
    pools: Sequence[DevicePool] | None = None,
) -> DraOutcome:
    """Allocate devices for all claims of a pod on a node, all or nothing; the outcome says why not."""
    try:
        search = _Search(stock, node, claims, held, stock.slices.pools_of(node) if pools is None else pools)
        return search.run()
    except (DraFailure, SelectorError, BadPlace) as error:
        return DraOutcome(DraStatus.ERROR, str(error))
    except (_OutOfSteps, RecursionError):
        return DraOutcome(
            DraStatus.UNKNOWN, f"cannot tell: the search for devices takes more than {STEPS_MAX} steps"
        )


class _OutOfSteps(Exception):
    pass


class _TooMany(Exception):
    """The claim would get more devices than an allocation result can hold."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    device: DraDevice
    slice_: DeviceSlice
    pool: DevicePool


@dataclass(slots=True)
class _Asked:
    request: DeviceRequest
    device_class: DraClass
    count: int
    every: tuple[_Candidate, ...] | None = None  # mode All: exactly these devices


@dataclass(frozen=True, slots=True)
class _Position:
    """The next device to search for."""

    claim: int = 0
    request: int = 0
    alternative: int | None = None
    device: int = 0


class _Search:
    def __init__(
        self,
        stock: DeviceStock,
        node: NodeView,
        claims: Sequence[NamedClaim],
        held: AllocatedState,
        pools: Sequence[DevicePool],
    ) -> None:
        self._stock, self._node, self._claims, self._held, self._pools = stock, node, claims, held, pools
        self._features = stock.features
        self._candidates = [
            _Candidate(device, slice_, pool)
            for pool in pools
            if pool.is_usable
            for device, slice_ in pool.candidates
        ]
        self._steps = 0
        self._chosen: dict[tuple[int, int], int] = {}
        self._results: list[list[tuple[_Candidate, DeviceRequest, AllocatedDevice]]] = [[] for _ in claims]
        self._users: dict[DeviceId, set[int]] = {}  # the claims that get each device
        self._promised: dict[DeviceId, dict[str, int]] = {}  # amounts of shared devices
        self._counters_left: dict[PoolKey, dict[tuple[str, str], int]] = {}
        self._refused: Counter[str] = Counter()
        self._wanting = ""
        self._asked = [
            [
                [self._validated(claim, request) for request in group.alternatives]
                for group in claim.spec.requests
            ]
            for claim in self._checked(claims)
        ]
        self._constraints = [self._constraints_of(claim) for claim in claims]
        self._check_sizes()

    def run(self) -> DraOutcome:
        try:
            fits = self._from(_Position(), 0)
        except _TooMany:
            raise DraFailure(f"more than {RESULTS_MAX} devices for one claim") from None
        if not fits:
            return DraOutcome(DraStatus.UNSCHEDULABLE, self._why_not())
        return DraOutcome(
            DraStatus.FITS, allocations=tuple(self._allocation(index) for index in range(len(self._claims)))
        )

    def _why_not(self) -> str:
        broken = [pool for pool in self._pools if not pool.is_usable]
        parts = [f"{count} {cause}" for cause, count in self._refused.most_common()]
        parts += [
            f"pool {'/'.join(pool.key)} is {'invalid: ' + pool.invalid if pool.invalid else 'incomplete'}"
            for pool in broken
        ]
        seen = ", ".join(parts) or "no device is published for the node"
        return f"no device for {self._wanting}: {seen}" if self._wanting else seen

    # The requests

    def _checked(self, claims: Sequence[NamedClaim]) -> Iterator[NamedClaim]:
        for claim in claims:
            for group in claim.spec.requests:
                if group.prioritized and not self._features.prioritized_list:
                    raise DraFailure(
                        f"claim {claim.name}, request {group.name}: alternatives need DRAPrioritizedList"
                    )
                if not group.alternatives:
                    raise DraFailure(f"claim {claim.name}, request {group.name}: is of an unknown kind")
                for request in group.alternatives:
                    if request.capacity is not None and not self._features.consumable_capacity:
                        raise DraFailure(
                            f"claim {claim.name}, request {request.full_name}: asks for capacity, and "
                            "DRAConsumableCapacity is off"
                        )
            yield claim

    def _validated(self, claim: NamedClaim, request: DeviceRequest) -> _Asked:
        where = f"claim {claim.name}, request {request.full_name}"
        if None in request.selectors:
            raise DraFailure(f"{where}: has a selector of an unknown kind")
        if request.admin_access is not None and not self._features.admin_access:
            raise DraFailure(f"{where}: asks for admin access, and DRAAdminAccess is off")
        device_class = self._stock.classes.get(request.device_class)
        if device_class is None:
            raise DraFailure(f"{where}: device class {request.device_class!r} does not exist")
        asked = _Asked(request, device_class, request.count)
        if request.mode == ALL:
            for pool in self._pools:
                if not pool.is_usable:
                    state = "incomplete" if pool.incomplete else f"invalid ({pool.invalid})"
                    raise DraFailure(
                        f"{where}: asks for all devices, and pool {'/'.join(pool.key)} is {state}"
                    )
            asked.every = tuple(
                candidate
                for candidate in self._candidates
                if self._is_selected(asked, candidate) and self._has_capacity(request, candidate.device)
            )
            asked.count = len(asked.every)
        elif request.mode != EXACT_COUNT:
            raise DraFailure(f"{where}: allocation mode {request.mode!r} is not supported")
        return asked

    def _constraints_of(self, claim: NamedClaim) -> list[ClaimConstraint]:
        constraints = []
        for index, constraint in enumerate(claim.spec.constraints):
            if not constraint.attribute:
                raise DraFailure(f"claim {claim.name}, constraint {index}: is of an unknown kind")
            constraints.append(constraint_of(constraint, lists=self._features.list_attributes))
        return constraints

    def _check_sizes(self) -> None:
        for claim, requests in zip(self._claims, self._asked, strict=True):
            least = sum(min(asked.count for asked in alternatives) for alternatives in requests)
            if least > RESULTS_MAX:
                raise DraFailure(
                    f"claim {claim.name}: asks for {least} devices, at most {RESULTS_MAX} may be"
                )

    # The search

    def _from(self, at: _Position, start: int) -> bool:
        """Whether all requests from this position on get devices."""
        if at.claim >= len(self._claims):
            return True
        groups = self._claims[at.claim].spec.requests
        if at.request >= len(groups):
            try:
                return self._from(_Position(at.claim + 1), 0)
            except _TooMany:
                return False  # another choice for an earlier claim may leave a smaller alternative
        alternatives = self._asked[at.claim][at.request]
        if at.alternative is None:
            if groups[at.request].prioritized:
                return self._first_available(at, len(alternatives))
            at = _Position(at.claim, at.request, 0, at.device)
        assert at.alternative is not None
        asked = alternatives[at.alternative]
        if asked.every is not None and not asked.every:
            self._refuse(at, asked, "that matches")
            return False
        if at.device >= asked.count:
            return self._from(_Position(at.claim, at.request + 1), 0)
        if asked.count - at.device > RESULTS_MAX - len(self._results[at.claim]):
            raise _TooMany
        if asked.every is not None:
            return self._every(at, asked, asked.every)
        return self._some(at, asked, start)

    def _first_available(self, at: _Position, alternatives: int) -> bool:
        all_too_many = True
        for number in range(alternatives):
            try:
                fits = self._from(_Position(at.claim, at.request, number), 0)
            except _TooMany:
                continue
            all_too_many = False
            if fits:
                self._chosen[at.claim, at.request] = number
                return True
        if all_too_many:
            raise _TooMany
        return False

    def _every(self, at: _Position, asked: _Asked, every: tuple[_Candidate, ...]) -> bool:
        return self._then(at, asked, every[at.device], 0, must=True)

    def _some(self, at: _Position, asked: _Asked, start: int) -> bool:
        request = asked.request
        for number in range(start, len(self._candidates)):
            self._steps += 1
            if self._steps > STEPS_MAX:
                raise _OutOfSteps
            candidate = self._candidates[number]
            device = candidate.device
            if self._is_taken(at.claim, request, device.id):
                self._refuse(at, asked, "held")
                continue
            if not self._is_selected(asked, candidate):
                self._refuse(at, asked, "not selected")
                continue
            if not self._has_capacity(request, device):
                self._refuse(at, asked, "without the capacity")
                continue
            if self._then(at, asked, candidate, number + 1):
                return True
        return False

    def _refuse(self, at: _Position, asked: _Asked, cause: str) -> None:
        wanting = f"claim {self._claims[at.claim].name}, request {asked.request.full_name}"
        if wanting != self._wanting:  # messages name the last request without a device
            self._wanting = wanting
            self._refused.clear()
        self._refused[cause] += 1

    def _is_taken(self, claim: int, request: DeviceRequest, device: DeviceId) -> bool:
        if request.admin_access:
            return claim in self._users.get(device, ())
        return device in self._held.whole or bool(self._users.get(device))

    def _is_selected(self, asked: _Asked, candidate: _Candidate) -> bool:
        device = candidate.device
        if not self._features.binding_conditions and device.binding_conditions:
            return False
        for text in (*asked.device_class.selectors, *asked.request.selectors):
            if text is None:
                raise DraFailure(f"class {asked.device_class.name}: has a selector of an unknown kind")
            if not self._stock.memo.matches(text, device):
                return False
        if candidate.slice_.per_device:
            return device.place is not None and serves(device.place, self._node, f"device {device.id}")
        return True

    def _has_capacity(self, request: DeviceRequest, device: DraDevice) -> bool:
        if not self._features.consumable_capacity:
            return True
        held, promised = self._held.amounts.get(device.id, {}), self._promised.get(device.id, {})
        return consumption.fits(device, request.capacity, held, promised)

    def _then(
        self, at: _Position, asked: _Asked, candidate: _Candidate, start: int, *, must: bool = False
    ) -> bool:
        """Give the device to the claim and continue; take it back if a later request fails."""
        undo: list[tuple[str, int]] = []
        fits = False
        try:
            fits = self._give(at, asked, candidate, must, undo) and self._from(_next(at), start)
        finally:
            if not fits:
                self._take_back(at, asked, candidate, undo)
        return fits

    def _give(
        self, at: _Position, asked: _Asked, candidate: _Candidate, must: bool, undo: list[tuple[str, int]]
    ) -> bool:
        request, device = asked.request, candidate.device
        shared = self._features.consumable_capacity and device.shareable
        if (not shared or not request.admin_access) and self._is_taken(at.claim, request, device.id):
            self._refuse(at, asked, "held")
            return False
        if device.counters:
            if not self._features.partitionable_devices:
                return False
            in_use = device.id in self._held.amounts or device.id in self._promised
            if not (shared and in_use):
                if not self._reserve_counters(candidate):
                    self._refuse(at, asked, "without counters left")
                    return False
                undo.append(("counters", 0))
        if self._features.taints and untolerated(device.taints, request.tolerations) is not None:
            self._refuse(at, asked, "tainted")
            return False
        for number, constraint in enumerate(self._constraints[at.claim]):
            if not constraint.add(request, device):
                if must:
                    raise DraFailure(
                        f"claim {self._claims[at.claim].name}, request {request.full_name}: asks for all "
                        f"devices, and device {device.id} breaks a constraint"
                    )
                self._refuse(at, asked, "against a constraint")
                return False
            undo.append(("constraint", number))
        if not shared:
            self._users.setdefault(device.id, set()).add(at.claim)
            undo.append(("user", 0))
        amounts: dict[str, int] = {}
        if self._features.consumable_capacity:
            if not self._has_capacity(request, device):
                self._refuse(at, asked, "without the capacity")
                return False
            if shared:
                amounts = consumption.consumed(device, request.capacity)
                undo.append(("amounts", int(device.id in self._promised)))
                promised = self._promised.setdefault(device.id, {})
                for name, amount in amounts.items():
                    promised[name] = promised.get(name, 0) + amount
        self._results[at.claim].append((candidate, request, self._result(request, device, shared, amounts)))
        undo.append(("result", 0))
        return True

    def _result(
        self, request: DeviceRequest, device: DraDevice, shared: bool, amounts: Mapping[str, int]
    ) -> AllocatedDevice:
        binds = self._features.binding_conditions
        return AllocatedDevice(
            request.full_name,
            device.id,
            bool(request.admin_access),
            NEW_SHARE if shared else None,
            tuple(amounts.items()) or None,
            request.tolerations,
            device.binding_conditions if binds else None,
            device.binding_failure_conditions if binds else None,
        )

    def _take_back(
        self, at: _Position, asked: _Asked, candidate: _Candidate, undo: Sequence[tuple[str, int]]
    ) -> None:
        device = candidate.device
        for what, number in reversed(undo):
            match what:
                case "result":
                    self._results[at.claim].pop()
                case "amounts":
                    promised = self._promised[device.id]
                    for name, amount in consumption.consumed(device, asked.request.capacity).items():
                        promised[name] -= amount
                    if not number and not any(promised.values()):
                        del self._promised[device.id]
                case "user":
                    self._users[device.id].discard(at.claim)
                case "constraint":
                    self._constraints[at.claim][number].remove(asked.request)
                case "counters":
                    self._move_counters(candidate, 1)

    def _reserve_counters(self, candidate: _Candidate) -> bool:
        """Reserve the counters of a device; returns False if one would be overdrawn."""
        left = self._move_counters(candidate, -1)
        if any(amount < 0 for amount in left.values()):
            self._move_counters(candidate, 1)
            return False
        return True

    def _move_counters(self, candidate: _Candidate, sign: int) -> Mapping[tuple[str, str], int]:
        pool = candidate.pool
        left = self._counters_left.get(pool.key)
        if left is None:
            left = self._counters_left[pool.key] = pool.counters_left(self._held)
        for use in candidate.device.counters:
            for counter, amount in use.counters:
                left[use.counter_set, counter] += sign * amount
        return left

    # The result

    def _allocation(self, index: int) -> Allocation:
        results = self._results[index]
        selector = _node_selector([candidate for candidate, _, _ in results], self._node.name)
        return Allocation(
            tuple(result for _, _, result in results),
            node_terms_of(selector),
            selector,
            tuple(self._configs(index)),
        )

    def _configs(self, index: int) -> Iterator[tuple[str, tuple[str, ...], Mapping[str, object]]]:
        """Return the configurations of each class once, with their requests, then those of the claim."""
        spec = self._claims[index].spec
        by_class: dict[str, tuple[DraClass, list[str]]] = {}
        for number in range(len(spec.requests)):
            asked = self._asked[index][number][self._chosen.get((index, number), 0)]
            name = asked.device_class.name
            by_class.setdefault(name, (asked.device_class, []))[1].append(asked.request.full_name)
        for device_class, requests in by_class.values():
            for config in device_class.config:
                yield "FromClass", tuple(requests), config.opaque
        for config in spec.config:
            if not config.requests:
                yield "FromClaim", (), config.opaque
                continue
            for number, group in enumerate(spec.requests):
                chosen = self._asked[index][number][self._chosen.get((index, number), 0)].request
                if group.name in config.requests or (
                    group.prioritized and chosen.full_name in config.requests
                ):
                    yield "FromClaim", config.requests, config.opaque


def _next(at: _Position) -> _Position:
    return _Position(at.claim, at.request, at.alternative, at.device + 1)


def _node_selector(candidates: Sequence[_Candidate], node: str) -> NodeSelector | None:
    """Return where all the devices can be used together; None: everywhere."""
    fields: list[SelectorRequirement] = []
    labels: list[SelectorRequirement] = []
    for candidate in candidates:
        place = candidate.device.place if candidate.slice_.per_device else candidate.slice_.place
        if (place is not None and place.node is not None) or candidate.device.binds_to_node:
            name = SelectorRequirement(key="metadata.name", operator="In", values=[node])
            return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[name])])
        terms = (place.selector.node_selector_terms or []) if place is not None and place.selector else []
        if len(terms) > 1:
            raise DraFailure(f"slice {candidate.slice_.name}: its node selector has {len(terms)} terms")
        for term in terms:
            _add_new(fields, term.match_fields)
            _add_new(labels, term.match_expressions)
    if not fields and not labels:
        return None
    term = NodeSelectorTerm(match_fields=fields or None, match_expressions=labels or None)
    return NodeSelector(node_selector_terms=[term])


def _add_new(requirements: list[SelectorRequirement], more: Sequence[SelectorRequirement] | None) -> None:
    for entry in more or ():
        same = (
            other.key == entry.key
            and other.operator == entry.operator
            and set(other.values or ()) == set(entry.values or ())
            for other in requirements
        )
        if not any(same):
            requirements.append(entry)
