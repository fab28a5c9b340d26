"""Functions that hear of what becomes of objects, one for each event."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from karpool.cluster.changes import ObjectChange
from karpool.model.kubernetes.api_resources import ObjectKey

T = TypeVar("T")


class Handlers(Generic[T]):
    def __init__(
        self,
        on_add: Callable[[T], None] | None = None,
        on_update: Callable[[T | None, T], None] | None = None,
        on_delete: Callable[[ObjectKey, T | None], None] | None = None,
    ) -> None:
        self._on_add, self._on_update, self._on_delete = on_add, on_update, on_delete

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            if change.type == "DELETED":
                if self._on_delete:
                    self._on_delete(change.key, change.object)
            elif change.object is not None:
                if change.type == "ADDED" and self._on_add:
                    self._on_add(change.object)
                elif change.type == "MODIFIED" and self._on_update:
                    self._on_update(change.old, change.object)
