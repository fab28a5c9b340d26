"""Groups pending worker pods that failed for lack of capacity by what would help them.

Items that the same node would serve in the same way share a `DemandKey`: pool, model and shape. Nodes are
requested per key; `sizing` computes how many. Pure.
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
    """One pending worker. `constraints` is a digest of where it may run and what it tolerates; `shape` is its
    shape for the packing kernel; `system` allocates its devices, Karpool does if there is none.
    """

    request: GpuRequest
    created: float
    constraints: str = ""
    shape: PodShape = field(default_factory=PodShape)
    system: GpuSystem | None = None
    enforcer: GpuSystem | None = None  # for our own pods: the system that would enforce its share
    unenforced: str = ""  # why no system would
    containers: tuple[int, int] = (0, 1)  # which container requests devices, of how many
    models: tuple[str, ...] = ()  # parts of model names, one of which must match; empty: any
    demand: DeviceDemand = field(init=False, compare=False, repr=False)  # cached, because it is read often

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
        """The group that it starts with; a single pod is its own group."""
        return self.request.gang.group if self.request.gang else f"uid/{self.uid}"

    @property
    def rank(self) -> tuple[int, float, str]:
        """The order of service: higher priority first, then longer waiting time."""
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
    """One candidate of a ladder, with its yield."""

    candidate: NodeCandidate
    brings: NodeYield
    drivers: DraState | None = field(default=None, compare=False)  # what drivers would publish there
    key: str = field(init=False)  # of the candidate; cached, because it is read often

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.candidate.key)

    def __str__(self) -> str:
        return str(self.candidate)


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """All pending items under one key, and the candidates in the order to try."""

    key: DemandKey
    items: tuple[WaitingWorker, ...]
    ladder: tuple[ScaleUpCandidate, ...]

    @property
    def name(self) -> str:
        return self.key.name

    def rung(self, key: str) -> ScaleUpCandidate | None:
        return next((rung for rung in self.ladder if rung.key == key), None)


def by_key(items: Iterable[WaitingWorker]) -> dict[DemandKey, tuple[WaitingWorker, ...]]:
    """Group the items; each group is in the order of service."""
    groups: dict[DemandKey, list[WaitingWorker]] = {}
    for item in sorted(items, key=lambda worker: worker.rank):
        groups.setdefault(key_of(item), []).append(item)
    return {key: tuple(group) for key, group in groups.items()}


def size(item: WaitingWorker) -> tuple[int, int, int]:
    """Sort key, largest first: devices per pod, then video memory, then compute."""
    share = item.request.request
    return (
        item.request.count,
        share.vram_bytes or share.vram_percent_milli * GIB,
        share.tflops_milli or share.percent_milli,
    )
