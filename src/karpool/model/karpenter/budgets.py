"""How many nodes of a pool may be disrupted at once: Karpenter's disruption budgets.

A budget with a schedule counts from each hit for its duration, in UTC. The smallest
that is active and speaks of the reason decides. Any budget that cannot be read closes
the pool for every reason, as upstream.
"""

import re
from collections.abc import Sequence

from karpool.model import durations
from karpool.model.cron import parse_schedule
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import Budget, Disruption

UNBOUNDED = 2**31 - 1
DEFAULT_BUDGETS = (Budget(nodes="10%"),)
_NODES = re.compile(r"(?:(?P<percent>100|[0-9]{1,2})%|(?P<count>[0-9]{1,18}))\Z")


def budgets_of(disruption: Disruption) -> Sequence[Budget]:
    """An explicit empty list is no bound at all; none is the default."""
    return DEFAULT_BUDGETS if disruption.budgets is None else disruption.budgets


def allowed_disruptions(budgets: Sequence[Budget], nodes: int, reason: str, now: float) -> int:
    """Of so many nodes; UNBOUNDED when no budget speaks of the reason."""
    try:
        values = [(budget, allowed_by(budget, nodes, now)) for budget in budgets]
    except Invalid:
        return 0
    matching = (value for budget, value in values if budget.reasons is None or reason in budget.reasons)
    return min(matching, default=UNBOUNDED)


def allowed_by(budget: Budget, nodes: int, now: float) -> int:
    """What one budget allows, whatever the reason. Raises Invalid."""
    match = _NODES.match(budget.nodes)
    if match is None:
        raise Invalid("nodes", budget.nodes, "must be a number of nodes or a percentage like 10%")
    if not is_active(budget, now):
        return UNBOUNDED
    if match["percent"] is not None:
        return -(-int(match["percent"]) * nodes // 100)
    return min(int(match["count"]), UNBOUNDED)


def is_active(budget: Budget, now: float) -> bool:
    """Raises Invalid."""
    if budget.schedule is None and budget.duration is None:
        return True
    try:
        schedule = parse_schedule(budget.schedule or "")
    except Invalid as error:
        raise error.at("schedule") from None
    try:
        length = durations.seconds(budget.duration or "")
    except Invalid as error:
        raise error.at("duration") from None
    hit = schedule.next_after(now - length)
    return hit is not None and hit <= now
