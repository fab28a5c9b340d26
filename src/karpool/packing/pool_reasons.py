"""Why no pool launches a node for a pod: each instance type is counted under its first failed check."""

from collections.abc import Iterable, Sequence

import numpy as np

from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.resources import NODES, show_amount
from karpool.packing.fit_reasons import CLAIMS_UNKNOWN, FitReason
from karpool.packing.new_nodes.domain_choice import DomainChooser, NodeTrial, may_be_alone, open_domains
from karpool.packing.new_nodes.launchable import LaunchablePool, both
from karpool.packing.new_nodes.narrowing import NarrowedNode, Wants, offered
from karpool.packing.new_nodes.pod_ask import PodAsk, refusing_taint
from karpool.packing.tables.columns import Bools

_MAY_PASS = frozenset((FitReason.LIMIT, FitReason.STOCK))


def pool_infeasible(pool: str, reason: FitReason, detail: str, types: int = 0) -> Infeasible[FitReason]:
    """Return why a pool launches nothing for a pod. `types` is how many types this reason alone rules out."""
    return Infeasible(reason, detail, about_pool(pool), types, reason in _MAY_PASS)


def about_pool(pool: str) -> str:
    return f"nodepool {pool}" if pool else ""


def show_pool(infeasible: Infeasible[FitReason]) -> str:
    """Return the text with the name of the pool."""
    pool = infeasible.about.removeprefix("nodepool ")
    return f"pool {pool}: {infeasible.detail}" if pool else infeasible.detail


def explain_pools(
    ask: PodAsk,
    pools: Sequence[CompiledPool],
    launch: Sequence[LaunchablePool],
    settling: DomainChooser,
    resources: Sequence[str],
) -> tuple[Infeasible[FitReason], ...]:
    if not pools:
        return (pool_infeasible("", FitReason.POOL_UNUSABLE, "there is no pool"),)
    by_name = {launchable_pool.offer.pool.name: launchable_pool for launchable_pool in launch}
    reasons: list[Infeasible[FitReason]] = []
    for pool in pools:
        launchable = by_name.get(pool.name)
        if launchable is None:
            reasons.append(pool_infeasible(pool.name, FitReason.POOL_UNUSABLE, _unusable(pool)))
        else:
            reasons += _PoolReasons(ask, launchable, settling, resources).all()
    return tuple(reasons)


def _unusable(pool: CompiledPool) -> str:
    if pool.deleting:
        return "is being deleted"
    return "is static: its size is fixed" if pool.is_static else "is not ready"


class _PoolReasons:
    def __init__(
        self, ask: PodAsk, launch: LaunchablePool, settling: DomainChooser, resources: Sequence[str]
    ) -> None:
        self._ask = ask
        self._launch = launch
        self._offer = launch.offer
        self._settling = settling
        self._resources = resources

    def all(self) -> Iterable[Infeasible[FitReason]]:
        taint = refusing_taint(self._offer.pool.taints, self._ask.attempt)
        if taint is not None:
            yield self._refusal(FitReason.POOL_TAINT, f"taint {taint} untolerated", len(self._offer.types))
        elif not self._offer.types:
            keys = ", ".join(sorted(self._offer.refused)) or "none"
            yield self._refusal(
                FitReason.POOL_REQUIREMENT, f"its requirements leave no instance type (on {keys})"
            )
        elif self._ask.shape.resource_claims and self._launch.claims is None:
            yield self._refusal(FitReason.DYNAMIC_RESOURCES, CLAIMS_UNKNOWN)
        elif not self._ask.choices:
            yield self._refusal(
                FitReason.POOL_REQUIREMENT, "no new node can meet the pod's own node requirements"
            )
        elif not self._launch.has_node_left:
            yield self._limit_reached(NODES, 1)
        else:
            yield from self._of_choice(self._ask.choices[0])

    def _of_choice(self, wants: Wants) -> Iterable[Infeasible[FitReason]]:
        narrowing, number = self._settling.narrowing, self._settling.narrowing.states[self._launch.start].pool
        requirements = narrowing.wanted(wants[0])
        whole = narrowing.narrowed(number, self._offer.requirements, requirements)
        if isinstance(whole, str):
            have = self._offer.requirements.get(whole)
            has = "has no such label" if have is None else f"has {have}"
            message = f"requirement {whole}: the pod wants {requirements[whole]}, the pool {has}"
            yield self._refusal(FitReason.POOL_REQUIREMENT, message, len(self._offer.types))
            return
        state = narrowing.state_of(number, whole)
        left: Bools = np.ones(len(self._offer.types), dtype=np.bool_)
        for key in sorted(requirements.keys() & self._offer.label_keys):
            out = left & ~self._offer.admitting(key, whole[key])
            if out.any():
                yield self._refusal(
                    FitReason.POOL_REQUIREMENT, f"requirement {key} {requirements[key]}", int(out.sum())
                )
            left &= ~out
        yield from self._of_stock(state, left)
        left &= state.types
        yield from self._of_size(left)
        yield from self._of_the_rest(state, left)

    def _of_stock(self, state: NarrowedNode, left: Bools) -> Iterable[Infeasible[FitReason]]:
        out = left & ~state.types
        if not out.any():
            return
        offer = self._offer
        allowed = offer.sold & offered(offer, state.requirements)
        sold = out & np.asarray(allowed.any(axis=(1, 2)))
        if sold.any():
            zones = [offer.zones[index] for index in np.flatnonzero(allowed[sold].any(axis=(0, 2))).tolist()]
            what = f"zone {zones[0]}" if len(zones) == 1 else f"zones {', '.join(zones)}"
            yield self._refusal(FitReason.STOCK, f"{what} out of stock", int(sold.sum()))
        if (never := out & ~sold).any():
            message = "not sold in a zone and capacity type that pod and pool allow"
            yield self._refusal(FitReason.POOL_REQUIREMENT, message, int(never.sum()))

    def _of_size(self, left: Bools) -> Iterable[Infeasible[FitReason]]:
        launch = self._launch
        fits = left & launch.usable
        for index, units in self._ask.amounts:
            fits = fits & (launch.room[index] >= units)
        out = left & ~fits
        if out.any():
            yield self._refusal(
                FitReason.RESOURCES, self._shortage(left, every=not fits.any()), int(out.sum())
            )
        left &= fits

    def _shortage(self, left: Bools, *, every: bool) -> str:
        asked = [(self._resources[index], index, units) for index, units in self._ask.amounts]
        for name, index, units in asked:
            if every and int(self._launch.room[index, left].max()) < units:
                whole = int(self._offer.allocatable(name)[left].max())
                daemons = " next to its daemons" if whole >= units else ""
                return f"no instance type has {_shown(name, units)}{daemons}"
        together = " and ".join(_shown(name, units) for name, _, units in asked if name != "pods")
        if every:
            return f"no instance type has {together or 'a pod slot'} together"
        return f"too small for {together or 'a pod slot'}"

    def _of_the_rest(self, state: NarrowedNode, left: Bools) -> Iterable[Infeasible[FitReason]]:
        launch, ask = self._launch, self._ask
        within = launch.within_limits()
        if within is not None and (out := left & ~within).any():
            yield from self._of_limits(out)
            left &= within
        devices = launch.with_devices(ask.demands, ask.amounts)
        if devices is not None and (out := left & ~devices).any():
            kind = FitReason.DYNAMIC_RESOURCES if ask.shape.resource_claims else FitReason.RESOURCES
            yield self._refusal(kind, f"no such device: the pod asks for {ask.demands[-1]}", int(out.sum()))
            left &= devices
        within = both(within, devices)
        ports = launch.without_ports(ask.ports) if ask.ports else None
        if ports is not None and (out := left & ~ports).any():
            yield self._refusal(
                FitReason.HOST_PORTS, "daemons hold a host port the pod wants", int(out.sum())
            )
            left &= ports
        if not left.any():
            return
        trial = NodeTrial(ask, {}, ask.amounts, both(within, ports))
        if launch.fitting(state, ask.amounts, trial.within) is None:
            yield self._refusal(
                FitReason.MIN_VALUES, "too few instance types left for minValues", int(left.sum())
            )
        elif (
            not may_be_alone(ask)
            or self._settling.settle(state, NodeTrial(ask, open_domains(ask), ask.amounts, trial.within))
            is None
        ):
            yield self._refusal(FitReason.TOPOLOGY, self._topology(), int(left.sum()))

    def _of_limits(self, out: Bools) -> Iterable[Infeasible[FitReason]]:
        for name, left in self._launch.limits.items():
            if name == NODES:
                continue
            needed = self._offer.capacity(name)[out]
            if (needed > left).any():
                yield self._limit_reached(name, int(needed.min()), int((needed > left).sum()))

    def _limit_reached(self, name: str, needed: int, types: int = 0) -> Infeasible[FitReason]:
        left = max(self._launch.limits[name], 0)
        limit = self._offer.pool.limits[name]
        amounts = f"{show_amount(name, left)} of {show_amount(name, limit)} left"
        smallest = "" if name == NODES else f", smallest type needs {show_amount(name, needed)}"
        message = f"limit {name} reached: {amounts}{smallest}"
        return self._refusal(FitReason.LIMIT, message, types or len(self._offer.types))

    def _topology(self) -> str:
        if not may_be_alone(self._ask):
            return "pod affinity on a host name: a new node has no matching pod"
        keys = sorted(axis.key for axis, ok in open_domains(self._ask).items() if not ok.all())
        return f"no open domain for {', '.join(keys)}" if keys else "no domain is left open together"

    def _refusal(self, reason: FitReason, detail: str, types: int = 0) -> Infeasible[FitReason]:
        return pool_infeasible(self._offer.pool.name, reason, detail, types)


def _shown(name: str, units: int) -> str:
    return f"{show_amount(name, units)} {name}"
