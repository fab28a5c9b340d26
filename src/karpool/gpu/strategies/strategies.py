"""The strategies by the names that people give them."""

from karpool.gpu.strategies.fragmentation import FragmentationStrategy
from karpool.gpu.strategies.strategy import (
    COMPACT_FIRST,
    FRAGMENTATION,
    LOW_LOAD_FIRST,
    NODE_COMPACT,
    PlacementStrategy,
    by_load,
)
from karpool.model.errors import Invalid

NAMES = (NODE_COMPACT, COMPACT_FIRST, LOW_LOAD_FIRST, FRAGMENTATION)


def named(name: str) -> PlacementStrategy:
    """A new one: a strategy that learns must not be shared. Raises Invalid."""
    if name == FRAGMENTATION:
        return FragmentationStrategy()
    if name in NAMES:
        return by_load(name)
    raise Invalid("strategy", name, f"must be one of {', '.join(NAMES)}")
