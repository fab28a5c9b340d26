"""Adoption and release of the objects that an owner's selector matches.

An object that matches and has no controller is adopted; one that no longer matches is released. Both are
patches that fail if the object has changed meanwhile.
"""

from typing import Any, TypeVar

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ApiResource, ObjectKey
from karpool.model.kubernetes.meta import LabelSelector, ObjectMeta, decode
from karpool.model.labels import LabelMatcher
from karpool_fleet.runtime.writes import owner_reference, patch_version
from karpool_fleet.workloads.dependents import Dependents, key_of, label_pair, meta_of

T = TypeVar("T")


def selector_of(obj: Object) -> LabelMatcher | None:
    """Compile `spec.selector`; None, which selects nothing, if it is missing, empty or unusable."""
    try:
        selector = decode(obj["spec"].get("selector") or {}, LabelSelector).compile()
    except Invalid:
        return None
    return selector if selector.requirements else None


class Selectors:
    """The selectors of one kind of owner, to find those that match an object."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, LabelMatcher] = {}
        self._by_pair: dict[tuple[str, str, str], dict[ObjectKey, None]] = {}

    def put(self, key: ObjectKey, selector: LabelMatcher | None) -> None:
        if self._known.get(key) == selector:
            return
        self.drop(key)
        if selector is not None:
            self._known[key] = selector
            self._by_pair.setdefault(_slot(key, selector), {})[key] = None

    def drop(self, key: ObjectKey) -> None:
        selector = self._known.pop(key, None)
        if selector is not None:
            slot = _slot(key, selector)
            self._by_pair[slot].pop(key)
            if not self._by_pair[slot]:
                del self._by_pair[slot]

    def owners(self) -> list[ObjectKey]:
        return list(self._known)

    def matching(self, namespace: str, labels: dict[str, str]) -> list[ObjectKey]:
        slots = [("", ""), *labels.items()]
        return [
            key
            for pair in slots
            for key in self._by_pair.get((namespace, *pair), ())
            if self._known[key].matches(labels)
        ]


def _slot(key: ObjectKey, selector: LabelMatcher) -> tuple[str, str, str]:
    return key.namespace, *(label_pair(selector) or ("", ""))


async def claim(client: Client, owner: ApiResource, obj: Object, dependents: Dependents[T]) -> None:
    """Adopt and release objects, so that `dependents` has what belongs to `obj`. O(new objects)."""
    selector = selector_of(obj)
    meta = obj["metadata"]
    if selector is None:
        return
    if "deletionTimestamp" not in meta:
        for dependent in dependents.unchecked(meta["uid"]):
            child = meta_of(dependent)
            if not selector.matches(child.labels or {}):
                await _set_owners(client, dependents, child, meta["uid"], None)
        dependents.checked(meta["uid"])
    orphans = [o for o in dependents.orphans(meta["namespace"], selector) if _adoptable(o)]
    if orphans and await _may_adopt(client, owner, obj):
        reference = owner_reference(owner, obj)
        for orphan in orphans:
            await _set_owners(client, dependents, meta_of(orphan), meta["uid"], reference)


def _adoptable(obj: Any) -> bool:
    if meta_of(obj).deletion_timestamp:
        return False
    return isinstance(obj, dict) or not obj.is_terminal


async def _may_adopt(client: Client, owner: ApiResource, obj: Object) -> bool:
    """Whether the owner may adopt; one in deletion would undo an orphaning, and the cache may be behind."""
    meta = obj["metadata"]
    if "deletionTimestamp" in meta:
        return False
    try:
        live = await client.get(owner, meta["name"], namespace=meta["namespace"])
    except NotFound:
        return False
    return live["metadata"]["uid"] == meta["uid"] and "deletionTimestamp" not in live["metadata"]


async def _set_owners(
    client: Client, dependents: Dependents[T], child: ObjectMeta, owner_uid: str, reference: Object | None
) -> None:
    """Write the owner references. Raises Conflict if the object has changed: retry."""
    kept = [_wire(owner) for owner in child.owner_references or () if owner.uid != owner_uid]
    patch = {"metadata": {"ownerReferences": [*kept, reference] if reference else kept}}
    try:
        answer = await patch_version(client, dependents.resource, child, patch)
    except NotFound:
        dependents.forget(key_of(child), child.uid)
    else:
        dependents.assume(answer)


def _wire(owner: Any) -> Object:
    wire = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": owner.controller,
        "blockOwnerDeletion": owner.block_owner_deletion,
    }
    return {key: value for key, value in wire.items() if value is not None}
