"""What waits: worker pods whose allocation failed for lack of room, grouped by what would help them.

Items that the same node would serve in the same way share a `DemandKey`: pool, model
and shape. A key is the unit of asking; how many nodes it needs is in `quantity`. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from karpool.gpu.records.demand_key import ANY_MODEL, DemandKey
from karpool.model.devices.amounts import whole_tflops
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.request import DeviceDemand, GpuRequest
from karpool.model.devices.systems import GpuSystem
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.taints import Toleration
from karpool.packing.dra.pod_claims import DraState
from karpool.provisioning.node_request import NodeCandidate

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class WaitingWorker:
    """One waiting worker. `constraints` is a digest of where it may run and what it tolerates; `shape` is
    what the packing kernel is asked; `system` gives it its devices, we do where there is none."""

    request: GpuRequest
    created: float
    constraints: str = ""
    shape: PodShape = field(default_factory=PodShape)
    system: GpuSystem | None = None
    enforcer: GpuSystem | None = None  # of our own pods: who would make its share real
    unenforced: str = ""  # why nobody would
    containers: tuple[int, int] = (0, 1)  # which one asks for devices, of how many
    models: tuple[str, ...] = ()  # parts of names of which one must be the device's; none: any
    demand: DeviceDemand = field(init=False, compare=False, repr=False)  # it is asked for all the time

    def __post_init__(self) -> None:
        object.__setattr__(self, "demand", self.request.demand)

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        return self.shape.tolerations

    @property
    def uid(self) -> str:
        return self.request.uid

    @property
    def gang(self) -> str:
        """The group it starts with; a pod alone is its own group."""
        return self.request.gang.group if self.request.gang else f"uid/{self.uid}"

    @property
    def rank(self) -> tuple[int, float, str]:
        """Who is served first: higher priority, then who has waited longer."""
        return (-self.request.priority, self.created, self.uid)


def key_of(item: WaitingWorker) -> DemandKey:
    request = item.request
    share = request.request
    return DemandKey(
        pool=request.pool or item.system or "",  # every record has one
        model=request.model or ANY_MODEL,
        gpus=request.count,
        vram_gib=-(-share.vram_bytes // GIB),
        tflops=whole_tflops(share.tflops_milli),
        percent_milli=share.percent_milli,
        vram_percent_milli=share.vram_percent_milli,
        isolation=request.isolation,
        template=request.template,
        vendor=request.vendor,
        constraints=item.constraints,
        system=item.system or "",
    )


@dataclass(frozen=True, slots=True)
class ScaleUpCandidate:
    """One candidate of a ladder, with what it would bring."""

    candidate: NodeCandidate
    brings: NodeYield
    drivers: DraState | None = field(default=None, compare=False)  # what drivers would publish there
    key: str = field(init=False)  # of the candidate; it is asked for all the time

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.candidate.key)

    def __str__(self) -> str:
        return str(self.candidate)


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """All that waits under one key, and what could help it, in the order in which to try."""

    key: DemandKey
    items: tuple[WaitingWorker, ...]
    ladder: tuple[ScaleUpCandidate, ...]

    @property
    def name(self) -> str:
        return self.key.name

    def rung(self, key: str) -> ScaleUpCandidate | None:
        return next((rung for rung in self.ladder if rung.key == key), None)


def by_key(items: Iterable[WaitingWorker]) -> dict[DemandKey, tuple[WaitingWorker, ...]]:
    """Grouped, each group in the order in which it is served."""
    groups: dict[DemandKey, list[WaitingWorker]] = {}
    for item in sorted(items, key=lambda worker: worker.rank):
        groups.setdefault(key_of(item), []).append(item)
    return {key: tuple(group) for key, group in groups.items()}


def size(item: WaitingWorker) -> tuple[int, int, int]:
    """Big ones first: devices per pod, then video memory, then compute."""
    share = item.request.request
    return (
        item.request.count,
        share.vram_bytes or share.vram_percent_milli * GIB,
        share.tflops_milli or share.percent_milli,
    )
