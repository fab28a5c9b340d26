"""What a pod requires of its node, as one hashable value.

Pods of one workload share a shape; the kernel works on shapes and counts, not on pods. Everything is compiled
and checked once, here: a pod that cannot be read raises `Invalid` with the path of the field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from karpool.model import quantity
from karpool.model.devices.pod_requests import device_demand_of
from karpool.model.devices.request import DeviceDemand
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Labels, LabelSelector
from karpool.model.kubernetes.pod import (
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    effective_requests,
)
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.requirements import NodeSelector, NodeSelectorTerm, NodeTerm, node_terms_of
from karpool.model.resources import ATTACHED_VOLUMES
from karpool.model.taints import Toleration

Pairs = tuple[tuple[str, str], ...]
HostPort = tuple[str, str, int]  # address, protocol, port


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """One term of a pod (anti-)affinity. `namespaces` empty and no selector: the pod's own."""

    selector: LabelMatcher
    topology_key: str
    namespaces: frozenset[str]
    namespace_selector: LabelMatcher | None = None  # None: only the names above


@dataclass(frozen=True, slots=True)
class WeightedTerm:
    weight: int
    term: AffinityTerm


@dataclass(frozen=True, slots=True)
class WeightedNodeTerm:
    weight: int
    term: NodeTerm


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """One topology spread constraint; `required` is DoNotSchedule."""

    max_skew: int
    topology_key: str
    required: bool
    selector: LabelMatcher
    min_domains: int = 1
    honour_node_affinity: bool = True
    honour_taints: bool = False


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A resource claim that the pod names, or a template from which every pod gets its own claim."""

    name: str  # inside the pod
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """The extended resources that one container requests. `brief`: it ends before the others start."""

    name: str
    brief: bool
    asked: tuple[tuple[str, int], ...]  # every requested resource, by name; a fraction counts as none


@dataclass(frozen=True, slots=True)
class PodShape:
    requests: tuple[tuple[str, int], ...] = ()  # sorted by name, positive amounts only, no "pods"
    node_selector: Pairs = ()
    node_terms: tuple[NodeTerm, ...] | None = None  # alternatives; None: no affinity; (): matches nothing
    tolerations: tuple[Toleration, ...] = ()
    namespace: str = ""
    labels: Pairs = ()
    spreads: tuple[TopologySpread, ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred_affinity: tuple[WeightedTerm, ...] = ()
    preferred_anti_affinity: tuple[WeightedTerm, ...] = ()
    preferred_nodes: tuple[WeightedNodeTerm, ...] = ()
    host_ports: frozenset[HostPort] = frozenset()
    # One entry per volume with a topology; each must have a matching alternative.
    volume_terms: tuple[tuple[NodeTerm, ...], ...] = ()
    priority: int = 0
    devices: DeviceDemand | None = None  # shares of devices; whole units of a plugin are in `requests`
    resource_claims: tuple[ClaimReference, ...] = ()  # DRA claims
    # The containers that request extended resources, unless one container requests all of them: DRA
    # drivers allocate devices per container.
    extended_asks: tuple[ContainerAsk, ...] = ()

    @property
    def has_topology(self) -> bool:
        """Whether other pods restrict where this one may run."""
        return bool(self.spreads or self.affinity or self.anti_affinity)

    def with_volumes(
        self, terms: Iterable[tuple[NodeTerm, ...]], attached: Iterable[tuple[str, int]] = ()
    ) -> "PodShape":
        """Return the shape with volumes; `attached` counts them by resource (`ATTACHED_VOLUMES`)."""
        others = (entry for entry in self.requests if not entry[0].startswith(ATTACHED_VOLUMES))
        return replace(self, volume_terms=tuple(terms), requests=tuple(sorted((*others, *attached))))


def shape_of(pod: Pod) -> PodShape:
    """Compile a pod without its volumes (see `with_volumes`). Raises Invalid, which names the field."""
    spec, labels = pod.spec, pod.labels
    affinity = spec.affinity or _NO_AFFINITY
    namespace = pod.metadata.namespace
    node = affinity.node_affinity
    required_node = node.required_during_scheduling_ignored_during_execution if node else None
    preferred_node = (node.preferred_during_scheduling_ignored_during_execution or ()) if node else ()
    together = affinity.pod_affinity or _NO_TERMS
    apart = affinity.pod_anti_affinity or _NO_TERMS
    demand, needs = device_demand_of(pod.annotations, labels, effective_requests(pod))
    return PodShape(
        requests=positive(needs),
        node_selector=tuple(sorted((spec.node_selector or {}).items())),
        node_terms=node_terms_of(required_node),
        tolerations=tuple(spec.tolerations or ()),
        namespace=namespace,
        labels=tuple(sorted(labels.items())) if labels else (),
        spreads=tuple(
            _spread(constraint, labels, f"spec.topologySpreadConstraints[{index}]")
            for index, constraint in enumerate(spec.topology_spread_constraints or ())
        ),
        affinity=_terms(together.required_during_scheduling_ignored_during_execution, pod, "podAffinity"),
        anti_affinity=_terms(
            apart.required_during_scheduling_ignored_during_execution, pod, "podAntiAffinity"
        ),
        preferred_affinity=tuple(
            WeightedTerm(entry.weight, _term(entry.pod_affinity_term, pod, "spec.affinity.podAffinity"))
            for entry in together.preferred_during_scheduling_ignored_during_execution or ()
        ),
        preferred_anti_affinity=tuple(
            WeightedTerm(entry.weight, _term(entry.pod_affinity_term, pod, "spec.affinity.podAntiAffinity"))
            for entry in apart.preferred_during_scheduling_ignored_during_execution or ()
        ),
        preferred_nodes=tuple(
            WeightedNodeTerm(entry.weight, term)
            for entry in preferred_node
            for term in node_terms_of(_only(entry.preference)) or ()
        ),
        host_ports=_host_ports(pod),
        priority=spec.priority or 0,
        devices=demand,
        resource_claims=tuple(
            ClaimReference(
                entry.name, entry.resource_claim_name or "", entry.resource_claim_template_name or ""
            )
            for entry in spec.resource_claims or ()
        ),
        extended_asks=_several_asks(pod) if any("/" in name for name in needs) else (),
    )


def extended_asks(pod: Pod) -> tuple[ContainerAsk, ...]:
    """Return the requests of every container, init containers first."""
    init = pod.spec.init_containers or []
    return tuple(
        ContainerAsk(
            container.name,
            index < len(init) and container.restart_policy != "Always",
            tuple(sorted((name, _whole_units(amount)) for name, amount in _requests(container).items())),
        )
        for index, container in enumerate((*init, *(pod.spec.containers or ())))
    )


def _several_asks(pod: Pod) -> tuple[ContainerAsk, ...]:
    asks = extended_asks(pod)
    asking = [ask for ask in asks if any("/" in name and units for name, units in ask.asked)]
    return asks if len(asking) > 1 or any(ask.brief for ask in asking) else ()


def _requests(container: Container) -> Mapping[str, str | int | float]:
    return (container.resources.requests if container.resources else None) or {}


def _whole_units(amount: str | int | float) -> int:
    """Return whole devices; a fraction is none, as in Kubernetes."""
    nanos = quantity.nano_value(amount)
    return nanos // 10**9 if nanos % 10**9 == 0 else 0


def positive(requests: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the requests that constrain: sorted, without zeros and without pod slots."""
    return tuple(sorted((name, units) for name, units in requests.items() if units > 0 and name != "pods"))


_NO_AFFINITY = Affinity()
_NO_TERMS = PodAffinity()


def _only(term: NodeSelectorTerm) -> NodeSelector:
    return NodeSelector(node_selector_terms=[term])


def _terms(terms: list[PodAffinityTerm] | None, pod: Pod, kind: str) -> tuple[AffinityTerm, ...]:
    return tuple(_term(term, pod, f"spec.affinity.{kind}[{index}]") for index, term in enumerate(terms or ()))


def _term(term: PodAffinityTerm, pod: Pod, path: str) -> AffinityTerm:
    if not term.topology_key:
        raise Invalid(f"{path}.topologyKey", "", "is required")
    namespaces = frozenset(term.namespaces or ())
    if not namespaces and term.namespace_selector is None:
        namespaces = frozenset((pod.metadata.namespace,))
    selector = _selector(term.label_selector, f"{path}.labelSelector")
    if term.label_selector is not None:
        selector = _narrowed(selector, pod.labels, term.match_label_keys, "In")
        selector = _narrowed(selector, pod.labels, term.mismatch_label_keys, "NotIn")
    return AffinityTerm(
        selector=selector,
        topology_key=term.topology_key,
        namespaces=namespaces,
        namespace_selector=(
            None
            if term.namespace_selector is None
            else _selector(term.namespace_selector, f"{path}.namespaceSelector")
        ),
    )


def _spread(constraint: TopologySpreadConstraint, labels: Labels, path: str) -> TopologySpread:
    if constraint.max_skew < 1:
        raise Invalid(f"{path}.maxSkew", constraint.max_skew, "must be at least 1")
    if not constraint.topology_key:
        raise Invalid(f"{path}.topologyKey", "", "is required")
    if constraint.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
        raise Invalid(
            f"{path}.whenUnsatisfiable",
            constraint.when_unsatisfiable,
            "must be DoNotSchedule or ScheduleAnyway",
        )
    selector = _selector(constraint.label_selector, f"{path}.labelSelector")
    return TopologySpread(
        max_skew=constraint.max_skew,
        topology_key=constraint.topology_key,
        required=constraint.when_unsatisfiable == "DoNotSchedule",
        selector=_narrowed(selector, labels, constraint.match_label_keys, "In"),
        min_domains=constraint.min_domains or 1,
        honour_node_affinity=constraint.node_affinity_policy != "Ignore",
        honour_taints=constraint.node_taints_policy == "Honor",
    )


# A missing selector selects nothing; an empty one selects everything.
_NOTHING = LabelMatcher((LabelRequirement("", "In", frozenset()),))


def _selector(selector: LabelSelector | None, path: str) -> LabelMatcher:
    if selector is None:
        return _NOTHING
    try:
        return selector.compile()
    except Invalid as error:
        raise error.at(path) from None


def _narrowed(selector: LabelMatcher, labels: Labels, keys: list[str] | None, operator: str) -> LabelMatcher:
    """Apply matchLabelKeys and mismatchLabelKeys: the pod's own label values join the selector."""
    extra = tuple(
        LabelRequirement(key, operator, frozenset((labels[key],))) for key in keys or () if key in labels
    )
    return LabelMatcher(selector.requirements + extra) if extra else selector


def _host_ports(pod: Pod) -> frozenset[HostPort]:
    ports: set[HostPort] = set()
    for container in pod.spec.containers or ():
        for port in container.ports or ():
            number = port.host_port or (port.container_port if pod.spec.host_network else 0)
            if number:
                ports.add((port.host_ip or "0.0.0.0", port.protocol, number))  # noqa: S104 - the wildcard as the API spells it
    return frozenset(ports)
