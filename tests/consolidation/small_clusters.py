"""Random small clusters, for the planner as objects and for the exact solver as plain numbers."""

from random import Random

from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type
from tests.consolidation.exact import SmallNode, SmallType

SIZES = ((2000, 8), (4000, 8), (4000, 16), (8000, 32), (16000, 32), (16000, 64))
PODS = (
    (250, 512),
    (500, 512),
    (500, 2048),
    (1000, 1024),
    (1500, 6144),
    (2000, 4096),
    (3000, 2048),
    (3000, 12288),
)
MIB_PER_GIB = 1024


def small_types(chance: Random) -> list[SmallType]:
    """Priced by size, with a little of everything that catalogues have: discounts and bad deals."""
    found = []
    for number, (cpu, gib) in enumerate(SIZES):
        fair = 0.03 * cpu / 1000 + 0.004 * gib
        found.append(
            SmallType(f"t{number}", round(fair * chance.uniform(0.85, 1.2), 4), (cpu, gib * MIB_PER_GIB))
        )
    return found


def small_cluster(
    seed: int, least: int = 3, most: int = 6
) -> tuple[list[SmallNode], list[SmallType], list[int]]:
    """Nodes, types, and the type of each node."""
    chance = Random(seed)
    types = small_types(chance)
    sizes = chance.sample(PODS, 4)
    nodes, kinds = [], []
    for _ in range(chance.randint(least, most)):
        kind = chance.randrange(1, len(types))
        room = types[kind].room
        use = chance.uniform(0.15, 0.95)
        cpu, memory = room[0] * use, room[1] * use
        pods = []
        for _ in range(chance.randint(1, 6)):
            size = chance.choice(sizes)
            if size[0] <= cpu and size[1] <= memory:
                cpu, memory = cpu - size[0], memory - size[1]
                pods.append(size)
        if not pods:
            size = min(sizes)
            if size[0] <= room[0] and size[1] <= room[1]:
                pods.append(size)
        nodes.append(SmallNode(types[kind].price, room, tuple(pods)))
        kinds.append(kind)
    return nodes, types, kinds


def planned(
    nodes: list[SmallNode], types: list[SmallType], kinds: list[int], settings: PlanSettings
) -> ConsolidationPlan:
    return plan_consolidation(built(nodes, types, kinds).view(), settings, NOW)


def built(nodes: list[SmallNode], types: list[SmallType], kinds: list[int]) -> BuiltCluster:
    sold = [instance_type(each.name, each.room[0], each.room[1] / MIB_PER_GIB, each.price) for each in types]
    cluster = BuiltCluster(catalogue(*sold))
    cluster.pool()
    number = 0
    for index, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        cluster.node(f"n{index}", types[kind].name)
        for cpu, memory in node.pods:
            cluster.pod(f"p{number}", f"n{index}", cpu=cpu, memory_mib=memory)
            number += 1
    return cluster


UNSCORED = PlanSettings(override=PolicyOverride(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED))
BALANCED = PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 2))
