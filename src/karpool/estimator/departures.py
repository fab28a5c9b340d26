"""Who would have to go so that a pod which waits fits on a node that exists. Nothing is evicted.

Pods of lower priority may go, and pods whose owner brings them back, unless they ask to be left alone; those
of daemons and of the node itself may not. On each node the fewest are looked for that disruption budgets let
go at once, by trying sets of growing size within a bound; what the bound cut off is said. Where budgets leave
no such set, the fewest regardless of them are named, with the budget that is in the way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from karpool.cluster.cluster import Cluster
from karpool.cluster.departures import departed
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    CompiledPdb,
    is_daemon,
    is_evictable,
    is_mirror,
    is_protected,
    over_budget,
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
    `is_cut`: not every set was tried, so that fewer, or some elsewhere, may do.
    `forbidden_by`: why disruption budgets do not let them go at once; empty where they do."""

    node: str = ""
    pods: tuple[DepartingPod, ...] = ()
    is_cut: bool = False
    forbidden_by: str = ""


class _Search:
    """For sets of pods that the budgets let go at once."""

    def __init__(self, cluster: Cluster, shape: PodShape, now: float, budgets: Sequence[CompiledPdb]) -> None:
        self._cluster, self._shape, self._now, self._budgets = cluster, shape, now, budgets
        self.tries_left = TRIES_MAX

    def nodes(self, pods: Sequence[Pod]) -> set[str]:
        """Nodes that take it without these pods."""
        self.tries_left -= 1
        with departed(self._cluster, pods, self._now) as snapshot:
            room = snapshot.room
            return {room.names[row] for row in np.flatnonzero(fits(room, self._shape) > 0).tolist()}

    def may_go(self, pods: Sequence[Pod]) -> bool:
        return over_budget(pods, self._budgets) is None

    def fewest(self, node: str, pods: Sequence[Pod], most: int) -> tuple[Sequence[Pod], bool]:
        """At most so many, the least important first, none where no such set does; and whether every smaller
        set was tried. All of `pods` together do."""
        for size in range(1, min(len(pods), most) + 1):
            is_possible = False
            for chosen in self._sets(pods, size):
                is_possible = True
                if self.tries_left <= len(pods):  # enough is left for the way out
                    spared = self._spared(node, pods)
                    return spared if self.may_go(spared) else (), False
                if size == len(pods) or node in self.nodes(chosen):
                    return chosen, True
            if not is_possible:  # what budgets forbid of few they forbid of more
                break
        return (), True

    def _sets(
        self, pods: Sequence[Pod], size: int, chosen: tuple[Pod, ...] = ()
    ) -> Iterator[tuple[Pod, ...]]:
        """In the order of `combinations`, without those that begin with what may not go."""
        if len(chosen) == size:
            yield chosen
            return
        for place, pod in enumerate(pods):
            if self.may_go(more := (*chosen, pod)):
                yield from self._sets(pods[place + 1 :], size, more)

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
    snapshot = cluster.snapshot(now)
    room, budgets = snapshot.room, snapshot.budgets
    search = _Search(cluster, shape, now, budgets)
    if (room.dra is None and shape.resource_claims) or search.nodes(()):
        return None
    open_nodes = {room.names[row] for row in np.flatnonzero(admitted(room.nodes, shape)).tolist()}
    reasons = {
        key: why
        for key, pod in sorted(pods.items())
        if pod.spec.node_name in open_nodes and (why := _why_it_may_go(pod, priority, now))
    }
    candidates = [pods[key] for key in reasons]
    chosen, is_cut = _fewest_anywhere(search, [pod for pod in candidates if search.may_go([pod])])
    if not chosen and not search.may_go(candidates):
        chosen, is_cut_again = _fewest_anywhere(_Search(cluster, shape, now, ()), candidates)
        is_cut |= is_cut_again
    return Departures(
        chosen[0].spec.node_name if chosen else "",
        tuple(DepartingPod(str(key := _key(pod)), pod.spec.priority or 0, reasons[key]) for pod in chosen),
        is_cut,
        over_budget(chosen, budgets) or "",
    )


def _fewest_anywhere(search: _Search, candidates: Sequence[Pod]) -> tuple[Sequence[Pod], bool]:
    """On the node where the fewest would have to go; and whether the bound cut something off."""
    by_node: dict[str, list[Pod]] = {}
    for pod in candidates:
        by_node.setdefault(pod.spec.node_name, []).append(pod)
    takers = sorted(search.nodes(candidates) & by_node.keys(), key=lambda node: (len(by_node[node]), node))
    best: Sequence[Pod] = ()
    is_cut = len(takers) > NODES_MAX
    for node in takers[:NODES_MAX]:
        on_node = sorted(by_node[node], key=_importance)
        if search.tries_left <= len(on_node):
            return best, True
        if node not in search.nodes(on_node):
            continue  # it fits there only once others elsewhere are gone, too
        most = len(best) - 1 if best else len(on_node)
        chosen, is_whole = search.fewest(node, on_node, most)
        is_cut |= not is_whole
        if chosen and len(chosen) <= most:
            best = chosen
    return best, is_cut


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


def _key(pod: Pod) -> ObjectKey:
    return ObjectKey(pod.metadata.namespace, pod.name)
