"""The strategies by the names that people give them."""

from karpool.gpu.fragmentation import FragmentationAware
from karpool.gpu.placement import (
    COMPACT_FIRST,
    FRAGMENTATION,
    LOW_LOAD_FIRST,
    NODE_COMPACT,
    Strategy,
    by_load,
)
from karpool.model.errors import Invalid

NAMES = (NODE_COMPACT, COMPACT_FIRST, LOW_LOAD_FIRST, FRAGMENTATION)


def named(name: str) -> Strategy:
    """A new one: a strategy that learns must not be shared. Raises Invalid."""
    if name == FRAGMENTATION:
        return FragmentationAware()
    if name in NAMES:
        return by_load(name)
    raise Invalid("strategy", name, f"must be one of {', '.join(NAMES)}")
