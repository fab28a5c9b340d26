"""Readers of one kind: what happens when an object is added, changed, deleted, or cannot be read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from karpool.cluster import kinds
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.held_objects import HeldObjects
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.nodes.expected import DaemonOverhead
from karpool.cluster.pods.attach_limits import AttachLimits
from karpool.cluster.pods.budget_store import BudgetStore, QuotaStore
from karpool.cluster.pods.buffer_store import BufferStore
from karpool.cluster.pods.owner_store import OwnerStore
from karpool.cluster.pods.volume_store import VolumeStore
from karpool.cluster.pools.node_group_store import NodeGroupStore
from karpool.cluster.pools.pool_store import PoolStore
from karpool.cluster.problems import UnreadableObjects
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_overlay import NodeOverlays
from karpool.model.karpenter.objects import NodeClassRef
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.workload import pod_template

NoteProblem = Callable[[ObjectKey, bytes, Invalid, float], None]


@dataclass(frozen=True, slots=True)
class ObjectReader:
    put: Callable[[ObjectKey, Any, float], None]
    drop: Callable[[ObjectKey, float], None]
    unreadable: NoteProblem


def of_namespaces(room: ClusterRoom, noted: NoteProblem) -> ObjectReader:
    return ObjectReader(
        lambda key, namespace, now: room.upsert_namespace(namespace.name, namespace.labels),
        lambda key, now: room.remove_namespace(key.name),
        noted,
    )


def of_daemon_sets(
    daemons: DaemonOverhead, problems: UnreadableObjects, changed: Callable[[], None]
) -> ObjectReader:
    def put(key: ObjectKey, raw: dict[str, Any], now: float) -> None:
        try:
            shape = shape_of(pod_template({**raw, "kind": "DaemonSet"}).pod)
        except Invalid as error:
            problems.add("DaemonSet", str(key), error)
            return
        problems.clear("DaemonSet", str(key))
        if daemons.put(key, shape):
            changed()

    def drop(key: ObjectKey, now: float) -> None:
        problems.clear("DaemonSet", str(key))
        if daemons.remove(key):
            changed()

    return ObjectReader(put, drop, noted_problem(problems, kinds.DAEMONSETS))


def of_devices(room: ClusterRoom) -> ObjectReader:
    return ObjectReader(
        lambda key, gpu, now: room.upsert_gpu(gpu),
        lambda key, now: room.remove_gpu(key.name),
        lambda key, raw, error, now: room.close_gpu(key.name, error),
    )


def of_volume_claims(volumes: VolumeStore, noted: NoteProblem) -> ObjectReader:
    return ObjectReader(
        lambda key, claim, now: volumes.put_claim(claim),
        lambda key, now: volumes.remove_claim(key.namespace, key.name),
        noted,
    )


def of_volumes(volumes: VolumeStore, noted: NoteProblem) -> ObjectReader:
    return ObjectReader(
        lambda key, volume, now: volumes.put_volume(volume),
        lambda key, now: volumes.remove_volume(key.name),
        noted,
    )


def of_storage_classes(volumes: VolumeStore, noted: NoteProblem) -> ObjectReader:
    return ObjectReader(
        lambda key, storage_class, now: volumes.put_class(storage_class),
        lambda key, now: volumes.remove_class(key.name),
        noted,
    )


def of_csi_nodes(limits: AttachLimits) -> ObjectReader:
    return ObjectReader(
        lambda key, csi_node, now: limits.put_csi_node(csi_node),
        lambda key, now: limits.drop_csi_node(key.name),
        lambda key, raw, error, now: limits.unreadable_csi_node(key, raw, error),
    )


def of_attachments(limits: AttachLimits) -> ObjectReader:
    return ObjectReader(
        lambda key, attachment, now: limits.put_attachment(attachment),
        lambda key, now: limits.drop_attachment(key.name),
        lambda key, raw, error, now: limits.unreadable_attachment(key, raw, error),
    )


def of_drivers(room: ClusterRoom, kind: ClusterKind) -> ObjectReader:
    name = kind.resource.kind
    return ObjectReader(
        lambda key, obj, now: room.put_dra(name, key, obj),
        lambda key, now: room.drop_dra(name, key),
        lambda key, raw, error, now: room.close_dra(name, key, error.reason),
    )


def of_pools(pools: PoolStore) -> ObjectReader:
    return ObjectReader(
        lambda key, pool, now: pools.put_pool(pool, now),
        lambda key, now: pools.drop_pool(key.name),
        lambda key, raw, error, now: pools.unreadable(key.name, error.reason),
    )


def of_node_classes(pools: PoolStore, kind: ClusterKind, noted: NoteProblem) -> ObjectReader:
    def named(key: ObjectKey) -> NodeClassRef:
        return NodeClassRef(group=kind.resource.group, kind=kind.resource.kind, name=key.name)

    return ObjectReader(
        lambda key, node_class, now: pools.put_class(named(key), node_class),
        lambda key, now: pools.drop_class(named(key)),
        noted,
    )


def of_owners(owners: OwnerStore, kind: ClusterKind, noted: NoteProblem) -> ObjectReader:
    plural = kind.resource.plural
    return ObjectReader(
        lambda key, owned, now: owners.tell(plural, key, owned.metadata),
        lambda key, now: owners.forget(plural, key),
        noted,
    )


def of_buffers(buffers: BufferStore, kind: ClusterKind) -> ObjectReader:
    version = kind.resource.version
    return ObjectReader(
        lambda key, buffer, now: buffers.put(version, key, buffer),
        lambda key, now: buffers.drop(version, key),
        lambda key, raw, error, now: buffers.unreadable(version, key, error.reason),
    )


def of_templates(buffers: BufferStore, kind: ClusterKind, noted: NoteProblem) -> ObjectReader:
    """Return a reader of pod templates and workloads for capacity buffers."""
    name = kind.resource.kind
    return ObjectReader(
        lambda key, raw, now: buffers.put_template(name, key, raw),
        lambda key, now: buffers.drop_template(name, key),
        noted,
    )


def of_overlays(overlays: NodeOverlays) -> ObjectReader:
    return ObjectReader(
        lambda key, overlay, now: overlays.put(overlay),
        lambda key, now: overlays.drop(key.name),
        lambda key, raw, error, now: overlays.unreadable(key.name, error.reason),
    )


def of_budgets(budgets: BudgetStore) -> ObjectReader:
    return ObjectReader(
        lambda key, budget, now: budgets.put(key, budget),
        lambda key, now: budgets.drop(key),
        lambda key, raw, error, now: budgets.close_namespace(key, error),
    )


def of_quotas(quotas: QuotaStore, noted: NoteProblem) -> ObjectReader:
    return ObjectReader(
        lambda key, quota, now: quotas.put(key, quota), lambda key, now: quotas.drop(key), noted
    )


def of_node_groups(groups: NodeGroupStore, noted: NoteProblem) -> ObjectReader:
    return ObjectReader(
        lambda key, status, now: groups.put_status(status, now), lambda key, now: groups.drop_status(), noted
    )


def holder(held: HeldObjects, problems: UnreadableObjects, kind: ClusterKind) -> ObjectReader:
    """Return a reader that stores objects without interpreting them."""
    held.hold(kind)

    def put(key: ObjectKey, obj: Any, now: float) -> None:
        held.put(kind, key, obj)
        problems.clear(kind.resource.kind, str(key))

    def drop(key: ObjectKey, now: float) -> None:
        held.drop(kind, key)
        problems.clear(kind.resource.kind, str(key))

    return ObjectReader(put, drop, noted_problem(problems, kind))


def noted_problem(problems: UnreadableObjects, kind: ClusterKind) -> NoteProblem:
    """Return a handler that reports the problem and keeps the last readable state."""

    def note(key: ObjectKey, raw: bytes, error: Invalid, now: float) -> None:
        problems.add(kind.resource.kind, str(key), error)

    return note


def unreadable_as_none(reader: ObjectReader) -> ObjectReader:
    """Return a reader that passes an unreadable object as None: it exists, with unknown content."""

    def note(key: ObjectKey, raw: bytes, error: Invalid, now: float) -> None:
        reader.put(key, None, now)
        reader.unreadable(key, raw, error, now)

    return replace(reader, unreadable=note)


def and_then(reader: ObjectReader, then: Callable[[], None]) -> ObjectReader:
    """Return a reader that calls `then` after each change."""

    def put(key: ObjectKey, obj: Any, now: float) -> None:
        reader.put(key, obj, now)
        then()

    def drop(key: ObjectKey, now: float) -> None:
        reader.drop(key, now)
        then()

    return ObjectReader(put, drop, reader.unreadable)


def both_readers(first: ObjectReader, second: ObjectReader) -> ObjectReader:
    def put(key: ObjectKey, obj: Any, now: float) -> None:
        second.put(key, obj, now)
        first.put(key, obj, now)

    def drop(key: ObjectKey, now: float) -> None:
        first.drop(key, now)
        second.drop(key, now)

    return ObjectReader(put, drop, first.unreadable)
