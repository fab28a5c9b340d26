"""Shows which GPU shares could move so that whole devices become free. Nothing is executed.

A share moves with its pod, and the pod's scheduler decides where it restarts: the result only shows that
there is capacity on devices that are already shared. Devices with the fewest holders are tried first; a
device that received a share stays. Only pods move that an owner recreates, that may be disturbed, and whose
disruption budgets allow all of them at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from karpool.cluster.cluster import Cluster
from karpool.cluster.departures import departed
from karpool.cluster.devices.accelerators import accelerators
from karpool.cluster.devices.device_store import DeviceUse
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    CompiledPdb,
    is_daemon,
    is_evictable,
    is_protected,
    over_budget,
    running_seconds,
)
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.packing.counting.count import fits
from karpool.packing.tables.room import PodPlacement, Room

# Maximum number of devices; a longer list takes seconds and is not readable.
DEVICES_MAX = 200
# A recreated pod has a new claim, which cannot ask for a device that is already in use.
_OF_CLAIMS = "resource claims share it, and kube-scheduler chooses the devices of claims"


@dataclass(frozen=True, slots=True)
class ShareMove:
    pod: str
    to_node: str
    to_device: str


@dataclass(frozen=True, slots=True)
class FreedDevice:
    node: str
    device: str
    moves: tuple[ShareMove, ...]


@dataclass(frozen=True, slots=True)
class KeptDevice:
    """A shared device that stays shared, and why."""

    node: str
    device: str
    why: str


@dataclass(frozen=True, slots=True)
class DeviceFreeing:
    """`not_looked_at`: number of devices beyond the limit."""

    freed: tuple[FreedDevice, ...] = ()
    kept: tuple[KeptDevice, ...] = ()
    not_looked_at: int = 0


def free_devices(cluster: Cluster, pods: Mapping[ObjectKey, Pod], now: float) -> DeviceFreeing:
    """`pods` are the cluster's pods that have a node."""
    return _Freeing(cluster, pods, now).result()


class _Freeing:
    def __init__(self, cluster: Cluster, pods: Mapping[ObjectKey, Pod], now: float) -> None:
        self._cluster, self._now = cluster, now
        self._pods = {str(key): pod for key, pod in pods.items()}
        snapshot = cluster.snapshot(now)
        self._budgets: Sequence[CompiledPdb] = snapshot.budgets
        uses = [use for shared in snapshot.devices.values() for use in shared]
        self._shared = sorted((use for use in uses if use.holders), key=_effort)
        self._closed = {use.device.name for use in uses if not use.holders}  # empty devices stay empty
        self._received: set[str] = set()
        self._left: set[str] = set()
        self._moved: list[tuple[Pod, PodPlacement]] = []

    def result(self) -> DeviceFreeing:
        freed: list[FreedDevice] = []
        kept: list[KeptDevice] = []
        for use in self._shared[:DEVICES_MAX]:
            outcome = self._free(use)
            if isinstance(outcome, str):
                kept.append(KeptDevice(use.device.node, use.device.name, outcome))
            else:
                freed.append(FreedDevice(use.device.node, use.device.name, outcome))
        kept += (
            KeptDevice(device.node, device.device, _OF_CLAIMS)
            for device in accelerators(self._cluster.snapshot(self._now))[0]
            if device.is_of_driver and device.shareable and device.holders
        )
        return DeviceFreeing(tuple(freed), tuple(kept), max(len(self._shared) - DEVICES_MAX, 0))

    def _free(self, use: DeviceUse) -> tuple[ShareMove, ...] | str:
        """The moves that free the device, or why it stays."""
        name = use.device.name
        if name in self._received:
            return "it receives shares of others"
        if use.closed:
            return "the shares of its holders are unknown"
        holders: list[Pod] = []
        for key in use.holders:
            if key in self._left:
                continue  # it moves with another of its devices
            pod = self._pods.get(key)
            if pod is None:
                return f"{key} cannot be read"
            if why := self._why_it_stays(pod):
                return f"{key} {why}"
            holders.append(pod)
        if blocked := over_budget([*(pod for pod, _ in self._moved), *holders], self._budgets):
            return blocked
        placed = self._places(name, holders)
        if isinstance(placed, str):
            return placed
        self._closed.add(name)
        self._moved += placed
        self._left.update(map(_key, holders))
        self._received.update(device for _, placement in placed for device in placement.devices)
        names = self._cluster.snapshot(self._now).room.names
        return tuple(
            ShareMove(_key(pod), names[placement.node], ", ".join(placement.devices))
            for pod, placement in placed
        )

    def _why_it_stays(self, pod: Pod) -> str:
        if is_daemon(pod) or not any(owner.controller for owner in pod.metadata.owner_references or ()):
            return "has no owner that would create it again"
        if not is_evictable(pod, protected=is_protected(pod, running_seconds(pod, self._now))):
            return "must not be disrupted"
        if pod.spec.resource_claims:
            return "has resource claims, which are not planned here"
        return ""

    def _places(self, name: str, holders: Sequence[Pod]) -> list[tuple[Pod, PodPlacement]] | str:
        """A place for each pod, the largest first; all or none."""
        leaving = [*holders, *(pod for pod, _ in self._moved)]
        with departed(self._cluster, leaving, self._now) as snapshot:
            room = snapshot.room.closing({*self._closed, name})
            room = room.minus([placement for _, placement in self._moved])
            placed: list[tuple[Pod, PodPlacement]] = []
            for shape, pod in sorted(((shape_of(pod), pod) for pod in holders), key=_size, reverse=True):
                placement = _place(room, shape)
                if placement is None:
                    return f"{_key(pod)} has room on no device that others share"
                placed.append((pod, placement))
                room = room.minus([placement])
        return placed


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.name}"


def _place(room: Room, shape: PodShape) -> PodPlacement | None:
    """The node whose devices have room for the fewest such shares: nearly full devices fill up first."""
    counts = fits(room, shape)
    rows = np.flatnonzero(counts > 0).tolist()
    if not rows or room.devices is None:
        return None
    row = min(rows, key=lambda row: (int(counts[row]), room.names[row]))
    before, after = room.devices, room.minus([PodPlacement(row, shape)]).devices
    assert after is not None
    taken = np.flatnonzero(after.users > before.users).tolist()
    return PodPlacement(row, shape, 1, tuple(before.names[device] for device in taken))


def _effort(use: DeviceUse) -> tuple[int, int, str, str]:
    """Sort key: few holders of small shares first."""
    capacity = use.device.capacity.vram_bytes if use.device.capacity is not None else 0
    return (len(use.holders), capacity - use.left.vram_bytes, use.device.node, use.device.name)


def _size(entry: tuple[PodShape, Pod]) -> tuple[int, int, str]:
    shape, pod = entry
    share = shape.devices.share if shape.devices is not None else None
    return (share.vram_bytes if share else 0, dict(shape.requests).get("cpu", 0), pod.name)
