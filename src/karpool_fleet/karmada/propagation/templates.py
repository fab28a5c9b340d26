"""The templates of kinds in policies and bindings; each kind is watched on first use.

Kinds that other components read as structs are watched here as whole objects, too.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from karpool.cluster.changes import ObjectChange
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import ApiResource, ObjectKey
from karpool_fleet.karmada.members.members import MemberKinds, start_in
from karpool_fleet.karmada.propagation.names import Object
from karpool_fleet.runtime.informers import STRUCTS, EachChange, Feed
from karpool_fleet.runtime.supervisor import Context


class TemplateKey(NamedTuple):
    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)


def key_in(resource: Object) -> TemplateKey:
    """Return the key of a binding's `spec.resource`."""
    return TemplateKey(
        resource["apiVersion"], resource["kind"], resource.get("namespace", ""), resource["name"]
    )


class _Held(Protocol):
    def get(self, key: ObjectKey) -> Object | None: ...

    def objects(self) -> Iterator[Object]: ...


OnTemplate = Callable[[TemplateKey, ObjectChange[Object]], None]


class WatchedTemplates:
    def __init__(self, context: Context, on_change: OnTemplate) -> None:
        self._context = context
        self._on_change = on_change
        self.kinds = MemberKinds(context.client)
        self._held: dict[tuple[str, str], _Held] = {}
        self.group: asyncio.TaskGroup | None = None  # group of the component, while it runs

    async def watch(self, api_version: str, kind: str) -> ApiResource | None:
        """Start to watch a kind; None if the control plane does not serve it."""
        resource = await self.kinds.find(api_version, kind)
        if resource is None or (api_version, kind) in self._held:
            return resource
        sink = EachChange(partial(self._tell, api_version, kind))
        if resource in STRUCTS:
            assert self.group is not None, "the component does not run"
            informer: Informer[Any] = Informer(self._context.client, resource, into=dict)
            self._held[(api_version, kind)] = informer
            informer.add_sink(sink)
            start_in(self.group, informer.run(), f"templates {resource}")
        else:
            feed: Feed[Object] = self._context.informers.of(resource)
            self._held[(api_version, kind)] = feed
            feed.add_sink(sink)
        return resource

    def _tell(self, api_version: str, kind: str, change: ObjectChange[Object]) -> None:
        self._on_change(TemplateKey(api_version, kind, *change.key), change)

    def is_watched(self, api_version: str, kind: str) -> bool:
        return (api_version, kind) in self._held

    def get(self, key: TemplateKey) -> Object | None:
        held = self._held.get((key.api_version, key.kind))
        return None if held is None else held.get(key.key)

    def of_kind(self, api_version: str, kind: str) -> Iterator[Object]:
        held = self._held.get((api_version, kind))
        return iter(()) if held is None else held.objects()


# Metadata that changes without a change of the specification.
_VOLATILE = ("resourceVersion", "generation", "managedFields")


def same_specification(old: Object, new: Object) -> bool:
    """Whether two states of a template would be propagated alike."""
    for field in {**old, **new}:
        if field == "metadata":
            if _lasting(old[field]) != _lasting(new[field]):
                return False
        elif field != "status" and old.get(field) != new.get(field):
            return False
    return True


def _lasting(metadata: Object) -> Object:
    return {key: value for key, value in metadata.items() if key not in _VOLATILE}
