"""Two small indexes over the pods of a cluster, fed by the same informer as its state.

`WaitingPods`: those that the scheduler called unschedulable, and since when.
`BoundPods`: how many pods of each controller have a node, by what they request.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from karpool.estimator.owners import chain, controller_of, is_of
from karpool.kube.clock import parse_rfc3339
from karpool.kube.informer import Change
from karpool.kube.resource import Key
from karpool.model.meta import NO_LABELS, Condition, Labels, OwnerReference, condition
from karpool.model.pod import Pod
from karpool.model.shape import PodShape
from karpool.wire.request import AssumedWorkload, Component

Requests = tuple[tuple[str, int], ...]
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class WaitingPod:
    key: Key
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


class WaitingPods:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, WaitingPod]] = {}

    def of(self, namespace: str) -> Iterator[WaitingPod]:
        return iter(self._known.get(namespace, {}).values())

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def apply(self, changes: Sequence[Change[Pod]], /) -> None:
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
                waiting = WaitingPod(change.key, meta.labels or NO_LABELS, controller_of(meta), since)
                self._known.setdefault(change.key.namespace, {})[change.key.name] = waiting

    def _remove(self, key: Key) -> None:
        pods = self._known.get(key.namespace)
        if pods is not None:
            pods.pop(key.name, None)
            if not pods:
                del self._known[key.namespace]


@dataclass(slots=True)
class _Controlled:
    controller: OwnerReference
    pods: Counter[Requests]


class BoundPods:
    """`shape_of` knows what each pod asks for; `owner_of` the controllers of controllers."""

    def __init__(
        self,
        shape_of: Callable[[str, str], PodShape | None],
        owner_of: Callable[[str], OwnerReference | None],
    ) -> None:
        self._shape_of, self._owner_of = shape_of, owner_of
        self._known: dict[Key, tuple[str, Requests]] = {}
        self._by_controller: dict[str, dict[str, _Controlled]] = {}  # namespace, uid

    def apply(self, changes: Sequence[Change[Pod]], /) -> None:
        for change in changes:
            self._forget(change.key)
            pod = change.object
            if pod is None or change.type == "DELETED":
                continue
            controller = controller_of(pod.metadata)
            # One that is about to end serves no promise, although it still holds its room.
            if controller and pod.spec.node_name and not pod.is_terminal and not pod.is_terminating:
                self._remember(change.key, controller)

    def not_yet_bound(self, assumed: AssumedWorkload) -> AssumedWorkload:
        """The same promise without the replicas that are on a node already."""
        if assumed.workload is None:
            return assumed
        bound = self._of(assumed)
        if not bound:
            return assumed
        left = tuple(_without(each, bound) for each in assumed.components)
        # A pod may ask for more than its template: admission adds sidecars and defaults.
        rest = bound.total()
        components: list[Component] = []
        for each in left:
            placed = min(each.replicas, rest)
            rest -= placed
            components.append(Component(each.name, each.replicas - placed, each.requirements))
        return AssumedWorkload(assumed.namespace, tuple(components), assumed.workload)

    def _of(self, assumed: AssumedWorkload) -> Counter[Requests]:
        workload = assumed.workload
        assert workload is not None
        total: Counter[Requests] = Counter()
        for each in self._by_controller.get(assumed.namespace, {}).values():
            owners = chain(each.controller, self._owner_of)
            if any(is_of(owner, workload.api_version, workload.kind, workload.name) for owner in owners):
                total += each.pods
        return total

    def _remember(self, key: Key, controller: OwnerReference) -> None:
        shape = self._shape_of(key.namespace, key.name)
        requests = shape.requests if shape is not None else ()
        controllers = self._by_controller.setdefault(key.namespace, {})
        if controller.uid not in controllers:
            controllers[controller.uid] = _Controlled(controller, Counter())
        controllers[controller.uid].pods[requests] += 1
        self._known[key] = (controller.uid, requests)

    def _forget(self, key: Key) -> None:
        if key not in self._known:
            return
        uid, requests = self._known.pop(key)
        controllers = self._by_controller[key.namespace]
        pods = controllers[uid].pods
        pods[requests] -= 1
        if not pods[requests]:
            del pods[requests]
        if not pods:
            del controllers[uid]
        if not controllers:
            del self._by_controller[key.namespace]


def _without(component: Component, bound: Counter[Requests]) -> Component:
    """Take the pods that ask for exactly what the component does off both."""
    requests = component.group.shape.requests
    placed = min(component.replicas, bound[requests])
    bound[requests] -= placed
    return Component(component.name, component.replicas - placed, component.requirements)
