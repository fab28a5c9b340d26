"""How many volumes nodes may have attached, as their CSINodes say it, by driver.

A resource of the node for each driver that some node limits. A node whose CSINode does not limit a driver, or
which has none, takes any number, as kube-scheduler sees it; one whose CSINode cannot be read takes none.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from karpool.model.resources import ATTACHED_VOLUMES
from karpool.packing.tables.node_table import NodeRow

_ANY_NUMBER = 1 << 31


class AttachLimits:
    def __init__(self) -> None:
        self.drivers: frozenset[str] = frozenset()  # that some node limits
        self._by_node: dict[str, Mapping[str, int] | None] = {}
        self._nodes_of: Counter[str] = Counter()  # by driver

    def put(self, node: str, limits: Mapping[str, int] | None) -> None:
        """None: they cannot be read; empty: there are none."""
        self._nodes_of.subtract(list(self._by_node.pop(node, None) or ()))
        if limits is None or limits:
            self._by_node[node] = limits
            self._nodes_of.update(list(limits or ()))
        self.drivers = frozenset(driver for driver, nodes in self._nodes_of.items() if nodes > 0)

    def nodes(self) -> list[str]:
        return list(self._by_node)

    def limited(self, node: NodeRow) -> NodeRow:
        """The node with its limits among what it offers, in place of any that were there."""
        offered = node.allocatable
        if self.drivers or any(name.startswith(ATTACHED_VOLUMES) for name in offered):
            others = {name: units for name, units in offered.items() if not name.startswith(ATTACHED_VOLUMES)}
            node = replace(node, allocatable={**others, **self._offered(node.name)})
        return node

    def _offered(self, node: str) -> dict[str, int]:
        limits = self._by_node.get(node, {})
        return {
            f"{ATTACHED_VOLUMES}{driver}": 0 if limits is None else limits.get(driver, _ANY_NUMBER)
            for driver in self.drivers
        }
