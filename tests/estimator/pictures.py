"""Snapshots for questions that are about the room alone, and Clusters told object by object."""

from collections.abc import Iterable
from typing import Any

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.cluster.snapshot import ClusterFacts, Snapshot
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.resource_quota import ResourceQuota, headroom_of
from karpool.packing.tables.room import Room
from tests.cluster.feeding import tell, tell_gone


def in_room(room: Room, quotas: Iterable[ResourceQuota] = ()) -> Snapshot:
    """A cluster of which nothing but room and quotas is known."""
    by_namespace: dict[str, list[Any]] = {}
    for quota in quotas:
        by_namespace.setdefault(quota.metadata.namespace, []).append(headroom_of(quota))
    aspects = Aspect.ROOM | Aspect.QUOTAS
    facts = ClusterFacts(aspects, {}, {}, Market(), LaunchFailures(), quotas=by_namespace)
    return Snapshot(room.version, room, facts)


class Told:
    """A Cluster with the aspects of a provider, told of objects at a moment."""

    def __init__(self, provider: Any, market: Market, now: float = 1000.0) -> None:
        self.cluster = Cluster(
            provider.aspects | Aspect.WAITING, market=market, failures=getattr(provider, "failures", None)
        )
        self.now = now

    def put(self, kind: kinds.ClusterKind, found: Any) -> None:
        meta = found["metadata"] if isinstance(found, dict) else None
        name = meta["name"] if meta is not None else found.name
        namespace = meta.get("namespace", "") if meta is not None else found.metadata.namespace
        tell(self.cluster, kind, ObjectKey(namespace, name), found, self.now)

    def drop(self, kind: kinds.ClusterKind, name: str, namespace: str = "") -> None:
        tell_gone(self.cluster, kind, ObjectKey(namespace, name), self.now)

    def snapshot(self) -> Snapshot:
        return self.cluster.snapshot(self.now)
