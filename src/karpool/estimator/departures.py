"""Who would have to go so that a pod which waits fits on a node that exists. Nothing is evicted.

Pods of lower priority may go, and pods whose owner brings them back, unless they ask to be left alone; those
of daemons and of the node itself may not. On each node the fewest are looked for, by trying sets of growing
size within a bound; what the bound cut off is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from karpool.cluster.cluster import Cluster
from karpool.cluster.departures import departed
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    is_daemon,
    is_evictable,
    is_mirror,
    is_protected,
    running_seconds,
)
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import fits
from karpool.packing.feasibility import admitted

# Looks at the cluster: each takes milliseconds, and somebody waits at a terminal.
TRIES_MAX = 300
# Nodes on which the fewest are looked for; one is named, and a better one further on changes little.
NODES_MAX = 20

LOWER_PRIORITY = "has a lower priority"
BROUGHT_BACK = "is brought back by its owner"


@dataclass(frozen=True, slots=True)
class DepartingPod:
    pod: str
    priority: int
    why: str  # it may go


@dataclass(frozen=True, slots=True)
class Departures:
    """The pods of one node without which the pod fits there; none where no such node was found.
    `is_cut`: not every set was tried, so that fewer, or some elsewhere, may do."""

    node: str = ""
    pods: tuple[DepartingPod, ...] = ()
    is_cut: bool = False


class _Search:
    def __init__(self, cluster: Cluster, shape: PodShape, now: float) -> None:
        self._cluster, self._shape, self._now = cluster, shape, now
        self.tries_left = TRIES_MAX

    def nodes(self, pods: Sequence[Pod]) -> set[str]:
        """Nodes that take it without these pods."""
        self.tries_left -= 1
        with departed(self._cluster, pods, self._now) as snapshot:
            room = snapshot.room
            return {room.names[row] for row in np.flatnonzero(fits(room, self._shape) > 0).tolist()}

    def fewest(self, node: str, pods: Sequence[Pod], most: int) -> tuple[Sequence[Pod], bool]:
        """At most so many, the least important first; and whether every smaller set was tried. `pods` do."""
        for size in range(1, min(len(pods), most + 1)):
            for chosen in combinations(pods, size):
                if self.tries_left <= len(pods):  # enough is left for the way out
                    return self._spared(node, pods), False
                if node in self.nodes(chosen):
                    return chosen, True
        return pods, len(pods) <= most

    def _spared(self, node: str, pods: Sequence[Pod]) -> Sequence[Pod]:
        """As kube-scheduler spares victims: the most important first, while the pod still fits."""
        going = list(pods)
        for pod in reversed(pods):
            rest = [other for other in going if other is not pod]
            if rest and self.tries_left > 0 and node in self.nodes(rest):
                going = rest
        return going


def find_departures(
    cluster: Cluster, pods: Mapping[ObjectKey, Pod], shape: PodShape, priority: int, now: float
) -> Departures | None:
    """`pods` are those of the cluster, `shape` and `priority` those of the pod, which is not among them.
    None where it fits as things are, or where nobody can tell."""
    search, room = _Search(cluster, shape, now), cluster.snapshot(now).room
    if (room.dra is None and shape.resource_claims) or search.nodes(()):
        return None
    open_nodes = {room.names[row] for row in np.flatnonzero(admitted(room.nodes, shape)).tolist()}
    by_node: dict[str, list[tuple[Pod, str]]] = {}
    for _, pod in sorted(pods.items()):
        if pod.spec.node_name in open_nodes and (why := _why_it_may_go(pod, priority, now)):
            by_node.setdefault(pod.spec.node_name, []).append((pod, why))
    everybody = [pod for candidates in by_node.values() for pod, _ in candidates]
    takers = sorted(search.nodes(everybody) & by_node.keys(), key=lambda node: (len(by_node[node]), node))
    best, is_cut = Departures(), len(takers) > NODES_MAX
    for node in takers[:NODES_MAX]:
        reasons = {id(pod): why for pod, why in by_node[node]}
        candidates = sorted((pod for pod, _ in by_node[node]), key=_importance)
        if search.tries_left <= len(candidates):
            is_cut = True
            break
        if node not in search.nodes(candidates):
            continue  # it fits there only once others elsewhere are gone, too
        most = len(best.pods) - 1 if best.node else len(candidates)
        chosen, is_whole = search.fewest(node, candidates, most)
        is_cut |= not is_whole and len(chosen) <= most
        if not best.node or len(chosen) < len(best.pods):
            best = Departures(node, tuple(_departing(chosen, reasons)))
    return Departures(best.node, best.pods, is_cut)


def _why_it_may_go(pod: Pod, priority: int, now: float) -> str:
    """Empty: it may not."""
    if pod.is_terminal or pod.is_terminating or is_daemon(pod) or is_mirror(pod):
        return ""
    if (pod.spec.priority or 0) < priority:
        return LOWER_PRIORITY
    has_owner = any(owner.controller for owner in pod.metadata.owner_references or ())
    protected = is_protected(pod, running_seconds(pod, now))
    return BROUGHT_BACK if has_owner and is_evictable(pod, protected=protected) else ""


def _importance(pod: Pod) -> tuple[int, str, str]:
    return (pod.spec.priority or 0, pod.metadata.namespace, pod.name)


def _departing(pods: Sequence[Pod], reasons: Mapping[int, str]) -> Iterator[DepartingPod]:
    for pod in pods:
        name = f"{pod.metadata.namespace}/{pod.name}"
        yield DepartingPod(name, pod.spec.priority or 0, reasons[id(pod)])
