"""The strategies by their option names."""

from karpool.gpu.strategies.fragmentation import FragmentationStrategy
from karpool.gpu.strategies.strategy import PlacementStrategy, by_load
from karpool.gpu.strategies.strategy_name import StrategyName


def named(name: StrategyName) -> PlacementStrategy:
    """A new instance: a strategy that learns must not be shared."""
    return FragmentationStrategy() if name is StrategyName.FRAGMENTATION else by_load(name)
