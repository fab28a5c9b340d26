"""Computes what a node costs, what its replacement may cost, and what a move saves.

Prices are USD per hour. An unknown price, or one that is not a number, is None: it counts as zero for savings
and costs, and callers see it.
"""

from collections.abc import Callable, Iterable

from karpool.cluster.market.prices import usable_price
from karpool.model.catalogue.catalogue import Offering
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED, SPOT

# The order in which Karpenter launches: the first available capacity type decides.
LAUNCH_ORDER = (RESERVED, SPOT, ON_DEMAND)
HOURS_PER_MONTH = 730.0


def worst_launch_price(offerings: Iterable[Offering], allows: Callable[[Offering], bool]) -> float | None:
    """The highest price of a launch: the costliest offering of the first available capacity type."""
    on_sale = [offering for offering in offerings if offering.available and allows(offering)]
    for capacity_type in LAUNCH_ORDER:
        prices = [offering.price_per_hour for offering in on_sale if offering.capacity_type == capacity_type]
        if prices:
            usable = [usable_price(price) for price in prices]
            priced = [price for price in usable if price is not None]
            # An unknown price might be the highest.
            return max(priced) if len(priced) == len(usable) else None
    return None
