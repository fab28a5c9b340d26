"""A cluster in a few numbers, as it is and as it would be after some moves."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import fsum

from karpool.consolidation.planning.plan import ClusterTotals, Move
from karpool.consolidation.view import ClusterView
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.resources import CPU, MEMORY

_SHOWN = (CPU, MEMORY)


def before(view: ClusterView) -> ClusterTotals:
    return after(view, ())


def after(view: ClusterView, moves: Iterable[Move]) -> ClusterTotals:
    """Pods are the same; daemons of nodes that go, and of nodes that come, are not told apart."""
    chosen = list(moves)
    gone = {name for move in chosen for name in move.names}
    snapshot = view.snapshot
    prices: list[float] = []
    unpriced = 0
    by_type: Counter[str] = Counter()
    by_pool: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    nodes = 0
    whole = {name: snapshot.allocatable(name).tolist() for name in _SHOWN}
    for row, machine in enumerate(view.machines):
        if machine.name in gone:
            continue
        nodes += 1
        labels: Mapping[str, str] = machine.node.labels if machine.node is not None else {}
        by_type[labels.get(INSTANCE_TYPE, "")] += 1
        by_pool[machine.pool] += 1
        if machine.price_per_hour is None:
            unpriced += 1
        else:
            prices.append(machine.price_per_hour)
        for name in _SHOWN:
            offered[name] += whole[name][row]
    types = view.offerings.catalogue.types
    for move in chosen:
        for new in move.new_nodes:
            nodes += 1
            by_type[new.chosen.instance_type] += 1
            by_pool[new.pool] += 1
            prices.append(new.price_per_hour)
            for name in _SHOWN:
                offered[name] += types[new.chosen.instance_type].allocatable.get(name, 0)
    asked = {name: int((snapshot.allocatable(name) - snapshot.free(name)).sum()) for name in _SHOWN}
    return ClusterTotals(
        nodes=nodes,
        pods=len(view.pods.keys),
        price_per_hour=fsum(prices),
        unpriced=unpriced,
        use={name: asked[name] / offered[name] if offered[name] else 0.0 for name in _SHOWN},
        by_type=dict(sorted(by_type.items())),
        by_pool=dict(sorted(by_pool.items())),
    )
