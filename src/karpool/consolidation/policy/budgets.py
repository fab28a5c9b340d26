"""Computes how many nodes of a pool may be removed now: budgets, disruption rates, and maintenance windows.

Nodes that are not ready or are leaving count against every budget, as in Karpenter. A budget or annotation
that cannot be read closes its own pool and no other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.nodes.state_node import StateNode
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.settings import DisruptionRate, PlanSettings, PoolSettings, any_open
from karpool.consolidation.view import ClusterView, NodeRemoval
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.budgets import UNBOUNDED, allowed_disruptions, budgets_of, grant_of
from karpool.model.karpenter.objects import DEFAULT_DISRUPTION, Budget, NodePool


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """`counted` nodes of a pool are initialised; `consuming` of them are not ready or are leaving."""

    counted: int = 0
    consuming: int = 0


def use_of(machines: Iterable[StateNode], in_flight: Iterable[str] = ()) -> dict[str, BudgetUse]:
    """By pool."""
    going = frozenset(in_flight)
    counted: dict[str, int] = {}
    consuming: dict[str, int] = {}
    for machine in machines:
        if machine.is_counted:
            pool = machine.pool
            counted[pool] = counted.get(pool, 0) + 1
            if machine.is_down or machine.name in going:
                consuming[pool] = consuming.get(pool, 0) + 1
    return {pool: BudgetUse(number, consuming.get(pool, 0)) for pool, number in counted.items()}


def remaining(budgets: Sequence[Budget], use: BudgetUse, reason: str, now: float) -> int:
    return max(0, allowed_disruptions(budgets, use.counted, reason, now) - use.consuming)


@dataclass(slots=True)
class RateAllowance:
    rate: DisruptionRate
    left: int
    pool: str = ""  # empty: of all pools together

    def refusal(self, nodes: int) -> Iterable[Infeasible[ConsolidationReason]]:
        if self.left < nodes:
            whose = f"nodepool {self.pool}" if self.pool else "the cluster"
            message = f"{whose} may lose {self.rate}, and {self.left} are left"
            yield Infeasible(ConsolidationReason.RATE, message, whose if self.pool else "")


@dataclass(slots=True)
class PoolAllowance:
    """The remaining allowance of one pool."""

    pool: str
    left: dict[str, int]  # by disruption reason
    limits: Mapping[str, Infeasible[ConsolidationReason]]  # the limit behind each reason's number
    closed: tuple[Infeasible[ConsolidationReason], ...] = ()
    rate: RateAllowance | None = None

    def refusal(self, reason: DisruptionReason, nodes: int) -> Iterable[Infeasible[ConsolidationReason]]:
        yield from self.closed
        if self.left[reason] < nodes:
            yield self.limits[reason]
        if self.rate is not None:
            yield from self.rate.refusal(nodes)


@dataclass(slots=True)
class DisruptionAllowance:
    """The remaining allowance of all pools. Accepted moves reduce it."""

    pools: dict[str, PoolAllowance]
    rates: list[RateAllowance]

    def copy(self) -> "DisruptionAllowance":
        pools = {
            name: replace(
                allowance, left=dict(allowance.left), rate=replace(allowance.rate) if allowance.rate else None
            )
            for name, allowance in self.pools.items()
        }
        return DisruptionAllowance(pools, [replace(rate) for rate in self.rates])

    def refusal(
        self, reason: DisruptionReason, nodes: Mapping[str, int]
    ) -> tuple[Infeasible[ConsolidationReason], ...]:
        """Why these numbers of nodes per pool may not be removed now; empty if they may."""
        refusals = [why for pool, number in nodes.items() for why in self.pools[pool].refusal(reason, number)]
        refusals += (why for rate in self.rates for why in rate.refusal(sum(nodes.values())))
        return tuple(dict.fromkeys(refusals))

    def take(self, nodes: Mapping[str, int]) -> None:
        for pool, number in nodes.items():
            own = self.pools[pool]
            # A node that is removed for one reason also counts for the others.
            own.left = {reason: left - number for reason, left in own.left.items()}
            if own.rate is not None:
                own.rate.left -= number
        for rate in self.rates:
            rate.left -= sum(nodes.values())


def permission(
    view: ClusterView, settings: PlanSettings, pools: Mapping[str, PoolSettings], now: float
) -> DisruptionAllowance:
    """The allowance of every pool whose settings can be read."""
    uses = use_of(view.machines, view.in_flight)
    closed_for_all = _closed_for_all(view, settings, now)
    allowances: dict[str, PoolAllowance] = {}
    for name, own in pools.items():
        use = uses.get(name, BudgetUse())
        budgets = own.budgets if own.budgets is not None else _budgets(view.pool_objects[name])
        heeds = settings.heed_budgets
        limits: dict[str, Infeasible[ConsolidationReason]] = {
            reason: _limit(name, budgets, use, reason, now) for reason in DisruptionReason
        }
        unreadable = [
            why for why in limits.values() if heeds and why.reason is ConsolidationReason.BUDGET_UNREADABLE
        ]
        allowances[name] = PoolAllowance(
            name,
            {
                reason: remaining(budgets, use, reason, now) if heeds else UNBOUNDED
                for reason in DisruptionReason
            },
            limits,
            (*closed_for_all, *_closed(name, own, now), *dict.fromkeys(unreadable)),
            None if own.rate is None else _rate_left(own.rate, view.recent, now, use.counted, name),
        )
    nodes = sum(use.counted for use in uses.values())
    return DisruptionAllowance(
        allowances, [_rate_left(rate, view.recent, now, nodes) for rate in settings.rates]
    )


def _rate_left(
    rate: DisruptionRate, recent: Iterable[NodeRemoval], now: float, nodes: int, pool: str = ""
) -> RateAllowance:
    """A percentage counts existing nodes and those removed within the period."""
    taken = sum(removal.at > now - rate.seconds and pool in ("", removal.pool) for removal in recent)
    return RateAllowance(rate, max(0, rate.of(nodes + taken) - taken), pool)


def _budgets(pool: NodePool) -> Sequence[Budget]:
    return budgets_of(pool.spec.disruption or DEFAULT_DISRUPTION)


def _closed_for_all(
    view: ClusterView, settings: PlanSettings, now: float
) -> list[Infeasible[ConsolidationReason]]:
    closed_by = [view.stop] if view.stop is not None else []
    if not any_open(settings.windows, now):
        shown = "; ".join(window.text for window in settings.windows)
        closed_by.append(Infeasible(ConsolidationReason.WINDOW, f"no maintenance window is open ({shown})"))
    return closed_by


def _closed(name: str, own: PoolSettings, now: float) -> Iterable[Infeasible[ConsolidationReason]]:
    if own.stopped:
        yield Infeasible(
            ConsolidationReason.STOPPED, f"nodepool {name} is stopped by its annotation", f"nodepool {name}"
        )
    if not any_open(own.windows, now):
        shown = "; ".join(window.text for window in own.windows)
        yield Infeasible(
            ConsolidationReason.WINDOW,
            f"no maintenance window of nodepool {name} is open ({shown})",
            f"nodepool {name}",
        )


def _limit(
    name: str, budgets: Sequence[Budget], use: BudgetUse, reason: str, now: float
) -> Infeasible[ConsolidationReason]:
    """The budget that decides, in words."""
    where = f"nodepool {name}"
    grant = grant_of(budgets, use.counted, reason, now)
    if grant.problem is not None:
        message = f"{where} is closed by an invalid budget: {grant.problem}"
        return Infeasible(ConsolidationReason.BUDGET_UNREADABLE, message, where)
    text = "none" if grant.deciding is None else grant.deciding.nodes
    message = (
        f"budget {text} of {where} allows {grant.allowed} of {use.counted} nodes for {reason}, "
        f"and {use.consuming} are already down or being removed"
    )
    return Infeasible(ConsolidationReason.BUDGET, message, where)
