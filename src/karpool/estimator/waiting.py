"""Pods that wait for a node, and daemons that will run on every new one; informers' sinks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from karpool.cluster.nodes.expected import DaemonOverhead
from karpool.estimator.pods import waiting_since
from karpool.kube.clock import Clock
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_provisionable
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.model.kubernetes.workload import pod_template
from karpool.model.resources import CPU, MEMORY
from karpool.packing.tables.room import Room

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingDemand:
    """Pods of one shape that need a node, and since when the first of them does."""

    shape: PodShape
    pods: int
    since: float


def without_topology(shape: PodShape) -> PodShape:
    """Without what depends on other pods."""
    if not (shape.has_topology or shape.preferred_affinity or shape.preferred_anti_affinity):
        return shape
    return replace(
        shape, spreads=(), affinity=(), anti_affinity=(), preferred_affinity=(), preferred_anti_affinity=()
    )


class PendingPodStore:
    def __init__(self, clock: Clock) -> None:
        self.daemons = DaemonOverhead()
        self.waiting: dict[str, float] = {}  # `namespace/name` to since when
        self.version = 0  # of the pods
        self.daemons_version = 0
        self._clock = clock

    def put_pod(self, key: ObjectKey, pod: Pod) -> None:
        name = str(key)
        if is_provisionable(pod) and not pod.is_terminal and not pod.is_terminating:
            since = waiting_since(pod.status.conditions)
            if since is None or since <= 0:
                since = self.waiting.get(name, self._clock.now())
            if self.waiting.get(name) != since:
                self.waiting[name] = since
                self.version += 1
        else:
            self.drop_pod(key)

    def drop_pod(self, key: ObjectKey) -> None:
        if self.waiting.pop(str(key), None) is not None:
            self.version += 1

    def put_daemon_set(self, key: ObjectKey, raw: dict[str, Any]) -> None:
        try:
            shape = shape_of(pod_template({**raw, "kind": "DaemonSet"}).pod)
        except Invalid as error:
            log.info("daemon set not understood", daemon_set=str(key), reason=str(error))
            return
        self.daemons_version += self.daemons.put(key, shape)

    def drop_daemon_set(self, key: ObjectKey) -> None:
        self.daemons_version += self.daemons.remove(key)

    def demands(self, snapshot: Room, going: Sequence[str] = (), now: float = 0.0) -> list[PendingDemand]:
        """Pods that wait, and pods of nodes that are `going`, in the order in which Karpenter places them."""
        pods: dict[PodShape, int] = {}
        since: dict[PodShape, float] = {}

        def want(number: int, at: float) -> None:
            shape = without_topology(snapshot.shapes[number])
            pods[shape] = pods.get(shape, 0) + 1
            since[shape] = min(since.get(shape, at), at)

        for key, at in self.waiting.items():
            number = snapshot.pending.get(key)
            if number is not None:
                want(number, at)
        for name in going:
            row = snapshot.find(name)
            for number in snapshot.pods_on(row).values() if row is not None else ():
                if not is_tied(snapshot.shapes[number]):
                    want(number, now)
        found = [PendingDemand(shape, count, since[shape]) for shape, count in pods.items()]
        return sorted(found, key=lambda demand: largest_first(demand.shape))


def is_tied(shape: PodShape) -> bool:
    """Whether it names its node, as the pods of daemons do."""
    return any(term.fields for term in shape.node_terms or ())


def largest_first(shape: PodShape) -> tuple[int, int]:
    """Karpenter's order of pods, as far as shapes decide it."""
    asked = dict(shape.requests)
    return -asked.get(CPU, 0), -asked.get(MEMORY, 0)
