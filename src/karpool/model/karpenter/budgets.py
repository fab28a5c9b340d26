"""How many nodes of a pool may be disrupted at once: Karpenter's disruption budgets.

A budget with a schedule is active from each start for its duration, in UTC. The smallest active budget for
the reason decides. A budget that cannot be read allows nothing, and blocks the pool for every reason, as
upstream; an inactive budget is not read further.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from karpool.model import durations
from karpool.model.cron import parse_schedule
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import Budget, Disruption

UNBOUNDED = 2**31 - 1
DEFAULT_BUDGETS = (Budget(nodes="10%"),)
# Admission refuses more than 100 %; if such a value exists, it is used as written.
_NODES = re.compile(r"(?P<number>[+-]?[0-9]{1,18})(?P<percent>%?)\Z")


@dataclass(frozen=True, slots=True)
class BudgetGrant:
    """The combined result of budgets. `allowed` is for the reason; unreadable budgets count as 0."""

    allowed: int
    deciding: Budget | None = None  # None: no budget applies to the reason
    problem: Invalid | None = None

    @property
    def effective(self) -> int:
        """The effective number: 0 if any budget cannot be read, whatever its reasons."""
        return 0 if self.problem is not None else self.allowed


def budgets_of(disruption: Disruption) -> Sequence[Budget]:
    """Return the budgets; an explicit empty list is no limit, a missing list is the default."""
    return DEFAULT_BUDGETS if disruption.budgets is None else disruption.budgets


def grant_of(budgets: Sequence[Budget], nodes: int, reason: str, now: float) -> BudgetGrant:
    """Return what the budgets allow of this many nodes; UNBOUNDED if none applies to the reason."""
    allowed, deciding, problem = UNBOUNDED, None, None
    for budget in budgets:
        try:
            own = allowed_by(budget, nodes, now)
        except Invalid as error:
            own, problem = 0, problem or error
        if (budget.reasons is None or reason in budget.reasons) and (deciding is None or own < allowed):
            allowed, deciding = min(own, allowed), budget
    return BudgetGrant(allowed, deciding, problem)


def allowed_disruptions(budgets: Sequence[Budget], nodes: int, reason: str, now: float) -> int:
    return grant_of(budgets, nodes, reason, now).effective


def allowed_by(budget: Budget, nodes: int, now: float) -> int:
    """Return what one budget allows, for any reason. Raises Invalid."""
    if not is_active(budget, now):
        return UNBOUNDED
    match = _NODES.match(budget.nodes)
    if match is None:
        raise Invalid("nodes", budget.nodes, "must be a number of nodes or a percentage like 10%")
    number = int(match["number"])
    return min(-(-number * nodes // 100) if match["percent"] else number, UNBOUNDED)


def is_active(budget: Budget, now: float) -> bool:
    """Whether it is active; a schedule without a duration never is. Raises Invalid."""
    if budget.schedule is None and budget.duration is None:
        return True
    try:
        schedule = parse_schedule(budget.schedule or "")
    except Invalid as error:
        raise error.at("schedule") from None
    try:
        length = durations.seconds("0s" if budget.duration is None else budget.duration)
    except Invalid as error:
        raise error.at("duration") from None
    hit = schedule.next_after(now - length)
    return hit is not None and hit <= now
