"""How near plans are to the best there could be: the share of the possible saving that the first plan has.

The clusters are those of `bench.consolidation` (roomy, packed) and mixed ones (nodes of 4 to 32 CPUs, a
fifth to all of each asked for), WhenEmptyOrUnderutilized, budgets open. What is possible comes from the
linear relaxation (`consolidation.bound`), which is below what whole nodes allow: nobody reaches 100 %.
Beside ours is an emulation of Karpenter's own search, which goes on until it finds nothing more. Seed 11 is
the one that was looked at while the search was written; the others were not. Times are processor time.
"""

from collections.abc import Iterator
from random import Random
from time import process_time
from typing import Any

from bench.consolidation import MIXED, NOW, PACKED, ROOMY, SEED, SETTINGS, BuiltCluster
from bench.karpenter_search import search
from karpool.consolidation.bound.linear_program import least_cost
from karpool.consolidation.bound.relaxation import relaxation_of
from karpool.consolidation.planning.plan_cache import PlanCache
from karpool.consolidation.planning.planner import Planner, plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings

OPEN = PlanSettings(override=PolicyOverride(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED), heed_budgets=False)
KINDS = {"roomy": (ROOMY, 90.0), "packed": (PACKED, 75.0), "mixed": (MIXED, 90.0)}
UNSEEN = (401, 402, 403)
# Nodes up to which Karpenter's search is emulated: it tries every node again after every command. Larger
# clusters up to the second number have one seed.
KARPENTER_UP_TO = 50, 200


def compared(kind: str, nodes: int, seed: int) -> dict[str, float]:
    """Shares in percent, pods moved, and seconds."""
    cluster = BuiltCluster(nodes, 10 * nodes, KINDS[kind][0], seed)
    view = cluster.view()
    start = process_time()
    relaxation = relaxation_of(Planner(view, OPEN, NOW).world)
    least = least_cost(relaxation.program)
    assert least is not None, "needs highspy"
    bounded = process_time()
    plan = plan_consolidation(view, OPEN, NOW)
    planned = process_time()
    possible = relaxation.current - least
    found = {
        "share": 100 * plan.savings_per_hour / possible,
        "possible": possible,
        "moved": float(sum(len(move.pods) for move in plan.moves)),
        "seconds": planned - bounded,
        "bound_seconds": bounded - start,
    }
    few, most = KARPENTER_UP_TO
    if nodes <= few or (nodes <= most and seed == UNSEEN[0]):
        theirs = search(view, OPEN, NOW)
        found |= {"karpenter": 100 * theirs.savings / possible, "karpenter_moved": float(theirs.moved)}
        found["moved_for_as_much"] = float(moved_for(plan.moves, theirs.savings))
    return found


def moved_for(moves: Any, savings: float) -> int:
    """Pods moved until as much is saved, the moves that save the most for each pod first."""
    saved, pods = 0.0, 0
    for move in sorted(moves, key=lambda move: -move.savings_per_hour / max(len(move.pods), 1)):
        if saved >= savings:
            break
        saved, pods = saved + move.savings_per_hour, pods + len(move.pods)
    return pods


def change(cluster: BuiltCluster, chance: Random, share: float) -> None:
    """So many of the pods are gone, and one of the same workload runs wherever its pool has room."""
    pods, room = cluster.view().pods, cluster.view().snapshot
    free = {
        name: [int(room.free("cpu")[row]), int(room.free("memory")[row])]
        for row, name in enumerate(room.names)
    }
    by_pool: dict[str, list[str]] = {}
    for machine in cluster.view().machines:
        by_pool.setdefault(machine.pool, []).append(machine.name)
    for key in chance.sample(list(pods.keys), round(share * len(pods.keys))):
        cluster.move_elsewhere(key.partition("/")[2], by_pool, free, chance)


def measured(kind: str, nodes: int, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = [compared(kind, nodes, seed) for seed in seeds]
    name = f"plans: {kind}, {nodes:,} nodes, seeds {', '.join(map(str, seeds))}"
    columns = {
        "share": ("share of the possible saving", "%", KINDS[kind][1], "higher"),
        "karpenter": ("Karpenter's search", "%", None, "higher"),
        "moved": ("pods moved", "", None, "lower"),
        "moved_for_as_much": ("pods moved for as much as Karpenter's", "", None, "lower"),
        "karpenter_moved": ("pods moved by Karpenter's", "", None, "lower"),
        "seconds": ("processor time", "s", None, "lower"),
        "bound_seconds": ("processor time of the bound", "s", None, "lower"),
    }
    return [
        {"name": f"{name}: {label}", "unit": unit, "values": values, "target": target, "better": better}
        for key, (label, unit, target, better) in columns.items()
        if (values := [row[key] for row in rows if key in row])
    ]


def warm(kind: str, nodes: int, seed: int, changes: int = 5) -> list[dict[str, Any]]:
    """Plans after one percent of the pods changed, that begin with the last one, beside whole searches:
    Balanced with k = 2, budgets of 10 %."""
    cluster, planning, chance = (
        BuiltCluster(nodes, 10 * nodes, KINDS[kind][0], seed),
        PlanCache(),
        Random(seed),
    )
    planning.plan(cluster.view(), SETTINGS, NOW)
    shares, differences, counts = [], [], 0
    for _ in range(changes):
        change(cluster, chance, 0.01)
        view, start = cluster.view(), process_time()
        again = planning.plan(view, SETTINGS, NOW)
        middle = process_time()
        whole = plan_consolidation(view, SETTINGS, NOW)
        shares.append(100 * (middle - start) / (process_time() - middle))
        differences.append(100 * (again.savings_per_hour / whole.savings_per_hour - 1))
        counts += planning.warm > 0
    name = f"plans: {kind}, {nodes:,} nodes, seed {seed}, 1 % of pods changed ({counts} of {changes} warm)"
    return [
        {"name": f"{name}: processor time", "unit": "% of a whole one", "values": shares, "target": 10.0},
        {
            "name": f"{name}: saves more by",
            "unit": "%",
            "values": differences,
            "target": 0.0,
            "better": "higher",
        },
    ]


def benchmarks() -> Iterator[dict[str, Any]]:
    for nodes in (50, 200, 1000):
        for kind in KINDS:
            for seeds in ((SEED,), UNSEEN):
                yield from measured(kind, nodes, seeds)
    for nodes in (1000, 5000):
        for kind in KINDS:
            yield from warm(kind, nodes, UNSEEN[0])
