"""What a node costs, what its replacement may cost, and what a move saves.

Prices are USD per hour. A price that is not known, or that is no number, is None:
it counts as nothing saved and nothing spent, and whoever asks is told.
"""

from collections.abc import Callable, Iterable

from karpool.cluster.market.prices import usable_price
from karpool.model.catalogue.catalogue import Offering
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED, SPOT

# The order in which Karpenter launches: the first that can be had decides.
LAUNCH_ORDER = (RESERVED, SPOT, ON_DEMAND)
HOURS_PER_MONTH = 730.0


def worst_launch_price(offerings: Iterable[Offering], allows: Callable[[Offering], bool]) -> float | None:
    """The most that a launch may cost: the dearest of the first capacity type that can be had."""
    on_sale = [offering for offering in offerings if offering.available and allows(offering)]
    for capacity_type in LAUNCH_ORDER:
        prices = [offering.price_per_hour for offering in on_sale if offering.capacity_type == capacity_type]
        if prices:
            usable = [usable_price(price) for price in prices]
            priced = [price for price in usable if price is not None]
            # One that is not known might be the dearest.
            return max(priced) if len(priced) == len(usable) else None
    return None
