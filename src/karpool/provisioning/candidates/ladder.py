"""The ladder of candidates for a request: narrow and preferred first, the widest last.

Alternatives (the required terms of the pending pods, in order) are combined with their preferences (heaviest
first) and matched with each pool in Karpenter's order. A combination that no pool can launch is skipped with
a reason. The types of one rung have the same devices, so that a rung has one yield; cheaper rungs come first.
Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.requirements import Requirements, ValueSet, combined, conflict
from karpool.model.resources import is_extended, show
from karpool.model.taints import NO_SCHEDULE, Taint, Toleration, untolerated
from karpool.packing.new_nodes.offerings import OFFERING_KEYS, Offerings, PoolOfferings
from karpool.packing.tables.columns import Bools
from karpool.provisioning.node_request import NodeCandidate

# Labels by which providers tell devices apart; the number of devices is a resource.
_DEVICE_LABELS = (
    "gpu-name",
    "gpu-memory",
    "gpu-manufacturer",
    "accelerator-name",
    "accelerator-manufacturer",
)
CANDIDATES_MAX = 200  # longer ladders are cut, and the result says so
_OWN_PARTS = frozenset((NODEPOOL, INSTANCE_TYPE, *OFFERING_KEYS))


@dataclass(frozen=True, slots=True)
class CandidateQuery:
    """Where units may run: alternatives, of which one must hold, and preferences by weight.

    `resources` is the largest unit. `only` restricts the types beyond labels; `why_not` explains what is
    wrong with the types if `only` accepts none of them.
    """

    resources: Mapping[str, int]
    alternatives: tuple[Requirements, ...] = ({},)
    preferences: tuple[tuple[int, Requirements], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    overhead: Mapping[str, int] = field(default_factory=dict)  # of the daemons on every node
    only: Callable[[InstanceType], bool] | None = None
    devices: tuple[str, ...] = ()  # resources that are equal for all types of a rung
    why_not: Callable[[Sequence[InstanceType]], str] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A pool that cannot serve the request, or a part of the ladder that was cut."""

    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class CandidateLadder:
    candidates: tuple[NodeCandidate, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rung:
    pool: CompiledPool
    types: tuple[InstanceType, ...]
    requirements: Requirements
    tolerations: tuple[Toleration, ...]
    price: float | None
    devices: tuple[int, ...]

    @property
    def order(self) -> tuple[bool, float, tuple[int, ...], tuple[str, ...]]:
        names = tuple(instance_type.name for instance_type in self.types)
        return self.price is None, self.price or 0.0, self.devices, names


def ladder(wish: CandidateQuery, pools: Iterable[CompiledPool], offerings: Offerings) -> CandidateLadder:
    """Return the candidates; empty if no pool can ever launch one, and `skipped` then says why."""
    ordered = sorted(pools, key=lambda pool: pool.name, reverse=True)
    ordered.sort(key=lambda pool: -pool.weight)
    skipped: dict[str, str] = {}
    tries = _Tries(wish, offerings)
    usable = [pool for pool in ordered if not _note(skipped, pool, tries.refusal(pool))]
    candidates = [candidate for rung in tries.narrow(usable, skipped) for candidate in rung]
    candidates += tries.wide(usable)
    unique = list({candidate.key: candidate for candidate in reversed(candidates)}.values())[::-1]
    if len(unique) > CANDIDATES_MAX:
        cut = f"{len(unique) - CANDIDATES_MAX} rungs before the widest are left out"
        skipped[""] = cut
        unique = [*unique[: CANDIDATES_MAX - 1], unique[-1]]
    served = {pool for candidate in unique for pool in candidate.pools}
    return CandidateLadder(
        tuple(unique), tuple(Skipped(pool, why) for pool, why in skipped.items() if pool not in served)
    )


def _note(skipped: dict[str, str], pool: CompiledPool, reason: str | None) -> bool:
    if reason is not None:
        skipped.setdefault(pool.name, reason)
    return reason is not None


class _Tries:
    def __init__(self, wish: CandidateQuery, offerings: Offerings) -> None:
        self._wish = wish
        self._offerings = offerings
        self._devices = sorted({*wish.devices, *(name for name in wish.resources if is_extended(name))})
        self._needed = dict(wish.resources)
        for name, units in wish.overhead.items():
            self._needed[name] = self._needed.get(name, 0) + units

    def refusal(self, pool: CompiledPool) -> str | None:
        """Return why a pool as a whole cannot serve the request."""
        if not pool.is_usable:
            return (
                "it is static" if pool.is_static else "it is being deleted" if pool.deleting else "not ready"
            )
        if (taint := untolerated(pool.taints, self._tolerations(pool))) is not None:
            return f"the pods do not tolerate its taint {taint}"
        over = [name for name, most in pool.limits.items() if most < self._wish.resources.get(name, 0)]
        return f"its limits are below what is asked for: {', '.join(sorted(over))}" if over else None

    def narrow(self, pools: Sequence[CompiledPool], skipped: dict[str, str]) -> Iterator[list[NodeCandidate]]:
        """Yield every alternative with each preference, then every alternative alone."""
        preferences = sorted(self._wish.preferences, key=lambda preference: -preference[0])
        for preferred in (*(requirements for _, requirements in preferences), None):
            for alternative in self._wish.alternatives:
                if preferred is not None and conflict(alternative, preferred, frozenset(preferred)):
                    continue
                requirements = combined(alternative, preferred or {})
                for pool in pools:
                    rungs = self._rungs(pool, requirements, skipped if preferred is None else {})
                    yield [
                        _candidate(requirements, [rung]) for rung in sorted(rungs, key=lambda one: one.order)
                    ]

    def wide(self, pools: Sequence[CompiledPool]) -> Iterator[NodeCandidate]:
        """Yield one candidate for each alternative, with all pools and types."""
        for alternative in self._wish.alternatives:
            rungs = [rung for pool in pools for rung in self._rungs(pool, alternative, {})]
            if rungs:
                yield _candidate(alternative, rungs)

    def _rungs(self, pool: CompiledPool, requirements: Requirements, skipped: dict[str, str]) -> list[_Rung]:
        offered = self._offerings.for_pool(pool)
        if (key := conflict(offered.requirements, requirements, offered.open_keys)) is not None:
            skipped.setdefault(pool.name, f"its nodes cannot have {key} {requirements[key]}")
            return []
        labelled = _admitted(offered, requirements)
        if not labelled.any():
            skipped.setdefault(pool.name, "none of its instance types has the labels asked for")
            return []
        fitting = labelled & self._holding(offered)
        if not fitting.any():
            skipped.setdefault(pool.name, f"none of its instance types holds {show(self._needed)}")
            return []
        types = [offered.types[row] for row in np.flatnonzero(fitting)]
        if self._wish.only is not None:
            suitable = [instance_type for instance_type in types if self._wish.only(instance_type)]
            if not suitable and pool.name not in skipped:
                detail = f": {self._wish.why_not(types)}" if self._wish.why_not is not None else ""
                skipped[pool.name] = f"none of its instance types has suitable devices{detail}"
            types = suitable
        by_yield = sorted(types, key=lambda instance_type: (self._yield(instance_type), instance_type.name))
        return [
            self._rung(pool, offered, requirements, tuple(same))
            for _, same in groupby(by_yield, key=self._yield)
        ]

    def _holding(self, offered: PoolOfferings) -> Bools:
        holds: Bools = np.ones(len(offered.types), dtype=np.bool_)
        for name, units in self._needed.items():
            holds &= offered.allocatable(name) >= units
        return holds

    def _yield(self, instance_type: InstanceType) -> tuple[tuple[int, ...], tuple[str, ...]]:
        labels = tuple(
            f"{key} {values}"
            for key, values in sorted(instance_type.requirements.items())
            if key.endswith(_DEVICE_LABELS)
        )
        return tuple(
            instance_type.capacity.get(name, 0) for name in self._devices
        ), labels if self._devices else ()

    def _rung(
        self,
        pool: CompiledPool,
        offered: PoolOfferings,
        requirements: Requirements,
        types: tuple[InstanceType, ...],
    ) -> _Rung:
        rows = [offered.names.index(instance_type.name) for instance_type in types]
        prices = offered.prices[rows][_sold(offered, requirements)[rows]]
        best = float(prices.min()) if prices.size else float("inf")
        return _Rung(
            pool,
            types,
            requirements,
            _of_taints(pool.taints, self._wish.tolerations),
            None if best == float("inf") else best,
            self._yield(types[0])[0],
        )

    def _tolerations(self, pool: CompiledPool) -> tuple[Toleration, ...]:
        """Return the tolerations of the pods, and those for taints that reserve nodes for the devices."""
        return (
            *self._wish.tolerations,
            *(_tolerating(taint) for taint in pool.taints if taint.key in self._devices),
        )


def _of_taints(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> tuple[Toleration, ...]:
    """Return the tolerations that a placeholder needs for hard taints that the pods do not tolerate."""
    return tuple(_tolerating(taint) for taint in taints if untolerated((taint,), tolerations) is not None)


def _tolerating(taint: Taint) -> Toleration:
    return Toleration(key=taint.key, operator="Exists", effect=taint.effect or NO_SCHEDULE)


def _candidate(requirements: Requirements, rungs: Sequence[_Rung]) -> NodeCandidate:
    prices = [rung.price for rung in rungs if rung.price is not None]
    return NodeCandidate(
        pools=tuple(sorted({rung.pool.name for rung in rungs})),
        instance_types=tuple(sorted({instance_type.name for rung in rungs for instance_type in rung.types})),
        zones=_listed(requirements.get(ZONE)),
        capacity_types=_listed(requirements.get(CAPACITY_TYPE)),
        requirements={key: values for key, values in requirements.items() if not _is_part(key, values)},
        tolerations=tuple(dict.fromkeys(toleration for rung in rungs for toleration in rung.tolerations)),
        price=min(prices, default=None),
    )


def _is_part(key: str, values: ValueSet) -> bool:
    """Whether a field of the candidate covers the key: pools and types always, zones if listed."""
    return key in (NODEPOOL, INSTANCE_TYPE) or (key in _OWN_PARTS and bool(_listed(values)))


def _listed(values: ValueSet | None) -> tuple[str, ...]:
    return () if values is None or values.complement else tuple(sorted(values.values))


def _admitted(offered: PoolOfferings, requirements: Requirements) -> Bools:
    """Return the types with the required labels and an offering that matches the requirements."""
    rows: Bools = np.ones(len(offered.types), dtype=np.bool_)
    for key, values in requirements.items():
        if key not in OFFERING_KEYS and key != NODEPOOL and key in offered.label_keys:
            rows &= offered.admitting(key, values)
    admitted: Bools = rows & _sold(offered, requirements).any(axis=(1, 2))
    return admitted


def _sold(offered: PoolOfferings, requirements: Requirements) -> Bools:
    """Return the offerings of the pool that match the requirements, in stock or not."""
    zones, kinds = requirements.get(ZONE), requirements.get(CAPACITY_TYPE)
    in_zone = np.array([zones is None or zone in zones for zone in offered.zones], dtype=np.bool_)
    of_kind = np.array([kinds is None or kind in kinds for kind in offered.capacity_types], dtype=np.bool_)
    sold: Bools = offered.sold & in_zone[None, :, None] & of_kind[None, None, :]
    return sold


def sold_by(candidate: NodeCandidate, offered: PoolOfferings) -> Bools:
    """Return the offerings of one pool that a candidate includes."""
    rows = np.array(
        [not candidate.instance_types or name in candidate.instance_types for name in offered.names],
        dtype=np.bool_,
    )
    sold: Bools = _sold(offered, candidate.constraints) & rows[:, None, None]
    return sold
