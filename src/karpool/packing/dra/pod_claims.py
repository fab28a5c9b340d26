"""Places a pod with its claims on a node, in the steps of kube-scheduler's DynamicResources plugin.

Allocated claims are not allocated again: they restrict the nodes of the pod. All others are allocated
together; the claim for extended resources comes last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from karpool.model.dra.claim import Allocation, ClaimSpec, DraClaim
from karpool.model.dra.device import selects_node
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.kubernetes.pod_shape import ClaimReference, ContainerAsk, PodShape, extended_asks
from karpool.packing.dra.allocator import NamedClaim, allocate
from karpool.packing.dra.extended_resources import (
    CLAIM_NAME,
    ClassOf,
    RequestMapping,
    extended_claim,
    is_extended,
    offered_resources,
)
from karpool.packing.dra.held import NOTHING_HELD, AllocatedState
from karpool.packing.dra.outcome import DraOutcome, DraStatus
from karpool.packing.dra.pools import NodeView
from karpool.packing.dra.stock import DeviceStock

NO_SPEC = ClaimSpec()


@dataclass(frozen=True)
class DraState:
    """Devices, claims and allocations at one moment. `claims` and `templates` are keyed by namespace/name."""

    stock: DeviceStock
    claims: Mapping[str, DraClaim] = field(default_factory=dict)
    templates: Mapping[str, ClaimSpec] = field(default_factory=dict)
    held: AllocatedState = NOTHING_HELD
    offered: ClassOf = field(default_factory=dict)

    def holding(self, allocations: Iterable[Allocation]) -> "DraState":
        shares = self.stock.features.consumable_capacity
        return replace(self, held=self.held.plus(allocations, shares=shares))


def state_of(stock: DeviceStock, claims: Iterable[DraClaim], templates: Mapping[str, ClaimSpec]) -> DraState:
    """Return the state that follows from the allocations of these claims."""
    by_key = {claim.key: claim for claim in claims}
    offered = offered_resources(stock.classes.values()) if stock.features.extended_resource else {}
    state = DraState(stock, by_key, templates, offered=offered)
    return state.holding(claim.allocation for claim in by_key.values() if claim.allocation is not None)


@dataclass(frozen=True, slots=True)
class DraNode(NodeView):
    """A node with the resources that its device plugins offer."""

    allocatable: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a pod, allocated or not. `key` is set for an existing named claim."""

    name: str
    key: str
    spec: ClaimSpec
    allocation: Allocation | None = None


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What a pod asks for on any node. `refused` says why no node fits."""

    claims: tuple[PodClaim, ...] = ()
    extended: Mapping[str, int] = field(default_factory=dict)  # served by plugins or drivers
    refused: str = ""
    containers: tuple[ContainerAsk, ...] = ()  # the containers that ask for extended resources


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """The result of placing a pod.

    `allocated` is keyed by the name of the claim in the pod; `requests` and `mappings` belong to extended
    resources.
    """

    outcome: DraOutcome
    allocated: Mapping[str, Allocation] = field(default_factory=dict)
    requests: ClaimSpec = NO_SPEC
    mappings: tuple[RequestMapping, ...] = ()

    @property
    def fits(self) -> bool:
        return self.outcome.fits


def demand_of(state: DraState, pod: Pod) -> PodDemand:
    """Return the demand of a pod, checking that its claims and their classes exist and are its own."""
    claims: list[PodClaim] = []
    statuses = {status.name: status for status in pod.status.resource_claim_statuses or ()}
    for entry in pod.spec.resource_claims or ():
        name, namespace = entry.resource_claim_name, pod.metadata.namespace
        owner = ""
        if name is None and entry.name in statuses:
            name, owner = statuses[entry.name].resource_claim_name, pod.metadata.uid
            if name is None:
                continue  # the status says that the pod needs no claim
        reference = ClaimReference(entry.name, name or "", entry.resource_claim_template_name or "")
        claim = _resolved(state, namespace, reference, owner)
        if isinstance(claim, str):
            return PodDemand(refused=claim)
        claims.append(claim)
    extended = _extended(state, effective_requests(pod).items())
    containers = extended_asks(pod) if extended else ()
    return PodDemand(tuple(claims), extended, _without_class(state, claims), containers)


def demand_of_shape(state: DraState, shape: PodShape) -> PodDemand:
    """Return the demand of one more pod of a shape; its template claims are new ones."""
    claims: list[PodClaim] = []
    for reference in shape.resource_claims:
        claim = _resolved(state, shape.namespace, reference, "")
        if isinstance(claim, str):
            return PodDemand(refused=claim)
        claims.append(claim)
    extended = _extended(state, shape.requests)
    containers = shape.extended_asks or (ContainerAsk("", False, shape.requests),) if extended else ()
    return PodDemand(tuple(claims), extended, _without_class(state, claims), containers)


def _extended(state: DraState, requests: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return all extended resources if a driver may serve one of them; otherwise none."""
    if not state.offered:
        return {}
    extended = {resource: units for resource, units in requests if units and is_extended(resource)}
    return extended if any(resource in state.offered for resource in extended) else {}


def served_by_drivers(state: DraState | None, shape: PodShape) -> tuple[str, ...]:
    """Return the extended resources that a device class offers; a driver serves them where no plugin does."""
    if state is None or not state.offered:
        return ()
    return tuple(resource for resource, _ in shape.requests if resource in state.offered)


def _resolved(state: DraState, namespace: str, reference: ClaimReference, owner: str) -> PodClaim | str:
    """Return the claim, or why it cannot be used. `owner` is the UID of the pod that must own it."""
    if not reference.claim:
        template = state.templates.get(f"{namespace}/{reference.template}")
        if template is None:
            return f"resource claim template {reference.template} not found"
        return PodClaim(reference.name, "", template)
    claim = state.claims.get(f"{namespace}/{reference.claim}")
    if claim is None:
        return f"resource claim {reference.claim} not found"
    if claim.deleting:
        return f"resource claim {reference.claim} is being deleted"
    if owner and not any(other.controller and other.uid == owner for other in claim.owners):
        return f"resource claim {reference.claim} was not made for the pod"
    return PodClaim(reference.name, claim.key, claim.spec, claim.allocation)


def _without_class(state: DraState, claims: Iterable[PodClaim]) -> str:
    for claim in claims:
        if claim.allocation is not None:
            continue
        for group in claim.spec.requests:
            if group.prioritized and not state.stock.features.prioritized_list:
                return f"claim {claim.name}, request {group.name}: alternatives need DRAPrioritizedList"
            if not group.alternatives:
                return f"claim {claim.name}, request {group.name}: is of an unknown kind"
            for request in group.alternatives:
                if request.device_class not in state.stock.classes:
                    return (
                        f"claim {claim.name}, request {request.full_name}: device class "
                        f"{request.device_class!r} does not exist"
                    )
    return ""


def finds_devices_anew(state: DraState | None, shape: PodShape) -> bool:
    """Whether a pod can get devices on another node when it leaves its own.

    That is so if its claims come from templates or can be used from every node. A named claim stays where it
    is allocated.
    """
    if state is None or not (shape.resource_claims or served_by_drivers(state, shape)):
        return False
    claims = [_resolved(state, shape.namespace, reference, "") for reference in shape.resource_claims]
    return all(
        not isinstance(claim, str)
        and (not claim.key or (claim.allocation is not None and claim.allocation.node_terms is None))
        for claim in claims
    )


@dataclass(frozen=True, slots=True)
class HeldClaims:
    """Claims that hold devices of nodes and do not belong to one pod."""

    by_node: Mapping[str, str] = field(default_factory=dict)
    unreadable: str = ""  # a claim that cannot be read, so what it holds is unknown
    with_devices: frozenset[str] = frozenset()  # nodes that publish devices

    def may_be_held(self, node: str) -> bool:
        """Whether the unreadable claim may hold devices of the node.

        If no node is known to publish devices, it may hold devices of any node.
        """
        return bool(self.unreadable) and (not self.with_devices or node in self.with_devices)


def claims_of_nodes(claims: Iterable[DraClaim]) -> dict[str, str]:
    """Return by node a claim that is allocated there and is not owned by a pod."""
    by_node: dict[str, str] = {}
    for claim in claims:
        terms = claim.allocation.node_terms if claim.allocation is not None else None
        if terms is None or any(owner.kind == "Pod" and owner.controller for owner in claim.owners):
            continue
        for term in terms:
            for field_, names in term.fields:
                if field_ == "metadata.name" and not names.complement:
                    by_node.update(dict.fromkeys(names.values, claim.key))
    return by_node


def place_pod(state: DraState, demand: PodDemand, node: DraNode) -> PodOutcome:
    """Allocate the devices that the pod would get on a node."""
    if demand.refused:
        return _refused(demand.refused)
    by_driver: dict[str, int] = {}
    for resource, units in demand.extended.items():
        if resource in state.offered and not node.allocatable.get(resource, 0):
            by_driver[resource] = units
        elif resource not in node.allocatable:
            return _refused(f"{resource} is offered neither by a device plugin nor by a device class")
    requests = NO_SPEC
    mappings: tuple[RequestMapping, ...] = ()
    unallocated = [claim for claim in demand.claims if claim.allocation is None]
    if demand.extended and (by_driver or demand.claims):
        requests, mappings = extended_claim(demand.containers, by_driver, state.offered)
        unallocated.append(PodClaim(CLAIM_NAME, "", requests))
    outcome = DraOutcome(DraStatus.FITS)
    if unallocated:
        named = [NamedClaim(claim.name, claim.spec) for claim in unallocated]
        outcome = allocate(state.stock, node, named, state.held)
    if not outcome.fits:
        return PodOutcome(outcome)
    for claim in demand.claims:
        allocation = claim.allocation
        if allocation is not None and not selects_node(allocation.node_terms, node.name, node.labels):
            return _refused(f"claim {claim.name} is allocated elsewhere")
    allocated = dict(zip((claim.name for claim in unallocated), outcome.allocations, strict=True))
    return PodOutcome(outcome, allocated, requests, mappings)


def _refused(reason: str) -> PodOutcome:
    return PodOutcome(DraOutcome(DraStatus.UNSCHEDULABLE, reason))


def with_pod(state: DraState, demand: PodDemand, placed: PodOutcome) -> DraState:
    """Return the state with the pod placed: its devices and its shared claims are allocated."""
    claims = dict(state.claims)
    for claim in demand.claims:
        if claim.key and claim.name in placed.allocated and claim.key in claims:
            claims[claim.key] = replace(claims[claim.key], allocation=placed.allocated[claim.name])
    return replace(state.holding(placed.allocated.values()), claims=claims)
