"""The owners of pods: chains of controllers, and how many pods of each have a node.

A chain is followed by references alone: the controller of a ReplicaSet is known from its metadata, whether or
not the Deployment is. The owner of a UID never changes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import ObjectMeta, OwnerReference
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_provisionable
from karpool.model.kubernetes.pod_shape import PodShape

CHAIN_MAX = 8  # a custom resource of a custom resource makes two; owners may also form a cycle
_KNOWN_MAX = 200_000

Requests = tuple[tuple[str, int], ...]
FindOwner = Callable[[str], OwnerReference | None]  # from a UID to the controller of that object


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    return next((reference for reference in meta.owner_references or () if reference.controller), None)


def is_of(reference: OwnerReference, api_version: str, kind: str, name: str) -> bool:
    """Whether the reference names this object, in any version of its group."""
    return (
        reference.name == name
        and reference.kind == kind
        and _group(reference.api_version) == _group(api_version)
    )


def _group(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def chain(reference: OwnerReference | None, find_owner: FindOwner) -> Iterator[OwnerReference]:
    """Yield the controller, its controller, and so on."""
    for _ in range(CHAIN_MAX):
        if reference is None:
            return
        yield reference
        reference = find_owner(reference.uid)


class OwnerStore:
    """Controllers by the UID of the object that they control."""

    def __init__(self) -> None:
        self._controllers: dict[str, OwnerReference | None] = {}
        self._uids: dict[tuple[str, ObjectKey], str] = {}  # UIDs of known objects, by kind and key

    def get(self, uid: str) -> OwnerReference | None:
        return self._controllers.get(uid)

    def __contains__(self, uid: str) -> bool:
        return uid in self._controllers

    def put(self, meta: ObjectMeta) -> None:
        if len(self._controllers) >= _KNOWN_MAX:
            del self._controllers[next(iter(self._controllers))]
        self._controllers[meta.uid] = controller_of(meta)

    def tell(self, kind: str, key: ObjectKey, meta: ObjectMeta) -> None:
        """Note the owner of a watched object; objects without an owner are not stored."""
        if self._uids.get((kind, key)) != meta.uid:
            self.forget(kind, key)
        if meta.owner_references:
            self._uids[kind, key] = meta.uid
            self.put(meta)

    def forget(self, kind: str, key: ObjectKey) -> None:
        self._controllers.pop(self._uids.pop((kind, key), ""), None)


@dataclass(slots=True)
class ControlledPods:
    """The pods of one controller: those with a node by their requests, and the number without.

    `wanting` are those without a node that an autoscaler should make room for, by their requests.
    """

    controller: OwnerReference
    bound: Counter[Requests] = field(default_factory=Counter)
    waiting: int = 0
    wanting: Counter[Requests] = field(default_factory=Counter)


class _OwnedPod(NamedTuple):
    controller: str  # its uid
    requests: Requests
    has_node: bool
    is_wanting: bool


class PodsByOwner:
    """Counts pods by owner. `shape_of` returns the shape of a pod; `find_owner` the owner of a controller."""

    def __init__(self, shape_of: Callable[[str, str], PodShape | None], find_owner: FindOwner) -> None:
        self._shape_of, self._find_owner = shape_of, find_owner
        self._pods: dict[ObjectKey, _OwnedPod] = {}
        self._controlled: dict[str, dict[str, ControlledPods]] = {}  # namespace, uid

    def put(self, key: ObjectKey, pod: Pod) -> None:
        """Count a pod; the room must already have its shape."""
        self.drop(key)
        controller = controller_of(pod.metadata)
        # A terminating pod serves no promise, although it still uses its room.
        if controller and not pod.is_terminal and not pod.is_terminating:
            has_node = bool(pod.spec.node_name)
            is_wanting = not has_node and is_provisionable(pod)
            self._add(key, controller, has_node=has_node, is_wanting=is_wanting)

    def of(self, namespace: str, api_version: str, kind: str, name: str) -> tuple[Counter[Requests], int]:
        """Return the pods of a workload, over all controllers: bound by requests, and the number pending."""
        bound: Counter[Requests] = Counter()
        waiting = 0
        for controlled in self._below(namespace, api_version, kind, name):
            bound += controlled.bound
            waiting += controlled.waiting
        return bound, waiting

    def wanting(self, namespace: str, api_version: str, kind: str, name: str) -> Counter[Requests]:
        """Return the pending pods of a workload that an autoscaler should make room for."""
        wanting: Counter[Requests] = Counter()
        for controlled in self._below(namespace, api_version, kind, name):
            wanting += controlled.wanting
        return wanting

    def _below(self, namespace: str, api_version: str, kind: str, name: str) -> Iterator[ControlledPods]:
        for controlled in self._controlled.get(namespace, {}).values():
            owners = chain(controlled.controller, self._find_owner)
            if any(is_of(owner, api_version, kind, name) for owner in owners):
                yield controlled

    def workloads(self) -> Iterator[tuple[str, OwnerReference]]:
        """Yield the topmost known owners of pods, with their namespace, each once."""
        for namespace, controllers in self._controlled.items():
            tops = {}
            for controlled in controllers.values():
                *_, top = chain(controlled.controller, self._find_owner)
                tops[top.uid] = top
            yield from ((namespace, top) for top in tops.values())

    def _add(self, key: ObjectKey, controller: OwnerReference, *, has_node: bool, is_wanting: bool) -> None:
        controllers = self._controlled.setdefault(key.namespace, {})
        controlled = controllers.setdefault(controller.uid, ControlledPods(controller))
        shape = self._shape_of(key.namespace, key.name) if has_node or is_wanting else None
        owned = _OwnedPod(controller.uid, shape.requests if shape is not None else (), has_node, is_wanting)
        _count(controlled, owned, 1)
        self._pods[key] = owned

    def drop(self, key: ObjectKey) -> None:
        owned = self._pods.pop(key, None)
        if owned is None:
            return
        controllers = self._controlled[key.namespace]
        controlled = controllers[owned.controller]
        _count(controlled, owned, -1)
        if not controlled.bound and not controlled.waiting:
            del controllers[owned.controller]
        if not controllers:
            del self._controlled[key.namespace]


def _count(controlled: ControlledPods, owned: _OwnedPod, pods: int) -> None:
    if not owned.has_node:
        controlled.waiting += pods
    for counts, is_counted in ((controlled.bound, owned.has_node), (controlled.wanting, owned.is_wanting)):
        if is_counted:
            counts[owned.requests] += pods
            if not counts[owned.requests]:
                del counts[owned.requests]
