"""Counts the pods of a cluster that were evicted since the start.

Kubernetes sets the condition DisruptionTarget on such a pod for every cause: the eviction API, preemption, a
taint, or a kubelet under pressure. Each pod counts once.
"""

from karpool.cluster import kinds
from karpool.cluster.changes import PutDropSink
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod

TOLD_TO_LEAVE = "DisruptionTarget"


class EvictionCounter:
    def __init__(self) -> None:
        self.count = 0
        self._leaving: dict[ObjectKey, str] = {}  # -> uid that was counted

    @property
    def watch(self) -> WatchedKind[Pod]:
        """Return the watch, which shares the informer of the `Cluster`."""
        sink = PutDropSink(self._put, self._drop)
        return WatchedKind(kinds.PODS.resource, kinds.PODS.struct, sink, kinds.PODS.selection)

    def _put(self, key: ObjectKey, pod: Pod) -> None:
        if not pod.status.conditions:
            return
        target = condition(pod.status.conditions, TOLD_TO_LEAVE)
        if target is None or target.status != "True" or self._leaving.get(key) == pod.metadata.uid:
            return
        self._leaving[key] = pod.metadata.uid
        self.count += 1

    def _drop(self, key: ObjectKey) -> None:
        self._leaving.pop(key, None)
