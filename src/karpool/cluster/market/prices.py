"""Prices in USD per hour. An unknown price, or one that is not a number, is None."""

import math


def usable_price(price: float | None) -> float | None:
    """Return the price; None if it is NaN, infinite or negative."""
    return price if price is not None and math.isfinite(price) and price >= 0 else None
