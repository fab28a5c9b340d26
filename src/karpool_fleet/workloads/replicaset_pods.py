"""Which ReplicaSets still have pods, including terminating ones.

The status of a ReplicaSet leaves out terminating pods; a Deployment with the strategy Recreate must wait for
those, too.
"""

from collections.abc import Callable
from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.model.kubernetes.api_resources import REPLICASETS, ObjectKey
from karpool.model.kubernetes.pod import Pod


class _Set(NamedTuple):
    key: ObjectKey
    uid: str


class SetPods:
    def __init__(self, on_empty: Callable[[ObjectKey], None]) -> None:
        """Create the index; `on_empty` is called for a ReplicaSet whose last pod is gone."""
        self._on_empty = on_empty
        self._pods: dict[str, dict[ObjectKey, None]] = {}  # by uid of the ReplicaSet
        self._set_of: dict[ObjectKey, _Set] = {}

    def has_any(self, uid: str) -> bool:
        return uid in self._pods

    def on_change(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        ended = pod is None or change.type == "DELETED" or pod.is_terminal
        if not ended and change.type == "MODIFIED" and change.key in self._set_of:
            return
        self._forget(change.key)
        if pod is None or ended:
            return
        for owner in pod.metadata.owner_references or ():
            if owner.controller and owner.kind == REPLICASETS.kind:
                self._set_of[change.key] = _Set(ObjectKey(change.key.namespace, owner.name), owner.uid)
                self._pods.setdefault(owner.uid, {})[change.key] = None

    def _forget(self, key: ObjectKey) -> None:
        of = self._set_of.pop(key, None)
        if of is None:
            return
        held = self._pods[of.uid]
        del held[key]
        if not held:
            del self._pods[of.uid]
            self._on_empty(of.key)
