"""The strategies by the names that people give them."""

from enum import StrEnum


class StrategyName(StrEnum):
    NODE_COMPACT = "NodeCompactGPULowLoad"
    COMPACT_FIRST = "CompactFirst"
    LOW_LOAD_FIRST = "LowLoadFirst"
    FRAGMENTATION = "FragmentationAware"
