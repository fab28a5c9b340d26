"""Prices in USD per hour. A price that is not known, or that is no number, is None."""

import math


def usable_price(price: float | None) -> float | None:
    """None for what cannot be added up: NaN, infinite or negative."""
    return price if price is not None and math.isfinite(price) and price >= 0 else None
