"""Fleet files: which embedded clusters to start, and their faults.

YAML, checked as a whole before anything starts. Each error is one line with the file, the line number, the
field, the value and what would be right; unknown fields are refused, because a typo must not become a
default.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from karpool.model import durations
from karpool.model.errors import Invalid
from karpool_fleet.cloud.delays import Delay, parse_delay
from karpool_fleet.clusters.strict_file import API_VERSION, parse, read_bytes

CLUSTERS_MAX = 100
NODES_MAX = 20_000
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


class _Part(msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StaticNodes(_Part, frozen=True):
    """Machines that exist from the start and belong to no pool."""

    type: str
    count: int = 1
    zone: str = ""  # "": all zones in turn
    capacity_type: str = "on-demand"
    labels: dict[str, str] = {}
    taints: list[dict[str, str]] = []


class NodeGroupSpec(_Part, frozen=True):
    """A node group of cluster-autoscaler."""

    name: str
    type: str
    min: int = 0
    max: int = 10
    zones: list[str] = []
    capacity_type: str = "on-demand"
    labels: dict[str, str] = {}
    taints: list[dict[str, str]] = []


class TimingSpec(_Part, frozen=True):
    """Delays such as `3s`, `uniform(1s, 5s)`, `lognormal(30s, 0.4)`; others have their defaults."""

    launch: str | None = None
    terminate: str | None = None
    register: str | None = None
    ready: str | None = None
    devices: str | None = None
    pull: str | None = None
    start: str | None = None
    readiness: str | None = None
    stop: str | None = None

    def delays(self) -> dict[str, Delay]:
        """Parse the delays. Raises Invalid naming the field."""
        delays: dict[str, Delay] = {}
        for name in self.__struct_fields__:
            text = getattr(self, name)
            if text is not None:
                try:
                    delays[name] = parse_delay(text)
                except Invalid as error:
                    raise error.at(name) from None
        return delays


class ClusterSpec(_Part, frozen=True):
    name: str
    region: str = "us-east-1"
    zones: list[str] = []  # of the region; empty: the first three
    autoscaler: str = "karpenter"  # karpenter, cluster-autoscaler or none
    consolidation: bool = False  # that of Karpenter
    preemption: bool = True
    timing: TimingSpec = TimingSpec()
    nodes: list[StaticNodes] = []
    node_groups: list[NodeGroupSpec] = []  # with cluster-autoscaler
    objects: list[dict[str, Any]] = []  # NodePools, workloads, or any kind that the server has
    files: list[str] = []  # manifests, relative to the fleet file
    snapshot: str = ""  # initial state: a file of `karpool snapshot` or `karpool record`


class StockOutFault(_Part, frozen=True):
    type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"
    left: int = 0


class Requests(_Part, frozen=True):
    """Selects requests of a component; all by default."""

    component: str = "*"
    method: str = ""  # "WRITE" is every method that changes something
    path: str = ""  # a regular expression
    times: int | None = None


class ApiErrors(Requests, frozen=True):
    status: int = 500  # 0: no answer at all
    retry_after: float | None = None


class ApiDelay(Requests, frozen=True):
    seconds: float = 1.0


class Watches(_Part, frozen=True):
    component: str = "*"
    path: str = ""
    seconds: float = 0.0  # for late events and stale reads
    expired: bool = False  # for cut watches: end with a 410


class CrashAtWrite(_Part, frozen=True):
    component: str
    number: int = 1
    when: str = "before"


class SlowDevices(_Part, frozen=True):
    machines: int = 1
    seconds: float = 600.0


class FaultSpec(_Part, frozen=True):
    """One fault and its time; exactly one of the kinds is given.

    Without `lasts` it does not end; a crashed component is then not started again.
    """

    cluster: str
    at: str = "0s"
    lasts: str | None = None
    stock_out: StockOutFault | None = None
    zone_outage: str | None = None
    interrupt_spot: int | None = None  # number of spot machines
    bad_boots: int | None = None  # machines that never become ready
    slow_devices: SlowDevices | None = None
    api_errors: ApiErrors | None = None
    api_delay: ApiDelay | None = None
    api_hang: Requests | None = None
    lose_answers: Requests | None = None  # of writes, if no method is named
    cut_watches: Watches | None = None
    lose_events: Watches | None = None
    repeat_events: Watches | None = None
    late_events: Watches | None = None
    stale_reads: Watches | None = None
    crash: str | None = None
    crash_at_write: CrashAtWrite | None = None
    pause: str | None = None
    clock_jump: str | None = None  # a duration; may be negative

    @property
    def kinds(self) -> list[str]:
        about = ("cluster", "at", "lasts")
        return [
            name for name in self.__struct_fields__ if name not in about and getattr(self, name) is not None
        ]

    @property
    def component(self) -> str:
        """Return the component that this fault needs; "" if it needs none."""
        named = self.crash or self.pause or (self.crash_at_write.component if self.crash_at_write else "")
        return named or ""


class KarmadaSpec(_Part, frozen=True):
    name: str = "karmada"
    members: list[str] = []  # empty: every cluster


class FleetFile(_Part, frozen=True):
    api_version: str = API_VERSION
    kind: str = "Fleet"
    seed: int = 0
    speed: float = 1.0
    clusters: list[ClusterSpec] = []
    karmada: KarmadaSpec | None = None
    faults: list[FaultSpec] = []


def read_fleet_file(path: Path) -> FleetFile:
    """Read a fleet file. Raises FleetError."""
    return parse_fleet(read_bytes(path, "a fleet file"), str(path))


def parse_fleet(data: bytes, where: str = "fleet file") -> FleetFile:
    """Parse a fleet file. Raises FleetError for any invalid input."""
    return parse(data, where, "a fleet file", FleetFile, check_fleet)


def check_fleet(fleet: FleetFile) -> None:
    """Check what types cannot express. Raises Invalid with the path."""
    if fleet.api_version != API_VERSION or fleet.kind != "Fleet":
        raise Invalid("kind", f"{fleet.api_version} {fleet.kind}", f"must be {API_VERSION} Fleet")
    if not 0 < fleet.speed <= 100_000:
        raise Invalid("speed", fleet.speed, "must be above 0 and at most 100000 times real time")
    if not 1 <= len(fleet.clusters) <= CLUSTERS_MAX:
        raise Invalid("clusters", len(fleet.clusters), f"must list 1 to {CLUSTERS_MAX} clusters")
    names: set[str] = {fleet.karmada.name} if fleet.karmada else set()
    for index, cluster in enumerate(fleet.clusters):
        try:
            _check_cluster(cluster, names)
        except Invalid as error:
            raise error.at(f"clusters[{index}]") from None
        names.add(cluster.name)
    for index, member in enumerate(fleet.karmada.members if fleet.karmada else ()):
        if member not in names:
            raise Invalid(f"karmada.members[{index}]", member, f"is not one of the clusters {_listed(names)}")
    for index, fault in enumerate(fleet.faults):
        try:
            _check_fault(fault, names)
        except Invalid as error:
            raise error.at(f"faults[{index}]") from None


def _check_cluster(cluster: ClusterSpec, taken: set[str]) -> None:
    if not _NAME.match(cluster.name):
        raise Invalid("name", cluster.name, "must be 1 to 63 lower-case letters, digits or '-'")
    if cluster.name in taken:
        raise Invalid("name", cluster.name, "is taken by another cluster")
    if cluster.autoscaler not in ("karpenter", "cluster-autoscaler", "none"):
        raise Invalid("autoscaler", cluster.autoscaler, "must be karpenter, cluster-autoscaler or none")
    if cluster.node_groups and cluster.autoscaler != "cluster-autoscaler":
        raise Invalid("nodeGroups", len(cluster.node_groups), "need autoscaler: cluster-autoscaler")
    for index, nodes in enumerate(cluster.nodes):
        if nodes.count < 0:
            raise Invalid(f"nodes[{index}].count", nodes.count, "must not be negative")
    if (total := sum(nodes.count for nodes in cluster.nodes)) > NODES_MAX:
        raise Invalid("nodes", total, f"must be at most {NODES_MAX} nodes together")
    try:
        cluster.timing.delays()
    except Invalid as error:
        raise error.at("timing") from None


def _check_fault(fault: FaultSpec, clusters: set[str]) -> None:
    if fault.cluster not in clusters:
        raise Invalid("cluster", fault.cluster, f"is not one of the clusters {_listed(clusters)}")
    if len(fault.kinds) != 1:
        kinds = " and ".join(fault.kinds) or "nothing"
        raise Invalid("", kinds, "exactly one kind of fault must be given")
    for name in ("at", "lasts", "clock_jump"):
        text = getattr(fault, name)
        if text is None:
            continue
        try:
            amount = durations.seconds(text)
        except Invalid:
            amount = None
        if amount is None or (amount < 0 and name != "clock_jump"):
            raise Invalid("clockJump" if name == "clock_jump" else name, text, "must be a duration like 5m")
    if (crash := fault.crash_at_write) is not None and (
        crash.when not in ("before", "after") or crash.number < 1
    ):
        raise Invalid("crashAtWrite", crash.when, "needs a number from 1 and when: before or after")
    for api_fault in (fault.api_errors, fault.api_delay, fault.api_hang, fault.cut_watches):
        if api_fault is not None:
            _check_pattern(api_fault.path)


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise Invalid("path", pattern, f"is not a regular expression: {error}") from None


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"
