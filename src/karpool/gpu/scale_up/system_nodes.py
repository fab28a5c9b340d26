"""Computes what a new node brings under the system that allocates its devices, in that system's units.

A card of HAMi, Volcano, KAI or TensorFusion is one device that pods share. With MIG the device is the slice,
with time slicing the time slice. How many of them a card has is a configuration of the node, given by the
labels of its NodePool or by existing nodes of the same pool. Without either, the pool is refused with the
label that would tell it. Pure.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.node_bins import DeviceRoom, fresh_bin
from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.device import POOL_LABEL
from karpool.model.devices.gpu_models import GpuModel, find_model
from karpool.model.devices.inventory import HAMI, MIB, VOLCANO, inventory_of
from karpool.model.devices.node_devices import NodeYield, type_yield
from karpool.model.devices.systems import HANDED_OUT_BY, TIME_SLICES_RESOURCE, GpuSystem
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.resources import GPU
from karpool.packing.dra.driver_templates import NEW_NODE, DriverTemplates, node_to_come
from karpool.packing.dra.pod_claims import DraNode, DraState, demand_of_shape, place_pod

# HAMi and Volcano share a card between at most this many pods by default (deviceSplitCount).
SHARERS_DEFAULT = 10
MIG_CONFIG = "nvidia.com/mig.config"
REPLICAS = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
_HAMI_NODES = ("gpu", "on")  # the label by which HAMi's device plugin selects its nodes
_KAI_POOL = "kai.scheduler/node-pool"
# Systems whose pools are recognised by the labels that say how cards are cut.
_CUT_BY_LABEL = (GpuSystem.MIG, GpuSystem.TIME_SLICES)
# If the memory of a model is unknown, percentages of it still work; no request in bytes fits into this.
_HUNDRED_PERCENT = 100_000
_REPLICAS_MAX = 128


@dataclass(frozen=True, slots=True)
class ShownNode:
    """What live nodes of one pool and type show: units of resources, and how many pods may share a card."""

    offered: Mapping[str, int] = field(default_factory=dict)
    sharers: int = 0

    def least(self, other: "ShownNode") -> "ShownNode":
        """The minimum of both."""
        offered = {
            name: min(units, other.offered[name])
            for name, units in self.offered.items()
            if name in other.offered
        }
        return ShownNode(offered, min(self.sharers, other.sharers) or max(self.sharers, other.sharers))


@dataclass
class SystemNodes:
    """Facts about future nodes: live ones by pool and instance type, and what drivers publish."""

    shown: Mapping[tuple[str, str], ShownNode] = field(default_factory=dict)
    templates: DriverTemplates = field(default_factory=DriverTemplates)
    drivers: DraState | None = None

    def brings(self, item: WaitingWorker, pool: CompiledPool, type_: InstanceType) -> NodeYield | str:
        """The yield in units of the item's system, or why it is unknown."""
        cards = type_yield(type_, GPU)
        shown = self.shown.get((pool.name, type_.name), ShownNode())
        match item.system:
            case GpuSystem.DRA:
                state = self.state_on(pool, type_)
                slices = state.stock.slices.local(NEW_NODE) if state is not None else ()
                devices = sum(len(slice_.devices) for slice_ in slices)
                return replace(cards, devices=devices) if devices else f"no device of {type_.name} is known"
            case GpuSystem.MIG:
                return _mig(item.request.template, pool, type_, cards, shown)
            case GpuSystem.TIME_SLICES:
                return _time_slices(pool, cards, shown)
            case GpuSystem.HAMI | GpuSystem.VOLCANO:
                return replace(_in_percent(cards), sharers=shown.sharers or SHARERS_DEFAULT)
        return _in_percent(cards)

    def state_on(self, pool: CompiledPool, type_: InstanceType) -> DraState | None:
        """What claims would find on such a node, on its own devices only: devices that several nodes share
        may be taken by the next node, and would be counted on each.
        """
        if self.drivers is None:
            return None
        return self.templates.state_on(self.drivers, node_to_come(pool, type_))

    def refusal(self, item: WaitingWorker, pool: CompiledPool, type_: InstanceType) -> str:
        """Why an empty node of this pool and type would not fit the item; empty if it would."""
        units = self.brings(item, pool, type_)
        if isinstance(units, str):
            return units
        state = self.state_on(pool, type_) if item.system is GpuSystem.DRA else None
        if fresh_bin("", units, admits, drivers=state).put(item):
            return ""
        why = f": {_why_not(state, item)}" if state is not None else ""
        return f"an empty {type_.name} does not hold it{why}"


def _why_not(state: DraState, item: WaitingWorker) -> str:
    """The allocator's reason for the claims: a selector that does not compile, or what is missing."""
    return place_pod(state, demand_of_shape(state, item.shape), DraNode(NEW_NODE, {}, {})).outcome.reason


def admits(item: WaitingWorker, room: DeviceRoom) -> bool:
    """Whether the device may serve the item at all; the NodePool determines the pool of devices."""
    if item.system is GpuSystem.DRA:
        return True
    if item.models and not any(name.lower() in room.kind.model.lower() for name in item.models):
        return False
    return room.kind.admits(replace(item.demand, pool=""))


def refused_pool(item: WaitingWorker, pool: CompiledPool, pools: Collection[CompiledPool]) -> str:
    """Why nodes of a pool, one of `pools`, are not for the system of this item; empty if they are."""
    system, labels = item.system, pool.labels
    owner = labels.get(HANDED_OUT_BY, "")
    if owner:
        return "" if owner == system else f"its devices are allocated by {owner} ({HANDED_OUT_BY})"
    if item.request.pool:
        gpu_pool = labels.get(POOL_LABEL) or pool.name
        return "" if gpu_pool == item.request.pool else f"it belongs to GPU pool {gpu_pool}"
    if POOL_LABEL in labels:
        return f"it belongs to GPU pool {labels[POOL_LABEL]}"
    if system is GpuSystem.HAMI and _is_for_hami(pool):
        return ""
    if system is GpuSystem.HAMI and any(_is_for_hami(other) for other in pools):
        return "HAMi works on nodes labelled gpu=on"
    wanted_pool = dict(item.shape.labels).get(_KAI_POOL, "") if system is GpuSystem.KAI else ""
    if wanted_pool:
        return "" if labels.get(_KAI_POOL) == wanted_pool else f"it is not KAI's node pool {wanted_pool}"
    if system not in _CUT_BY_LABEL and any(other.labels.get(HANDED_OUT_BY) == system for other in pools):
        return f"it does not say whose its devices are, and others are labelled {HANDED_OUT_BY}: {system}"
    return ""


def _is_for_hami(pool: CompiledPool) -> bool:
    return pool.labels.get(_HAMI_NODES[0]) == _HAMI_NODES[1]


def shown_by(
    offered: Mapping[str, int], labels: Mapping[str, str], registers: Mapping[str, str]
) -> ShownNode:
    groups = inventory_of(labels, registers, offered).groups
    sharers = [group.sharers_max or 0 for group in groups if group.handed_out_by in (HAMI, VOLCANO)]
    return ShownNode(offered, min(sharers, default=0))


def _mig(
    profile: str, pool: CompiledPool, type_: InstanceType, cards: NodeYield, shown: ShownNode
) -> NodeYield | str:
    resource = f"nvidia.com/mig-{profile}"
    model = find_model(type_.gpu.model, cards.vram_bytes // MIB) if type_.gpu is not None else None
    cut = _cut(model, profile)
    if cut is None:
        return f"{type_.name} has no profile {profile}"
    memory, per_card, share = cut
    config = pool.labels.get(MIG_CONFIG, "")
    if (units := shown.offered.get(resource, 0)) <= 0:
        if config not in (f"all-{profile}", f"all-{profile.replace('+', '.')}"):
            told = f"is {config}" if config else "is not set"
            return f"{MIG_CONFIG} {told}; label the template all-{profile}"
        units = cards.devices * per_card
    return replace(
        cards, devices=units, vram_bytes=memory * MIB, tflops_milli=int(cards.tflops_milli * share)
    )


def _cut(model: GpuModel | None, name: str) -> tuple[int, int, float] | None:
    """MiB of a slice, slices of a card, and its share of the compute. A `.` may replace the `+` of a name."""
    profiles = model.profiles if model is not None else ()
    for profile in profiles:
        if name in (profile.name, profile.name.replace("+", ".")) and model is not None:
            return profile.memory_mib or 0, profile.max_instances, model.compute_share(profile)
    return None


def _time_slices(pool: CompiledPool, cards: NodeYield, shown: ShownNode) -> NodeYield | str:
    units = shown.offered.get(TIME_SLICES_RESOURCE, 0)
    if units <= 0:
        text = next((pool.labels[key] for key in REPLICAS if key in pool.labels), "")
        if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= _REPLICAS_MAX:
            return f"the number of shares per GPU is unknown; label the template {REPLICAS[0]}"
        units = cards.devices * int(text)
    return replace(cards, devices=units)


def _in_percent(cards: NodeYield) -> NodeYield:
    return cards if cards.vram_bytes else replace(cards, vram_bytes=_HUNDRED_PERCENT)
