"""Pods that are kept whole, for components that decide about each pod."""

from collections.abc import Mapping
from types import MappingProxyType

from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod


class KeptPods:
    def __init__(self) -> None:
        self.version = 0
        self._pods: dict[ObjectKey, Pod] = {}
        self._view: Mapping[ObjectKey, Pod] | None = None

    def put(self, key: ObjectKey, pod: Pod) -> None:
        self._pods[key] = pod
        self._changed()

    def drop(self, key: ObjectKey) -> None:
        if self._pods.pop(key, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self._view = None
        self.version += 1

    def view(self) -> Mapping[ObjectKey, Pod]:
        """Return the current pods, as an immutable view."""
        if self._view is None:
            self._view = MappingProxyType(dict(self._pods))
        return self._view
