"""Pods as the API sends them, and what they request of a node.

Effective requests follow kube-scheduler: containers plus sidecars against the init phase, pod-level
resources, overhead, and the larger of desired and allocated during a resize.
"""

from collections.abc import Mapping

import msgspec

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Condition, Int32, Int64, LabelSelector, Wire, WireObject, condition
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.model.resources import Resources
from karpool.model.taints import Toleration

QuantityMap = dict[str, str | int | float]

TERMINAL_PHASES = ("Succeeded", "Failed")


class ResourceRequirements(Wire, frozen=True):
    requests: QuantityMap | None = None
    limits: QuantityMap | None = None


class ContainerPort(Wire, frozen=True):
    container_port: Int32 = 0
    host_port: Int32 = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class PreferredNodeTerm(Wire, frozen=True):
    weight: Int32 = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodeTerm] | None = None


class PodAffinityTerm(Wire, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodAffinityTerm(Wire, frozen=True):
    weight: Int32 = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """A pod affinity; also the form of podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] | None = None


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire, frozen=True):
    max_skew: Int32 = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class ClaimSource(Wire, frozen=True):
    claim_name: str = ""


class Volume(Wire, frozen=True):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, object] | None = None
    empty_dir: dict[str, object] | None = None
    host_path: dict[str, object] | None = None


class SchedulingGate(Wire, frozen=True):
    name: str = ""


class PodResourceClaim(Wire, frozen=True):
    """One of the names is set: an existing claim, or a template from which every pod gets its own."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodResourceClaimStatus(Wire, frozen=True):
    """The claim of an entry; without a name, no claim was needed."""

    name: str = ""
    resource_claim_name: str | None = None


class ExtendedResourceClaimStatus(Wire, frozen=True):
    resource_claim_name: str = ""


class PodSpec(Wire, frozen=True):
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: QuantityMap | None = None
    resources: ResourceRequirements | None = None
    priority: Int32 | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    scheduler_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    volumes: list[Volume] | None = None
    host_network: bool | None = None
    termination_grace_period_seconds: Int64 | None = None
    active_deadline_seconds: Int64 | None = None
    restart_policy: str = ""
    resource_claims: list[PodResourceClaim] | None = None


class ContainerStatus(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: Int32 = 0
    allocated_resources: QuantityMap | None = None
    resources: ResourceRequirements | None = None


class PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    nominated_node_name: str = ""
    start_time: str | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class Pod(WireObject, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_terminal(self) -> bool:
        return self.status.phase in TERMINAL_PHASES

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None


# Pod-level spec.resources covers these; other resources stay with the containers.
_POD_LEVEL = (resources.CPU, resources.MEMORY)


def effective_requests(pod: Pod) -> Resources:
    """Return what the pod takes from a node, except its pod slot; raises Invalid, which names the field."""
    spec = pod.spec
    statuses = (
        {} if pod.status.container_statuses is None else {s.name: s for s in pod.status.container_statuses}
    )
    infeasible = _resize_is_infeasible(pod)
    running: Resources = {}
    for index, container in enumerate(spec.containers or ()):
        resources.add(running, _container(container, statuses, infeasible, f"spec.containers[{index}]"))
    if spec.init_containers:
        _add_init_phase(running, pod, infeasible)
    if spec.resources is not None and spec.resources.requests:
        for name, units in _parsed(spec.resources.requests, "spec.resources.requests").items():
            if name in _POD_LEVEL or name.startswith("hugepages-"):
                running[name] = units
    if spec.overhead:
        resources.add(running, _parsed(spec.overhead, "spec.overhead"))
    return running


def _add_init_phase(running: Resources, pod: Pod, infeasible: bool) -> None:
    """Add the init phase: init containers run one by one, next to the sidecars started before them."""
    statuses = {s.name: s for s in pod.status.init_container_statuses or ()}
    sidecars: Resources = {}
    peak: Resources = {}
    for index, container in enumerate(pod.spec.init_containers or ()):
        needs = _container(container, statuses, infeasible, f"spec.initContainers[{index}]")
        if container.restart_policy == "Always":
            resources.add(sidecars, needs)
            resources.maximum(peak, sidecars)
        else:
            resources.maximum(peak, resources.total((sidecars, needs)))
    resources.add(running, sidecars)
    resources.maximum(running, peak)


def _container(
    container: Container, statuses: Mapping[str, ContainerStatus], infeasible: bool, path: str
) -> Resources:
    requests = container.resources.requests if container.resources else None
    needs = _parsed(requests, f"{path}.resources.requests") if requests else {}
    status = statuses.get(container.name) if statuses else None
    if status is None or (status.resources is None and status.allocated_resources is None):
        return needs
    granted = _parsed(status.allocated_resources, f"{path}.status.allocatedResources")
    if status.resources is not None:
        resources.maximum(granted, _parsed(status.resources.requests, f"{path}.status.resources.requests"))
    if infeasible:
        return granted
    resources.maximum(granted, needs)
    return granted


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = condition(pod.status.conditions, "PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


def _parsed(raw: QuantityMap | None, path: str) -> Resources:
    try:
        return resources.parse(raw)
    except Invalid as error:
        raise error.at(path) from None
