"""Finds the pods that would have to go so that a pending pod fits on an existing node. Nothing is evicted.

Pods of lower priority may go, and pods that an owner recreates, unless they are protected; daemon and static
pods may not. On each node the search looks for the fewest pods that disruption budgets allow to go at once,
by trying sets of growing size within a limit; the result says if the limit was reached. If budgets allow no
such set, it names the fewest regardless of them, with the budget in the way.
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

# Maximum number of simulations: each takes milliseconds, and a person waits for the result.
TRIES_MAX = 300
# Maximum number of nodes that are searched; one is named, and a better one changes little.
NODES_MAX = 20

LOWER_PRIORITY = "has a lower priority"
BROUGHT_BACK = "is brought back by its owner"


@dataclass(frozen=True, slots=True)
class DepartingPod:
    pod: str
    priority: int
    why: str  # why it may go


@dataclass(frozen=True, slots=True)
class Departures:
    """The pods of one node without which the pod fits there; empty if no such node was found.

    `is_cut`: not every set was tried, so that fewer pods, or other nodes, may do. `forbidden_by`: why
    disruption budgets do not allow them to go at once; empty if they do.
    """

    node: str = ""
    pods: tuple[DepartingPod, ...] = ()
    is_cut: bool = False
    forbidden_by: str = ""


class _Search:
    """Searches sets of pods that the budgets allow to go at once."""

    def __init__(self, cluster: Cluster, shape: PodShape, now: float, budgets: Sequence[CompiledPdb]) -> None:
        self._cluster, self._shape, self._now, self._budgets = cluster, shape, now, budgets
        self.tries_left = TRIES_MAX

    def nodes(self, pods: Sequence[Pod]) -> set[str]:
        """The nodes that fit the pod without these pods."""
        self.tries_left -= 1
        with departed(self._cluster, pods, self._now) as snapshot:
            room = snapshot.room
            return {room.names[row] for row in np.flatnonzero(fits(room, self._shape) > 0).tolist()}

    def may_go(self, pods: Sequence[Pod]) -> bool:
        return over_budget(pods, self._budgets) is None

    def fewest(self, node: str, pods: Sequence[Pod], most: int) -> tuple[Sequence[Pod], bool]:
        """The smallest set, at most `most` pods, least important first; and whether all smaller sets were
        tried.

        Empty if no set is enough. All of `pods` together must be enough.
        """
        for size in range(1, min(len(pods), most) + 1):
            is_possible = False
            for chosen in self._sets(pods, size):
                is_possible = True
                if self.tries_left <= len(pods):  # just enough tries left for the fallback
                    spared = self._spared(node, pods)
                    return spared if self.may_go(spared) else (), False
                if size == len(pods) or node in self.nodes(chosen):
                    return chosen, True
            if not is_possible:  # budgets that forbid all small sets forbid larger ones
                break
        return (), True

    def _sets(
        self, pods: Sequence[Pod], size: int, chosen: tuple[Pod, ...] = ()
    ) -> Iterator[tuple[Pod, ...]]:
        """In the order of `combinations`, without prefixes that the budgets forbid."""
        if len(chosen) == size:
            yield chosen
            return
        for place, pod in enumerate(pods):
            if self.may_go(more := (*chosen, pod)):
                yield from self._sets(pods[place + 1 :], size, more)

    def _spared(self, node: str, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Spare pods like kube-scheduler: the most important first, while the pending pod still fits."""
        going = list(pods)
        for pod in reversed(pods):
            rest = [other for other in going if other is not pod]
            if rest and self.tries_left > 0 and node in self.nodes(rest):
                going = rest
        return going


def find_departures(
    cluster: Cluster, pods: Mapping[ObjectKey, Pod], shape: PodShape, priority: int, now: float
) -> Departures | None:
    """`pods` are those of the cluster, `shape` and `priority` those of the pod, which is not among them. None
    if it already fits, or if that is unknown.
    """
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
    """The smallest set over all nodes; and whether the limit was reached."""
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
            continue  # it fits there only if pods elsewhere go, too
        most = len(best) - 1 if best else len(on_node)
        chosen, is_whole = search.fewest(node, on_node, most)
        is_cut |= not is_whole
        if chosen and len(chosen) <= most:
            best = chosen
    return best, is_cut


def _why_it_may_go(pod: Pod, priority: int, now: float) -> str:
    """Empty if it may not."""
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
