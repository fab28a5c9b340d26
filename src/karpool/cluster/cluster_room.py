"""A cluster in columns, kept current by events, and its snapshots.

`Cluster` feeds it object by object. Objects may arrive in any order: a pod on an unknown node is stored and
counted when the node arrives. Finished pods free their room; terminating pods hold it until they are deleted.
An object that cannot be read is listed in `problems`; its last readable state stays. A pod that cannot be
read blocks its node: nothing is free there (`blocked`). If its node is unknown, too, the state is incomplete.

Not for concurrent use: it belongs to one event loop. Snapshots may be read in any thread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from karpool.cluster.devices.device_store import DeviceStore, DeviceUse, HeldDevices, held_devices
from karpool.cluster.devices.dra_store import DraStore
from karpool.cluster.nodes.node_store import NodeStore
from karpool.cluster.nodes.room_store import RESOURCE_LIMIT, RoomStore
from karpool.cluster.pods.attach_limits import AttachLimits
from karpool.cluster.pods.pod_store import PodStore
from karpool.cluster.pods.unreadable_pods import UnreadablePods, place_of
from karpool.cluster.pods.volume_store import PodVolume, VolumeStore
from karpool.cluster.problems import UnreadableObjects
from karpool.model import labels
from karpool.model.devices.device import Device, GpuObject, from_object
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.kubernetes.pod_shape import PodShape, positive
from karpool.model.kubernetes.times import moment
from karpool.model.kubernetes.volumes import (
    Alternatives,
    exclusive_claims,
)
from karpool.packing.dra.pod_claims import HeldClaims
from karpool.packing.tables.node_table import NodeRow, node_row
from karpool.packing.tables.room import Room, StoredRoom

# An entry that no node satisfies, for a pod whose volumes cannot be read.
_NOWHERE: tuple[Alternatives, ...] = ((),)


class ClusterRoom:
    """The room of a cluster.

    `volumes=False` is for callers that do not feed claims, volumes and storage classes: volumes then do not
    restrict pods, instead of making them wait for claims that never arrive. `devices=False` is for imitating
    a component that does not know shares of devices. `dra` is for callers that feed slices and claims.
    """

    def __init__(self, *, volumes: bool = True, devices: bool = True, dra: bool = False) -> None:
        self.problems = UnreadableObjects()
        self.version = 0
        self._nodes = NodeStore()
        self._room = RoomStore()
        self._devices = DeviceStore()
        self._knows_shares = devices
        self._dra = DraStore(self.problems) if dra else None
        self._pods = PodStore(self._room.take)
        self._unreadable = UnreadablePods()
        self._blocked_changes: set[str] = set()
        self.volumes = VolumeStore()
        self._sees_volumes = volumes
        self.attach_limits = AttachLimits(self.volumes, self.problems, self._offer_again)
        self._namespaces: dict[str, Labels] = {}
        self._namespaces_shared = False
        self._latest: Room | None = None

    def snapshot(self) -> Room:
        """Return the current state; the same object until something changes. O(columns)."""
        self._reshape_affected_pods()
        if self._latest is None:
            rows, shape_ids, by_row, pending = self._pods.views()
            devices = self._devices.table(self._nodes, self._room)  # before room, which shares reduce
            free, allocatable, slots = self._room.views()
            self._namespaces_shared = True
            self._latest = StoredRoom(
                self.version,
                self._nodes.table(),
                self._pods.shapes,
                self._namespaces,
                free=free,
                allocatable=allocatable,
                slots=slots,
                pod_nodes=rows,
                pod_shapes=shape_ids,
                pods_by_row=by_row,
                pending=pending,
                devices=devices,
                dra=self._dra.state() if self._dra is not None else None,
            )
        return self._latest

    @property
    def node_count(self) -> int:
        return len(self._nodes)

    @property
    def blocked(self) -> Mapping[str, int]:
        """The nodes with unreadable pods, and their number: nothing is free there."""
        return self._unreadable.per_node

    @property
    def first_unreadable(self) -> Mapping[str, str]:
        return self._unreadable.first_of_node

    @property
    def unreadable_pods(self) -> int:
        return len(self._unreadable)

    @property
    def complete(self) -> bool:
        """Whether the node of every pod is known."""
        return not self._unreadable.somewhere

    # Feeding

    def take_blocked_changes(self) -> set[str]:
        """Return the nodes that were blocked or unblocked since the last call."""
        taken, self._blocked_changes = self._blocked_changes, set()
        return taken

    def upsert_node(self, node: Node) -> None:
        try:
            row = _checked(node_row(node))
        except Invalid as error:
            self.problems.add("Node", node.name, error)
            return
        self.problems.clear("Node", node.name)
        self.put_node(row)

    def put_node(self, node: NodeRow) -> None:
        """Like `upsert_node`, for a node that is already compiled."""
        node = self.attach_limits.limited(node)
        version, count = self._nodes.version, len(self._nodes)
        row = self._nodes.put(node)
        news, ignored = self._room.offer(row, node.allocatable)
        self._devices.put_node(node)
        if row == count:
            self._pods.add_row(node.name)
            news |= self._room.block(row, node.name in self._unreadable.per_node)
        if news or self._nodes.version != version:
            self._changed()
        if ignored:
            reason = f"is not followed: nodes already offer {RESOURCE_LIMIT} different resources"
            self.problems.add("Node", node.name, Invalid("status.allocatable", ignored[0], reason))

    def remove_node(self, name: str) -> None:
        self.problems.clear("Node", name)
        moved = self._nodes.remove(name)
        if moved is not None:
            self._pods.remove_row(name, *moved)
            self._room.remove(*moved)
            row, last = moved
            self._devices.remove_node(name, self._nodes.rows[row].name if row != last else "")
            self._changed()

    def upsert_pod(self, pod: Pod) -> None:
        if pod.is_terminal:
            self.remove_pod(pod.metadata.namespace, pod.name)
            return
        key = pod.metadata.key
        try:
            if not pod.name:
                raise Invalid("metadata.name", "", "is required")
            if pod.is_terminating and moment(pod.metadata.deletion_timestamp) is None:
                # A terminating pod leaves its node soon; when is unknown here.
                raise Invalid(
                    "metadata.deletionTimestamp",
                    pod.metadata.deletion_timestamp,
                    "must be a time like 2006-01-02T15:04:05Z",
                )
            shape_id = self._pods.shapes.intern_pod(pod, _check_labels_of)
        except Invalid as error:
            self.problems.add("Pod", key, error)
            self._block(self._unreadable.put(key, pod.spec.node_name))
            return
        self.problems.clear("Pod", key)
        if key in self._unreadable.node_of:
            self._block(self._unreadable.drop(key))
        shape = self._pods.shapes[shape_id]
        if shape.devices is not None and not self._knows_shares:
            # To such a component a share is an ordinary resource.
            shape = replace(shape, devices=None, requests=positive(effective_requests(pod)))
            shape_id = self._pods.shapes.intern(shape)
        if self._sees_volumes and self.volumes.put_pod(key, pod):
            shape = self._with_volumes(key, shape)
            shape_id = self._pods.shapes.intern(shape)
        held = held_devices(shape.devices, pod.annotations) if shape.devices is not None else None
        self._put_pod(key, shape_id, pod.spec.node_name, held)

    def put_pod(self, key: str, shape: PodShape, node: str = "") -> None:
        """Like `upsert_pod`, for a pod that is already compiled; `key` is `namespace/name`."""
        held = None if shape.devices is None else HeldDevices(shape.devices, ())
        self._put_pod(key, self._pods.shapes.intern(shape), node, held)

    def _put_pod(self, key: str, shape_id: int, node: str, held: HeldDevices | None) -> None:
        if held is not None:
            if self._devices.put_pod(key, node, held):
                self._changed()
        elif key in self._devices.node_of_pod and self._devices.remove_pod(key):
            self._changed()
        if self._pods.put(key, shape_id, node, self._nodes.find(node) if node else None):
            self._changed()

    def remove_pod(self, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}" if namespace else name
        self.problems.clear("Pod", key)
        self._block(self._unreadable.drop(key))
        if self._sees_volumes:
            self.volumes.remove_pod(key)
        self._devices.remove_pod(key)
        if self._pods.remove(key):
            self._changed()

    def hold_pod(self, key: ObjectKey, raw: bytes, error: Invalid) -> None:
        """Block the node of a pod that cannot be decoded; the last known requests stay charged."""
        place = place_of(raw)
        if place.is_terminal:
            self.remove_pod(key.namespace, key.name)
            return
        self.problems.add("Pod", str(key), error)
        self._block(self._unreadable.put(str(key), place.node))

    def _block(self, nodes: Iterable[str]) -> None:
        for name in nodes:
            self._blocked_changes.add(name)
            row = self._nodes.find(name)
            if row is not None and self._room.block(row, name in self._unreadable.per_node):
                self._changed()

    def shape_of(self, namespace: str, name: str) -> PodShape | None:
        """Return the shape of a pod, including its volumes; None if it is unknown or cannot be read."""
        self._reshape_affected_pods()
        key = f"{namespace}/{name}" if namespace else name
        return self._pods.shape_of(key) if key in self._pods else None

    def volumes_of(self, pod: Pod) -> list[PodVolume]:
        """Return the state of each volume claim of a pod; empty if claims are not watched."""
        return self.volumes.volumes_of(pod) if self._sees_volumes else []

    def exclusive(self, pod: Pod) -> list[str]:
        """Return the keys of a pod's volume claims that allow one pod at a time; empty if not watched."""
        return exclusive_claims(pod, self.volumes.claims) if self._sees_volumes else []

    def node_of(self, key: str) -> str:
        """Return the node of a pod; empty if it has none or is unknown."""
        row, home = self._pods.place_of(key)
        return self._nodes.rows[row].name if row >= 0 else home

    @property
    def devices(self) -> Mapping[str, tuple[DeviceUse, ...]]:
        """Devices by node, as of the latest snapshot."""
        return self._devices.uses

    def described_device(self, name: str) -> Device | None:
        return self._devices.described_device(name)

    def upsert_gpu(self, gpu: GpuObject) -> None:
        try:
            device = from_object(gpu)
        except Invalid as error:
            self.close_gpu(gpu.name, error)
            return
        self.problems.clear("GPU", gpu.name)
        if self._devices.put_device(device):
            self._changed()

    def remove_gpu(self, name: str) -> None:
        self.problems.clear("GPU", name)
        if self._devices.remove_device(name):
            self._changed()

    def close_gpu(self, name: str, error: Invalid) -> None:
        """Keep a device that cannot be read, and close it."""
        self.problems.add("GPU", name, error)
        if self._devices.close_device(name):
            self._changed()

    def upsert_namespace(self, name: str, namespace_labels: Labels) -> None:
        if self._namespaces.get(name) != namespace_labels:
            self._own_namespaces()[name] = dict(namespace_labels)
            self._changed()

    def remove_namespace(self, name: str) -> None:
        if name in self._namespaces:
            del self._own_namespaces()[name]
            self._changed()

    def put_dra(self, kind: str, key: ObjectKey, obj: object) -> None:
        """Add a slice, class, claim, template or taint rule of DRA."""
        assert self._dra is not None
        self._dra.put(kind, key, obj)
        self._changed()

    def drop_dra(self, kind: str, key: ObjectKey) -> None:
        assert self._dra is not None
        self._dra.drop(kind, key)
        self._changed()

    def held_claims(self) -> HeldClaims:
        return self._dra.held_claims() if self._dra is not None else HeldClaims()

    def leave_out_claims(self, pods: frozenset[str]) -> None:
        """Leave out the claims that only these pods (UIDs) use, for a what-if; an empty set restores them."""
        if self._dra is not None:
            self._dra.leave_out(pods)
            self._changed()

    def close_dra(self, kind: str, key: ObjectKey, reason: str) -> None:
        """Note a DRA object that cannot be read."""
        assert self._dra is not None
        self._dra.unreadable(kind, key, reason)
        self._changed()

    # Inside

    def _changed(self) -> None:
        self.version += 1
        self._latest = None

    def _reshape_affected_pods(self) -> None:
        """Update the shapes of pods whose claims, volumes or classes changed, and the limits of nodes.

        Volumes without a pod count against the attach limits of a node.
        """
        if not self._sees_volumes:
            return
        nodes, self.volumes.affected_nodes = self.volumes.affected_nodes, set()
        self._offer_again(self.attach_limits.with_attachments(nodes))
        affected, self.volumes.affected = self.volumes.affected, set()
        for key in affected:
            if key in self._pods:
                shape = self._with_volumes(key, self._pods.shape_of(key))
                if self._pods.reshape(key, shape):
                    self._changed()

    def _with_volumes(self, key: str, shape: PodShape) -> PodShape:
        try:
            return shape.with_volumes(self.volumes.terms(key), self.volumes.attached(key))
        except Invalid as error:
            self.problems.add("Pod", key, error)
            return shape.with_volumes(_NOWHERE)

    def _offer_again(self, nodes: Iterable[str] | None) -> None:
        """Update what these nodes offer; None: all nodes, because pods ask for other resources now."""
        if nodes is None:
            nodes = [row.name for row in self._nodes.rows]
            self._changed()
        for name in nodes:
            row = self._nodes.find(name)
            if row is not None:
                self.put_node(self._nodes.rows[row])

    def _own_namespaces(self) -> dict[str, Labels]:
        if self._namespaces_shared:
            self._namespaces = dict(self._namespaces)
            self._namespaces_shared = False
        return self._namespaces


def _checked(row: NodeRow) -> NodeRow:
    if not row.name:
        raise Invalid("metadata.name", "", "is required")
    _check_labels(row.labels)
    return row


def _check_labels_of(pod: Pod) -> None:
    _check_labels(pod.labels)


def _check_labels(pairs: Labels) -> None:
    try:
        labels.check_labels(pairs)
    except Invalid as error:
        raise error.at("metadata.labels") from None
