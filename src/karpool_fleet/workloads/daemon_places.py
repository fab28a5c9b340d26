"""The state of a DaemonSet node by node: pods that a node has, lacks or should lose.

`assess` evaluates one node. `DaemonLedger` keeps the sums over all nodes, so that the cost of a change
depends on the nodes it affects, not on the cluster.
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
    failed: tuple[Pod, ...] = ()  # to be deleted too, with back-off
    idle: tuple[Pod, ...] = ()  # of an old revision, and not available
    serving: tuple[Pod, ...] = ()  # of an old revision, and available
    counts: tuple[str, ...] = ()  # counters that this node adds one to
    waiting: bool = False  # ready, and available after minReadySeconds


@dataclass(frozen=True, slots=True)
class DaemonStanding:
    """Whether a node should have, or may keep, a pod of a DaemonSet."""

    known: bool
    tolerable: bool  # a pod may stay
    wanted: bool  # a pod should run


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
        # The pod garbage collector handles pods on deleted nodes; the others never start.
        delete = tuple(pod for pod in running if not pod.spec.node_name)
    elif not standing.tolerable:
        delete = tuple(running)
    elif len(running) > 1:
        delete = tuple(running[1:])
    # A pod that is not gone yet still occupies its place.
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
    """Return a sort key: placed before pending, older before younger."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp or "", pod.name


NOWHERE = DaemonPlace()


@dataclass(slots=True)
class DaemonLedger:
    """All places of one DaemonSet under one revision."""

    basis: tuple[object, ...] = ()  # what the assessments depend on besides nodes and pods
    eligible: EligibleDaemonNodes = NO_NODES
    places: dict[str, DaemonPlace] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    dirty: dict[str, None] = field(default_factory=dict)  # nodes to assess again
    waiting: dict[str, None] = field(default_factory=dict)
    outdated: dict[str, None] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)

    def restart(self, basis: tuple[object, ...]) -> None:
        """Drop every assessment."""
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
        """Return old pods that may be deleted now: unavailable ones at once, others within bounds."""
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
