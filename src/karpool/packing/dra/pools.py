"""The device pools that a node sees: complete, valid, in the order in which devices are tried.

Only the newest generation that the node sees counts. A pool with missing slices, or with a newer generation
elsewhere, offers no devices; neither does a pool that contradicts itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from karpool.model.dra.device import Counters, DeviceSlice, DraDevice, NodePlace, PoolKey
from karpool.model.kubernetes.meta import Labels
from karpool.packing.dra.features import DEFAULT_FEATURES, DraFeatures
from karpool.packing.dra.held import AllocatedState


class BadPlace(Exception):
    """The node selector of a slice or a device cannot be read; the text names it."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """The fields of a node that decide which devices it sees."""

    name: str
    labels: Labels


@dataclass(frozen=True, eq=False)
class DevicePool:
    """A pool; `incomplete` or `invalid` says what is wrong, and such a pool offers no devices."""

    key: PoolKey
    slices: tuple[DeviceSlice, ...] = ()
    elsewhere: tuple[DeviceSlice, ...] = ()  # of the same generation, not visible to the node
    counters: Counters | None = None
    incomplete: bool = False
    invalid: str = ""

    @property
    def is_usable(self) -> bool:
        return not self.incomplete and not self.invalid

    @cached_property
    def candidates(self) -> tuple[tuple[DraDevice, DeviceSlice], ...]:
        return tuple((device, slice_) for slice_ in self.slices for device in slice_.devices)

    def counters_left(self, held: AllocatedState) -> dict[tuple[str, str], int]:
        """Return what is left by counter set and counter; negative if overcommitted."""
        left = {
            (name, counter): amount
            for name, counters in (self.counters or {}).items()
            for counter, amount in counters.items()
        }
        for slice_ in (*self.slices, *self.elsewhere):
            for device in slice_.devices:
                if device.counters and device.id in held:
                    for use in device.counters:
                        for counter, amount in use.counters:
                            if (use.counter_set, counter) in left:
                                left[use.counter_set, counter] -= amount
        return left


class SliceIndex:
    """All slices of a cluster, by the node or the pool that they belong to."""

    def __init__(self, slices: Iterable[DeviceSlice], features: DraFeatures = DEFAULT_FEATURES) -> None:
        self.features = features
        self._on_node: dict[str, list[DeviceSlice]] = defaultdict(list)
        self._shared: list[DeviceSlice] = []
        self._of_pool: dict[PoolKey, list[DeviceSlice]] = defaultdict(list)
        for slice_ in slices:
            self._of_pool[slice_.driver, slice_.pool].append(slice_)
            node = slice_.place.node if slice_.place is not None else None
            if node and not slice_.counter_sets:
                self._on_node[node].append(slice_)
            else:
                self._shared.append(slice_)

    @property
    def is_empty(self) -> bool:
        return not self._of_pool

    @cached_property
    def reaches_beyond_nodes(self) -> bool:
        """Whether some device can be used from several nodes, so that nodes cannot be counted one by one."""
        return any(
            not slice_.counter_sets and (slice_.place is None or not slice_.place.node)
            for slice_ in self._shared
        ) or any(len(self._of_pool[key]) > 1 and self._spans_nodes(key) for key in self._counter_pools)

    @cached_property
    def shared_devices(self) -> tuple[DraDevice, ...] | None:
        """Return the devices that several nodes can use, or whose counters concern other nodes.

        None if it is unknown which nodes these are.
        """
        if any(slice_.place is not None and slice_.place.unreadable for slice_ in self._shared):
            return None
        spanning = [key for key in self._counter_pools if self._spans_nodes(key)]
        slices = (*self._shared, *(slice_ for key in spanning for slice_ in self._of_pool[key]))
        return tuple(device for slice_ in slices for device in slice_.devices)

    @cached_property
    def _counter_pools(self) -> set[PoolKey]:
        return {(slice_.driver, slice_.pool) for slice_ in self._shared if slice_.counter_sets}

    def _spans_nodes(self, key: PoolKey) -> bool:
        nodes = {
            slice_.place.node if slice_.place is not None else None
            for slice_ in self._of_pool[key]
            if slice_.devices
        }
        return len(nodes) > 1

    @property
    def nodes(self) -> Iterable[str]:
        """The nodes that have devices of their own."""
        return self._on_node.keys()

    def local(self, node: str) -> Sequence[DeviceSlice]:
        """Return the slices with devices of this node alone."""
        return self._on_node.get(node, ())

    @property
    def shared(self) -> Sequence[DeviceSlice]:
        return self._shared

    def pools_of(self, node: NodeView) -> tuple[DevicePool, ...]:
        """Return the pools in the order in which they are tried. Raises BadPlace."""
        visible: dict[PoolKey, list[DeviceSlice]] = {}
        for slice_ in (*self.local(node.name), *self._shared):
            if self._is_visible(slice_, node):
                _add_newest(visible, slice_)
        plain: list[DevicePool] = []
        binding: list[DevicePool] = []
        for key, slices in visible.items():
            pool = self._pool(key, slices)
            if pool is not None:
                has_conditions = any(device.binding_conditions is not None for device, _ in pool.candidates)
                (binding if has_conditions else plain).append(pool)
        return (*sorted(plain, key=lambda pool: pool.key), *sorted(binding, key=lambda pool: pool.key))

    def _is_visible(self, slice_: DeviceSlice, node: NodeView) -> bool:
        if not self.features.partitionable_devices and (slice_.per_device or slice_.counter_sets):
            return False
        if slice_.counter_sets:
            return True
        if slice_.place is not None:
            return serves(slice_.place, node, f"slice {slice_.name}")
        return slice_.per_device and any(
            device.place is not None and serves(device.place, node, f"device {device.id}")
            for device in slice_.devices
        )

    def _pool(self, key: PoolKey, slices: list[DeviceSlice]) -> DevicePool | None:
        announced, generation = slices[0].pool_slices, slices[0].generation
        if len(slices) == announced:
            return self._built(key, slices, ())
        everywhere = self._of_pool[key]
        if any(slice_.generation > generation for slice_ in everywhere):
            return None  # a newer generation replaces it: what the node sees is out of date
        whole = [slice_ for slice_ in everywhere if slice_.generation == generation]
        if len(whole) != announced:
            return DevicePool(key, incomplete=True)
        seen = {slice_.name for slice_ in slices}
        return self._built(key, slices, tuple(slice_ for slice_ in whole if slice_.name not in seen))

    def _built(
        self, key: PoolKey, slices: list[DeviceSlice], elsewhere: tuple[DeviceSlice, ...]
    ) -> DevicePool:
        ordered = tuple(sorted(slices, key=lambda slice_: slice_.name))
        partitions = self.features.partitionable_devices
        with_devices = tuple(slice_ for slice_ in ordered if not (partitions and slice_.counter_sets))
        if twice := _first_twice(device.id.device for slice_ in with_devices for device in slice_.devices):
            return DevicePool(key, invalid=f"duplicate device name {twice}")
        if not partitions:
            return DevicePool(key, with_devices)
        sets = [entry for slice_ in ordered for entry in slice_.counter_sets]
        if twice := _first_twice(name for name, _ in sets):
            return DevicePool(key, invalid=f"duplicate counter set name {twice}")
        counters = {name: dict(amounts) for name, amounts in sets}
        for slice_ in (*ordered, *elsewhere):
            if problem := _missing_counter(slice_, counters):
                return DevicePool(key, invalid=problem)
        return DevicePool(key, with_devices, elsewhere, counters)


def serves(place: NodePlace, node: NodeView, what: str) -> bool:
    if place.unreadable and not place.node and not place.all_nodes:
        raise BadPlace(f"{what}: its node selector cannot be parsed")
    return place.serves(node.name, node.labels)


def _add_newest(pools: dict[PoolKey, list[DeviceSlice]], slice_: DeviceSlice) -> None:
    slices = pools.setdefault((slice_.driver, slice_.pool), [])
    if slices and slice_.generation > slices[0].generation:
        slices.clear()
    if not slices or slice_.generation == slices[0].generation:
        slices.append(slice_)


def _first_twice(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _missing_counter(slice_: DeviceSlice, counters: Mapping[str, Mapping[str, int]]) -> str:
    for device in slice_.devices:
        for use in device.counters:
            if use.counter_set not in counters:
                return f"device {device.id.device}: counter set {use.counter_set} not found"
            for counter, _ in use.counters:
                if counter not in counters[use.counter_set]:
                    return f"device {device.id.device}: counter {counter} not found in set {use.counter_set}"
    return ""
