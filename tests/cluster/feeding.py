"""Objects told to a `Cluster` one by one, as an informer would."""

from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode


def tell(cluster: Cluster, kind: ClusterKind, key: ObjectKey, found: Any, now: float = 0.0) -> None:
    """A raw object, or one that is decoded already."""
    decoded = decode(found, kind.struct) if isinstance(found, dict) and kind.struct is not dict else found
    cluster.apply(kind, [ObjectChange("ADDED", key, decoded)], now)


def tell_gone(cluster: Cluster, kind: ClusterKind, key: ObjectKey, now: float = 0.0) -> None:
    cluster.apply(kind, [ObjectChange("DELETED", key, None)], now)
