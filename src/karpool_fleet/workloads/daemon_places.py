"""A DaemonSet node by node: what each node has, lacks and should lose.

`assess` looks at one node. `DaemonLedger` keeps the sums over all of them, so that a
change costs as much as the nodes it touches and not as much as the cluster.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from karpool.model.kubernetes.pod import Pod
from karpool_fleet.workloads.nodes import NO_NODES, EligibleDaemonNodes
from karpool_fleet.workloads.pods import is_ready


@dataclass(frozen=True, slots=True)
class DaemonPlace:
    """One node of one DaemonSet."""

    wanted: bool = False
    create: bool = False
    delete: tuple[Pod, ...] = ()
    failed: tuple[Pod, ...] = ()  # to be deleted too, but not in a hurry
    idle: tuple[Pod, ...] = ()  # of an old revision, and not serving
    serving: tuple[Pod, ...] = ()  # of an old revision, and serving
    counts: tuple[str, ...] = ()  # what this node adds one to
    waiting: bool = False  # ready, and available once enough time has passed


@dataclass(frozen=True, slots=True)
class DaemonStanding:
    """What a node is to a DaemonSet."""

    known: bool
    tolerable: bool  # a pod may stay
    wanted: bool  # there should be one


def assess(
    standing: DaemonStanding,
    pods: Sequence[Pod],
    is_current: Callable[[Pod], bool],
    is_available: Callable[[Pod], bool],
) -> DaemonPlace:
    living = [pod for pod in pods if not pod.is_terminating]
    failed = tuple(pod for pod in living if pod.is_terminal)
    running = sorted((pod for pod in living if not pod.is_terminal), key=_seniority)
    delete: tuple[Pod, ...] = ()
    if not standing.known:
        # Pods on a node that has gone are for the pod garbage collector; the others never start.
        delete = tuple(pod for pod in running if not pod.spec.node_name)
    elif not standing.tolerable:
        delete = tuple(running)
    elif len(running) > 1:
        delete = tuple(running[1:])
    # What has not gone yet still has its place.
    present = running or [pod for pod in pods if not pod.is_terminal]
    first = present[0] if present else None
    counts: list[str] = []
    if first is not None:
        counts = _counts(first, is_current, is_available) if standing.wanted else ["misplaced"]
    old = [pod for pod in running if standing.wanted and not is_current(pod) and pod not in delete]
    healthy = any(is_available(pod) for pod in running)
    if standing.wanted:
        counts += ["desired"] if healthy else ["desired", "down"]
    return DaemonPlace(
        wanted=standing.wanted,
        create=standing.wanted and not pods,
        delete=delete,
        failed=failed,
        idle=tuple(pod for pod in old if not is_available(pod)),
        serving=tuple(pod for pod in old if is_available(pod)),
        counts=tuple(counts),
        waiting=any(is_ready(pod) and not is_available(pod) for pod in running),
    )


def _counts(pod: Pod, is_current: Callable[[Pod], bool], is_available: Callable[[Pod], bool]) -> list[str]:
    facts = {
        "scheduled": True,
        "ready": is_ready(pod),
        "available": is_available(pod),
        "updated": is_current(pod),
    }
    return [name for name, holds in facts.items() if holds]


def _seniority(pod: Pod) -> tuple[bool, str, str]:
    """Placed before waiting, older before younger."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp or "", pod.name


NOWHERE = DaemonPlace()


@dataclass(slots=True)
class DaemonLedger:
    """All places of one DaemonSet under one revision of it."""

    basis: tuple[object, ...] = ()  # what the assessments rest on besides nodes and pods
    eligible: EligibleDaemonNodes = NO_NODES
    places: dict[str, DaemonPlace] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    dirty: dict[str, None] = field(default_factory=dict)  # to be assessed again
    waiting: dict[str, None] = field(default_factory=dict)
    outdated: dict[str, None] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)

    def restart(self, basis: tuple[object, ...]) -> None:
        """Forget every assessment."""
        self.basis, self.eligible = basis, NO_NODES
        for table in (self.places, self.counts, self.dirty, self.waiting, self.outdated, self.failed):
            table.clear()

    def put(self, node: str, place: DaemonPlace) -> None:
        before = self.places.pop(node, NOWHERE)
        self.counts.subtract(before.counts)
        self.counts.update(place.counts)
        if place != NOWHERE:
            self.places[node] = place
        _mark(self.waiting, node, place.waiting)
        _mark(self.outdated, node, bool(place.idle or place.serving))
        _mark(self.failed, node, bool(place.failed))

    def replaceable(self, most_unavailable: int) -> list[Pod]:
        """Pods of old revisions that may go now: those that do not serve at once, others within bounds."""
        idle: list[Pod] = []
        serving: list[Pod] = []
        for node in self.outdated:
            idle += self.places[node].idle
            serving += self.places[node].serving
        return [*idle, *serving[: max(0, most_unavailable - self.counts["down"])]]


def _mark(index: dict[str, None], node: str, holds: bool) -> None:
    if holds:
        index[node] = None
    else:
        index.pop(node, None)
