"""The state that every verb uses: objects, types, time, identities and hooks.

Admission hooks run on each write before it is stored, in order. A hook refuses the write by raising a
`StatusError`, and may change the new object in place.
"""

import hashlib
from collections.abc import Callable
from typing import Literal

from karpool.kube.clock import Clock
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.apiserver.kinds.conversion import collection_name
from karpool_fleet.apiserver.kinds.registry import Registry
from karpool_fleet.apiserver.objects.background import Background
from karpool_fleet.apiserver.objects.disruption import DisruptionBudgets
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.storage.store import Collection, ObjectStore

Operation = Literal["CREATE", "UPDATE", "DELETE"]
Admission = Callable[[Operation, ResourceType, Object | None, Object | None], None]

# No vowels and no 0, 1, 3: suffixes spell no words.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class ServedCluster:
    def __init__(self, clock: Clock, ids: Callable[[], str], store: ObjectStore, types: Registry) -> None:
        self.clock = clock
        self.ids = ids
        self.store = store
        self.types = types
        self.admission: list[Admission] = []
        self.background = Background()
        self.budgets = DisruptionBudgets(self)
        self._second, self._written = -1, ""
        self.bookmark_seconds = 60.0  # interval on an idle watch
        self.track_fields = False  # metadata.managedFields for objects that were never applied

    def now(self) -> str:
        seconds = int(self.clock.now())
        if seconds != self._second:  # formatting costs as much as encoding a pod
            self._second, self._written = seconds, rfc3339(seconds)
        return self._written

    def suffix(self) -> str:
        """Five characters for generateName, drawn from `ids`."""
        digest = hashlib.blake2b(self.ids().encode(), digest_size=5).digest()
        return "".join(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in digest)

    def collection(self, resource: ResourceType) -> Collection:
        return self.store.collection(collection_name(resource))

    def admit(
        self, operation: Operation, resource: ResourceType, new: Object | None, old: Object | None
    ) -> None:
        for hook in self.admission:
            hook(operation, resource, new, old)
