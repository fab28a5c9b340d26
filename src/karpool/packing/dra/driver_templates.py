"""The devices that drivers would publish on a node that does not exist yet.

Sources, best first: the slices of a live node of the same pool and instance type, of a live node of the same
type in any pool, the type's entry in a file, and the catalogue's GPU model written the way NVIDIA's driver
writes it. A type that none of these names is unknown, and claims do not fit an unknown type. Devices that
several nodes share are not part of a template; they are read from the live slices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.gpu_models import GpuModel, find_model
from karpool.model.devices.inventory import MIB
from karpool.model.devices.node_devices import type_yield
from karpool.model.dra.device import (
    AttributeValue,
    DeviceId,
    DeviceSlice,
    DraCapacity,
    DraDevice,
    NodePlace,
)
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.resources import GPU
from karpool.packing.dra.pod_claims import DraState
from karpool.packing.dra.pools import BadPlace, DevicePool, NodeView
from karpool.packing.dra.stock import stock_of

NEW_NODE = "new-node"
NVIDIA_DRIVER = "gpu.nvidia.com"
_NANOS = 10**9


@dataclass(frozen=True, slots=True)
class NodeToCome:
    """A node to launch: pool, instance type, labels, and its GPUs from the catalogue."""

    pool: str
    instance_type: str
    labels: Mapping[str, str]
    gpus: int = 0
    product: str = ""
    memory_bytes: int = 0


class DriverTemplates:
    """Remembers what nodes published, even after the nodes are gone."""

    def __init__(self, of_types: Mapping[str, Sequence[DeviceSlice]] | None = None) -> None:
        """`of_types` are slices from a file, by instance type."""
        self._of_types = dict(of_types or {})
        self._published: dict[tuple[str, str], tuple[DeviceSlice, ...]] = {}  # by pool (or empty) and type
        self._states: dict[tuple[str, str], tuple[DraState, DraState | None]] = {}

    def learn(self, state: DraState, nodes: Iterable[tuple[str, Mapping[str, str], str, str]]) -> None:
        """Learn from live nodes: name, labels, pool and instance type. Only complete pools are used."""
        index = state.stock.slices
        for name, labels, pool, instance_type in nodes:
            if not index.local(name) or not instance_type:
                continue
            try:
                pools = index.pools_of(NodeView(name, labels))
            except BadPlace:
                continue
            whole = [slice_ for pool_ in pools if pool_.is_usable for slice_ in _of_node(pool_, name)]
            if whole:
                template = tuple(_moved(slice_, name) for slice_ in whole)
                for key in ((pool, instance_type), ("", instance_type)):
                    if self._published.get(key) != template:
                        self._published[key] = template
                        self._states.clear()

    def state_on(self, live: DraState, node: NodeToCome) -> DraState | None:
        """Return the devices that claims would find on the node, without shared ones; None: unknown."""
        key = (node.pool, node.instance_type)
        answer = self._states.get(key)
        if answer is None or answer[0] is not live:
            answer = self._states[key] = live, self._built(live, node)
        return answer[1]

    def state_on_all(self, live: DraState, nodes: Mapping[str, NodeToCome]) -> DraState:
        """Return the same for several nodes, by name; a node of an unknown type has no devices."""
        slices = [
            _moved(slice_, NEW_NODE, name) for name, node in nodes.items() for slice_ in self._slices(node)
        ]
        return replace(live, stock=stock_of(slices, list(live.stock.classes.values()), live.stock.features))

    def _built(self, live: DraState, node: NodeToCome) -> DraState | None:
        slices = self._slices(node)
        if not slices:
            return None
        stock = stock_of(slices, list(live.stock.classes.values()), live.stock.features)
        return replace(live, stock=stock)

    def _slices(self, node: NodeToCome) -> tuple[DeviceSlice, ...]:
        for pool in (node.pool, ""):
            if (published := self._published.get((pool, node.instance_type))) is not None:
                return published
        if node.instance_type in self._of_types:
            return tuple(_moved(slice_, "") for slice_ in self._of_types[node.instance_type])
        return (nvidia_slice(node),) if node.gpus else ()


def node_to_come(pool: CompiledPool, instance_type: InstanceType) -> NodeToCome:
    """Return a node of a pool, with the catalogue's data about its GPUs."""
    cards, gpu = type_yield(instance_type, GPU), instance_type.gpu
    model = find_model(gpu.model, cards.vram_bytes // MIB) if gpu is not None else None
    product = _product(model)
    return NodeToCome(pool.name, instance_type.name, pool.labels, cards.devices, product, cards.vram_bytes)


def _product(model: GpuModel | None) -> str:
    """Return the product name as the driver writes it; empty if the label (dashes for spaces) is unclear."""
    aliases = model.aliases if model is not None and model.vendor == "NVIDIA" else ()
    plain = (alias for alias in aliases if alias.startswith(("NVIDIA-", "Tesla-")) and alias.count("-") == 1)
    return next(plain, "").replace("-", " ")


def published_devices(state: DraState, node: str, labels: Mapping[str, str]) -> int:
    """Return the number of devices of this node alone, in complete pools."""
    try:
        pools = state.stock.slices.pools_of(NodeView(node, labels))
    except BadPlace:
        return 0
    slices = (slice_ for pool in pools if pool.is_usable for slice_ in _of_node(pool, node))
    return sum(len(slice_.devices) for slice_ in slices)


def nvidia_slice(node: NodeToCome) -> DeviceSlice:
    """Return a slice of plain GPUs as NVIDIA's driver writes it.

    Attributes that only the machine knows (UUIDs, versions) are left out; a selector that reads one fails
    with a message.
    """
    attributes = (
        ("type", AttributeValue("string", ("gpu",))),
        *((("productName", AttributeValue("string", (node.product,))),) if node.product else ()),
    )
    memory = (("memory", DraCapacity(node.memory_bytes * _NANOS)),) if node.memory_bytes else ()
    devices = tuple(
        DraDevice(DeviceId(NVIDIA_DRIVER, NEW_NODE, f"gpu-{index}"), attributes, memory)
        for index in range(node.gpus)
    )
    return DeviceSlice(
        f"{NEW_NODE}-{NVIDIA_DRIVER}", NVIDIA_DRIVER, NEW_NODE, 1, 1, NodePlace(NEW_NODE), devices=devices
    )


def _of_node(pool: DevicePool, node: str) -> tuple[DeviceSlice, ...]:
    """Return the slices of a pool that belongs to this node alone; none for a shared pool."""
    is_local = all(
        slice_.counter_sets or (slice_.place is not None and slice_.place.node == node)
        for slice_ in (*pool.slices, *pool.elsewhere)
    )
    return pool.slices if is_local else ()


def _moved(slice_: DeviceSlice, node: str, to: str = NEW_NODE) -> DeviceSlice:
    """Return the slice as the new node would publish it: pools are named after their node."""
    pool = to if not node else slice_.pool.replace(node, to)
    return replace(
        slice_,
        name=f"{to}-{slice_.name}",
        pool=pool,
        generation=1,
        place=NodePlace(to),
        devices=tuple(
            replace(
                device,
                id=replace(device.id, pool=pool),
                # Taints of that machine say nothing about the next one.
                taints=(),
                place=NodePlace(to) if slice_.per_device else device.place,
            )
            for device in slice_.devices
        ),
    )
