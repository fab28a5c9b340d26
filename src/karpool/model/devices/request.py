"""What a worker pod requests from the allocator, in any dialect.

There is one value for all dialects: annotations, whole devices, time slices, MIG profiles. All later steps
(filters, ledger, quota, demand) use only this.
"""

from dataclasses import dataclass, field

from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.isolation import SOFT
from karpool.model.requirements import NodeTerm

COUNT_MAX = 128


@dataclass(frozen=True, slots=True)
class PreferredTerm:
    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class Gang:
    """Members that start together or not at all. `timeout_seconds` 0 waits without limit."""

    group: str
    min_members: int
    desired_members: int
    required_members: int
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """`request` and `limit` are per device; `count` devices, all on one node.

    `resource` names the Kubernetes resource of devices that a device plugin allocates (`nvidia.com/gpu`,
    `nvidia.com/mig-1g.5gb`); it is empty for our own devices. `cpu_milli` and `memory_bytes` are what the pod
    itself needs of the node.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    workload: str = ""
    pool: str = ""
    request: DeviceShare = field(default_factory=DeviceShare)
    limit: DeviceShare = field(default_factory=DeviceShare)
    count: int = 1
    indices: tuple[int, ...] = ()
    model: str = ""
    vendor: str = ""
    isolation: str = SOFT
    template: str = ""
    qos: str = "medium"
    resource: str = ""
    node_terms: tuple[NodeTerm, ...] | None = None
    preferred: tuple[PreferredTerm, ...] = ()
    priority: int = 0
    gang: Gang | None = None
    cpu_milli: int = 0
    memory_bytes: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name or self.uid

    @property
    def is_of_plugin(self) -> bool:
        """Whether it requests whole units of a device plugin, which any scheduler may allocate."""
        return bool(self.resource) and not (self.request.vram_bytes or self.request.vram_percent_milli)

    @property
    def wanted(self) -> str:
        """The request in words, without its owner."""
        devices = "one GPU" if self.count == 1 else f"{self.count} GPUs"
        model = f" {self.model}" if self.model else ""
        return f"{devices}{model} with {self.request}"

    @property
    def demand(self) -> "DeviceDemand":
        """The demand for the packing kernel."""
        return DeviceDemand(
            self.count,
            self.request,
            self.isolation,
            self.template,
            self.pool,
            self.model,
            self.vendor,
            self.indices,
        )

    def __str__(self) -> str:
        return f"{self.key}: {self.wanted} in pool {self.pool or '(none)'}"


UNREADABLE = "GPUs in a way that cannot be understood"


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """What every pod of a shape requests of devices: `count` of them on one node, `share` of each.

    Whole devices of a plugin are not included: they are requests, like CPU. `is_readable` is False for a pod
    whose device request cannot be read: it fits nowhere, and what it uses is unknown.
    """

    count: int = 1
    share: DeviceShare = field(default_factory=DeviceShare)
    isolation: str = SOFT
    template: str = ""
    pool: str = ""  # empty: any; also for the fields below
    model: str = ""
    vendor: str = ""
    indices: tuple[int, ...] = ()
    is_readable: bool = True
    problem: str = ""  # why it cannot be read

    def __str__(self) -> str:
        if not self.is_readable:
            why = f": {self.problem}" if self.problem else ""
            return f"{UNREADABLE}{why}"
        devices = "one GPU" if self.count == 1 else f"{self.count} GPUs"
        model = f" {self.model}" if self.model else ""
        return f"{devices}{model} with {self.share}" + (f" in pool {self.pool}" if self.pool else "")


UNREADABLE_DEMAND = DeviceDemand(is_readable=False)
