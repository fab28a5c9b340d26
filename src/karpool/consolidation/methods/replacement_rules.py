"""Karpenter's rules for the types that may replace nodes, on plain values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Karpenter replaces a single spot node by spot only among this many cheaper types, so that the new node is
# not replaced again at once.
SPOT_TYPES_MIN = 15


def cheaper_types(worst_prices: Mapping[str, float | None], current_per_hour: float) -> list[str]:
    """The types that cost less than the current price, whatever is launched. None: not available."""
    return [name for name, price in worst_prices.items() if price is not None and price < current_per_hour]


@dataclass(frozen=True, slots=True)
class SpotAnswer:
    """`launch_types`: how many of the cheapest types to request; 0 if it is not allowed."""

    allowed: bool
    launch_types: int
    reason: str = ""


def spot_to_spot(
    candidates: int, cheaper: int, *, enabled: bool, min_values_types: int | None = None
) -> SpotAnswer:
    """Whether spot nodes may be replaced by spot with these cheaper types.

    `min_values_types`: how many types satisfy the pool's minValues.
    """
    if not enabled:
        return SpotAnswer(False, 0, "replacing spot by spot is switched off")
    if candidates == 1 and cheaper < SPOT_TYPES_MIN:
        return SpotAnswer(
            False, 0, f"replacing one spot node needs {SPOT_TYPES_MIN} cheaper types, there are {cheaper}"
        )
    if cheaper == 0:
        return SpotAnswer(False, 0, "no type is cheaper")
    if candidates > 1:
        return SpotAnswer(True, cheaper)
    return SpotAnswer(True, min(cheaper, max(SPOT_TYPES_MIN, min_values_types or 0)))


def same_type_ceiling(
    sources: Iterable[tuple[str, float]], options: Iterable[tuple[str, float]]
) -> float | None:
    """The price ceiling for the replacement of several nodes; None: no ceiling.

    If the replacement could be of a type that one source has, keeping that source would be as good.
    """
    offered = {name for name, _ in options}
    return min((price for name, price in sources if name in offered), default=None)


def without_same_types(
    sources: Sequence[tuple[str, float]], options: Sequence[tuple[str, float]]
) -> list[tuple[str, float]]:
    """The options (types and prices) that are better than keeping one of the sources. May be empty."""
    ceiling = same_type_ceiling(sources, options)
    return [option for option in options if ceiling is None or option[1] < ceiling]
