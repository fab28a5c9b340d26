"""A what-if view of the cluster without some pods and the resource claims that only they use."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from karpool.cluster import kinds
from karpool.cluster.changes import ADDED, DELETED, ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.snapshot import Snapshot
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod


@contextmanager
def departed(cluster: Cluster, pods: Sequence[Pod], now: float) -> Iterator[Snapshot]:
    """Yield a snapshot without these known pods; restore the cluster afterwards."""
    keys = [ObjectKey(pod.metadata.namespace, pod.name) for pod in pods]
    told = list(zip(keys, pods, strict=True))
    cluster.apply(kinds.PODS, [ObjectChange(DELETED, key, pod) for key, pod in told], now)
    cluster.room.leave_out_claims(frozenset(pod.metadata.uid for pod in pods))
    try:
        yield cluster.snapshot(now)
    finally:
        cluster.room.leave_out_claims(frozenset())
        cluster.apply(kinds.PODS, [ObjectChange(ADDED, key, pod) for key, pod in told], now)
