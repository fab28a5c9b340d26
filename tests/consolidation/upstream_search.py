"""Karpenter's own search for consolidation, over plain numbers: prefixes of one ranking, then one by one.

Pods go to the first node by name that has room, the largest first; what is left may need one new
node, which must be cheaper than all that goes. Commands are carried out until none is found.
"""

from dataclasses import dataclass, replace

from tests.consolidation.exact import Amounts, SmallNode, SmallType
from tests.consolidation.prefix_search import largest_prefix


@dataclass(frozen=True)
class Command:
    """Which nodes go, and the nodes there are afterwards."""

    gone: tuple[int, ...]
    savings: float
    after: tuple[SmallNode, ...]

    @property
    def disruption(self) -> float:
        return float(len(self.gone))


def simulate(nodes: tuple[SmallNode, ...], gone: list[int], types: list[SmallType]) -> Command | None:
    stays = [node for index, node in enumerate(nodes) if index not in gone]
    price = sum(nodes[index].price for index in gone)
    left: list[Amounts] = []
    for size in sorted((size for index in gone for size in nodes[index].pods), reverse=True):
        for position, node in enumerate(stays):
            if node.free[0] >= size[0] and node.free[1] >= size[1]:
                stays[position] = replace(node, pods=(*node.pods, size))
                break
        else:
            left.append(size)
    if not left:
        return Command(tuple(gone), price, tuple(stays))
    need = sum(cpu for cpu, _ in left), sum(memory for _, memory in left)
    options = [
        each for each in types if each.room[0] >= need[0] and each.room[1] >= need[1] and each.price < price
    ]
    if len(gone) > 1:
        same = [nodes[i].price for i in gone for option in options if option.room == nodes[i].room]
        options = [each for each in options if not same or each.price < min(same)]
    if not options:
        return None
    best = min(options, key=lambda each: each.price)
    return Command(tuple(gone), price - best.price, (*stays, SmallNode(best.price, best.room, tuple(left))))


def one_command(nodes: tuple[SmallNode, ...], types: list[SmallType]) -> Command | None:
    ranked = sorted(range(len(nodes)), key=lambda i: -nodes[i].price / nodes[i].disruption)
    batch, _ = largest_prefix(len(ranked), lambda size: simulate(nodes, ranked[:size], types) is not None)
    if batch:
        return simulate(nodes, ranked[:batch], types)
    found = (simulate(nodes, [index], types) for index in ranked)
    return next((command for command in found if command is not None), None)


def until_nothing_is_found(nodes: tuple[SmallNode, ...], types: list[SmallType]) -> tuple[float, float]:
    """What is saved in all, and what all of it disturbs."""
    savings = disturbed = 0.0
    while (command := one_command(nodes, types)) is not None and command.savings > 1e-9:
        savings += command.savings
        disturbed += sum(nodes[index].disruption for index in command.gone)
        nodes = command.after
    return savings, disturbed
