"""Two small indexes over the pods of a cluster, fed by the same informer as its state.

`UnschedulablePods`: those that the scheduler called unschedulable, and since when.
`PodsByOwner`: how many pods of each controller have a node, by what they request, and how many have none.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from karpool.cluster.changes import ObjectChange
from karpool.estimator.owners import chain, controller_of, is_of
from karpool.model.karmada.replica_requirements import Component
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import NO_LABELS, Condition, Labels, OwnerReference, condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.wire.requests import ArrivedReplicas, AssumedWorkload

Requests = tuple[tuple[str, int], ...]
_LONG_AGO = float("-inf")
NOT_KNOWN = ArrivedReplicas()


@dataclass(frozen=True, slots=True)
class UnschedulablePod:
    key: ObjectKey
    labels: Labels
    controller: OwnerReference | None
    since: float  # seconds since the epoch

    def is_overdue(self, now: float, threshold_seconds: float) -> bool:
        return self.since + threshold_seconds < now


def waiting_since(conditions: list[Condition] | None) -> float | None:
    """When the scheduler found no node for a pod; None when it did, or was not asked yet."""
    scheduled = condition(conditions, "PodScheduled")
    if scheduled is None or scheduled.status != "False" or scheduled.reason != "Unschedulable":
        return None
    try:
        return parse_rfc3339(scheduled.last_transition_time or "")
    except ValueError:
        return _LONG_AGO  # what Go makes of a time that is not there


class UnschedulablePods:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, UnschedulablePod]] = {}

    def of(self, namespace: str) -> Iterator[UnschedulablePod]:
        return iter(self._known.get(namespace, {}).values())

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def apply(self, changes: Sequence[ObjectChange[Pod]], /) -> None:
        for change in changes:
            pod = change.object
            since = None
            if (
                pod is not None
                and change.type != "DELETED"
                and not pod.spec.node_name
                and not pod.is_terminal
            ):
                since = waiting_since(pod.status.conditions)
            if pod is None or since is None:
                self._remove(change.key)
            else:
                meta = pod.metadata
                waiting = UnschedulablePod(change.key, meta.labels or NO_LABELS, controller_of(meta), since)
                self._known.setdefault(change.key.namespace, {})[change.key.name] = waiting

    def _remove(self, key: ObjectKey) -> None:
        pods = self._known.get(key.namespace)
        if pods is not None:
            pods.pop(key.name, None)
            if not pods:
                del self._known[key.namespace]


@dataclass(slots=True)
class _Controlled:
    controller: OwnerReference
    bound: Counter[Requests]
    waiting: int = 0


class PodsByOwner:
    """`shape_of` knows what each pod asks for; `owner_of` the controllers of controllers."""

    def __init__(
        self,
        shape_of: Callable[[str, str], PodShape | None],
        owner_of: Callable[[str], OwnerReference | None],
    ) -> None:
        self._shape_of, self._owner_of = shape_of, owner_of
        # The uid of a pod's controller, and what the pod asks for; None while it has no node.
        self._known: dict[ObjectKey, tuple[str, Requests | None]] = {}
        self._by_controller: dict[str, dict[str, _Controlled]] = {}  # namespace, uid

    def apply(self, changes: Sequence[ObjectChange[Pod]], /) -> None:
        for change in changes:
            self._forget(change.key)
            pod = change.object
            if pod is None or change.type == "DELETED":
                continue
            controller = controller_of(pod.metadata)
            # One that is about to end serves no promise, although it still holds its room.
            if controller and not pod.is_terminal and not pod.is_terminating:
                self._remember(change.key, controller, has_node=bool(pod.spec.node_name))

    def arrived(self, assumed: AssumedWorkload) -> ArrivedReplicas:
        """How many replicas of each component are on a node; empty when it does not say whose they are."""
        if assumed.workload is None or not assumed.components:
            return NOT_KNOWN
        bound, waiting = self._of(assumed)
        desired = desired_of(assumed)
        counts = [_take(each, limit, bound) for each, limit in zip(assumed.components, desired, strict=True)]
        # A pod may ask for more than its template: admission adds sidecars and defaults.
        rest = bound.total()
        for index, limit in enumerate(desired):
            more = min(limit - counts[index], rest)
            counts[index] += more
            rest -= more
        counts[-1] += rest  # a workload that is still shrinking has more than it shall have
        return ArrivedReplicas(tuple(counts), waiting)

    def _of(self, assumed: AssumedWorkload) -> tuple[Counter[Requests], int]:
        workload = assumed.workload
        assert workload is not None
        bound: Counter[Requests] = Counter()
        waiting = 0
        for controlled in self._by_controller.get(assumed.namespace, {}).values():
            owners = chain(controlled.controller, self._owner_of)
            if any(is_of(owner, workload.api_version, workload.kind, workload.name) for owner in owners):
                bound += controlled.bound
                waiting += controlled.waiting
        return bound, waiting

    def _remember(self, key: ObjectKey, controller: OwnerReference, *, has_node: bool) -> None:
        controllers = self._by_controller.setdefault(key.namespace, {})
        if controller.uid not in controllers:
            controllers[controller.uid] = _Controlled(controller, Counter())
        requests = None
        if has_node:
            shape = self._shape_of(key.namespace, key.name)
            requests = shape.requests if shape is not None else ()
            controllers[controller.uid].bound[requests] += 1
        else:
            controllers[controller.uid].waiting += 1
        self._known[key] = (controller.uid, requests)

    def _forget(self, key: ObjectKey) -> None:
        if key not in self._known:
            return
        uid, requests = self._known.pop(key)
        controllers = self._by_controller[key.namespace]
        found = controllers[uid]
        if requests is None:
            found.waiting -= 1
        else:
            found.bound[requests] -= 1
            if not found.bound[requests]:
                del found.bound[requests]
        if not found.bound and not found.waiting:
            del controllers[uid]
        if not controllers:
            del self._by_controller[key.namespace]


def desired_of(assumed: AssumedWorkload) -> list[int]:
    """What each component shall have in the end: never less than what of it is promised."""
    told = assumed.workload.desired if assumed.workload else ()
    return [
        max(each.replicas, told[index] if index < len(told) else 0)
        for index, each in enumerate(assumed.components)
    ]


def outstanding(assumed: AssumedWorkload, arrived: ArrivedReplicas) -> AssumedWorkload:
    """The same promise without the replicas that are on a node already."""
    if not arrived.bound:
        return assumed
    components = tuple(
        Component(each.name, min(each.replicas, max(0, limit - here)), each.requirements)
        for each, limit, here in zip(assumed.components, desired_of(assumed), arrived.bound, strict=True)
    )
    return AssumedWorkload(assumed.namespace, components, assumed.workload)


def _take(component: Component, limit: int, bound: Counter[Requests]) -> int:
    """Take the pods that ask for exactly what the component does, up to as many as it shall have."""
    requests = component.shape.requests
    taken = min(limit, bound[requests])
    bound[requests] -= taken
    return taken
