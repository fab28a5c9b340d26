"""Objects that the cluster stores without interpreting them; views are created on demand."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from karpool.cluster.kinds import ClusterKind
from karpool.model.kubernetes.api_resources import ObjectKey

Held = Mapping[ObjectKey, Any]


class HeldObjects:
    def __init__(self) -> None:
        self._objects: dict[ClusterKind, dict[ObjectKey, Any]] = {}
        self._views: dict[ClusterKind, Held] = {}

    def hold(self, kind: ClusterKind) -> None:
        """Start holding a kind, even while it has no objects."""
        self._objects.setdefault(kind, {})

    def put(self, kind: ClusterKind, key: ObjectKey, obj: Any) -> None:
        self._objects[kind][key] = obj
        self._views.pop(kind, None)

    def drop(self, kind: ClusterKind, key: ObjectKey) -> None:
        self._objects[kind].pop(key, None)
        self._views.pop(kind, None)

    def of(self, kind: ClusterKind) -> Held:
        """Return the current objects of a kind, as an immutable view."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = MappingProxyType(dict(self._objects[kind]))
        return view

    def view(self) -> Mapping[ClusterKind, Held]:
        return MappingProxyType({kind: self.of(kind) for kind in self._objects})
