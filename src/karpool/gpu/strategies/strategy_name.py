"""The strategies by their option names."""

from enum import StrEnum


class StrategyName(StrEnum):
    NODE_COMPACT = "NodeCompactGPULowLoad"
    COMPACT_FIRST = "CompactFirst"
    LOW_LOAD_FIRST = "LowLoadFirst"
    FRAGMENTATION = "FragmentationAware"
