"""Device claims of pods (DRA): allocation per node, and the writes that record it.

Allocations that are not visible yet are held here, until the claims show them. Claims of templates are
created when the pod is bound; upstream a controller creates them before. `kube_controllers/resource_claims`
releases devices of ended pods.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists
from karpool.model.dra.claim import Allocation
from karpool.model.dra.objects import allocation_object
from karpool.model.kubernetes.api_resources import PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.claim_room import asks_drivers
from karpool.packing.dra.extended_resources import CLAIM_NAME
from karpool.packing.dra.pod_claims import (
    DraState,
    PodClaim,
    PodDemand,
    PodOutcome,
    demand_of,
    place_pod,
)
from karpool.packing.fit_reasons import CLAIMS_UNKNOWN
from karpool.packing.tables.room import Room
from karpool_fleet.runtime.writes import patch_version

_EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
_CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"


@dataclass(frozen=True, slots=True)
class DeviceDecision:
    """The decision for a pod. `closed`: rows without devices for its claims, and the reason of the first."""

    state: DraState | None
    demand: PodDemand
    closed: tuple[int, ...]
    reason: str


class DeviceClaims:
    def __init__(self, snapshot: Callable[[], Room], client: Client, new_share: Callable[[], str]) -> None:
        self._snapshot = snapshot
        self._client = client
        self._new_share = new_share
        self._given: dict[str, Allocation] = {}  # by claim, until the claim shows it
        self._plain: dict[PodShape, PodShape] = {}

    def plain(self, shape: PodShape) -> PodShape:
        """Return the shape without its claims, which are decided here."""
        if len(self._plain) > 1024:
            self._plain.clear()
        return self._plain.setdefault(shape, replace(shape, resource_claims=()))

    def concern(self, shape: PodShape) -> bool:
        return asks_drivers(self._snapshot(), shape)

    def decide(self, pod: Pod, shape: PodShape) -> DeviceDecision | None:
        """Decide about a pod; None if it needs nothing from drivers."""
        if not self.concern(shape):
            return None
        room = self._snapshot()
        state = self._state(room)
        if state is None:
            return DeviceDecision(None, PodDemand(), tuple(range(room.n)), CLAIMS_UNKNOWN)
        demand = demand_of(state, pod)
        closed: list[int] = []
        reason = ""
        for row in range(room.n):
            outcome = place_pod(state, demand, room.dra_node(row, demand.extended)).outcome
            if not outcome.fits:
                closed.append(row)
                reason = reason or outcome.reason
        return DeviceDecision(state, demand, tuple(closed), reason)

    def _state(self, room: Room) -> DraState | None:
        state = room.dra
        if state is None:
            return None
        claims = dict(state.claims)
        pending: list[Allocation] = []
        for key, allocation in list(self._given.items()):
            seen = claims.get(key)
            if seen is not None and seen.allocation is not None:
                del self._given[key]
                continue
            pending.append(allocation)
            if seen is not None:
                claims[key] = replace(seen, allocation=allocation)
        return replace(state.holding(pending), claims=claims)

    def assume(self, pod: Pod, decision: DeviceDecision, row: int) -> PodOutcome:
        """Allocate the devices to the pod from now on."""
        assert decision.state is not None  # otherwise no row is open
        placed = place_pod(
            decision.state, decision.demand, self._snapshot().dra_node(row, decision.demand.extended)
        )
        named = {claim.name: claim.key for claim in decision.demand.claims}
        for name, allocation in placed.allocated.items():
            self._given[named.get(name) or _generated(pod, name)] = allocation
        return placed

    async def write(self, pod: Pod, demand: PodDemand, placed: PodOutcome) -> None:
        """Write the claims, then the status of the pod; each write may be repeated. Raises KubeError."""
        statuses = []
        told: dict[str, Any] = {}
        for claim in demand.claims:
            key = claim.key or _generated(pod, claim.name)
            if not claim.key:
                await self._make(pod, key, {_CLAIM_NAME_ANNOTATION: claim.name}, await self._spec(pod, claim))
                statuses.append({"name": claim.name, "resourceClaimName": key.rpartition("/")[2]})
            await self._reserve(pod, key, placed.allocated.get(claim.name))
        if statuses:
            told["resourceClaimStatuses"] = statuses
        if placed.requests.requests:
            key = _generated(pod, CLAIM_NAME)
            await self._make(pod, key, {_EXTENDED_ANNOTATION: "true"}, _claim_object(placed))
            await self._reserve(pod, key, placed.allocated[CLAIM_NAME])
            told["extendedResourceClaimStatus"] = {
                "resourceClaimName": key.rpartition("/")[2],
                "requestMappings": [
                    {"containerName": use.container, "resourceName": use.resource, "requestName": use.request}
                    for use in placed.mappings
                ],
            }
        if told:
            await self._client.patch(
                PODS,
                pod.name,
                {"status": told},
                namespace=pod.metadata.namespace,
                subresource="status",
            )

    async def _spec(self, pod: Pod, claim: PodClaim) -> dict[str, Any]:
        """Return the spec of a claim's template."""
        entry = next(entry for entry in pod.spec.resource_claims or () if entry.name == claim.name)
        template: dict[str, Any] = await self._client.get(
            RESOURCECLAIMTEMPLATES,
            entry.resource_claim_template_name or "",
            namespace=pod.metadata.namespace,
        )
        spec: dict[str, Any] = template["spec"]["spec"]
        return spec

    async def _make(self, pod: Pod, key: str, annotations: dict[str, str], spec: dict[str, Any]) -> None:
        namespace = pod.metadata.namespace
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.name,
            "uid": pod.metadata.uid,
            "controller": True,
        }
        made = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": key.rpartition("/")[2],
                "namespace": namespace,
                "annotations": annotations,
                "ownerReferences": [owner],
            },
            "spec": spec,
        }
        with suppress(AlreadyExists):  # created by an attempt whose answer was lost
            await self._client.create(RESOURCECLAIMS, made)

    async def _reserve(self, pod: Pod, key: str, allocation: Allocation | None) -> None:
        namespace, _, name = key.partition("/")
        claim: dict[str, Any] = await self._client.get(RESOURCECLAIMS, name, namespace=namespace)
        status = claim.get("status") or {}
        reserved = list(status.get("reservedFor") or [])
        if all(consumer.get("uid") != pod.metadata.uid for consumer in reserved):
            reserved.append({"resource": "pods", "name": pod.name, "uid": pod.metadata.uid})
        news: dict[str, Any] = {"reservedFor": reserved}
        if allocation is not None and not status.get("allocation"):
            news["allocation"] = allocation_object(allocation, self._new_share)
        await patch_version(self._client, RESOURCECLAIMS, claim, {"status": news}, status=True)


def _generated(pod: Pod, claim: str) -> str:
    """Return a deterministic name, so that the next attempt finds the claim."""
    of_claim = "extended-resources" if claim == CLAIM_NAME else claim
    return f"{pod.metadata.namespace}/{pod.name}-{of_claim}-{pod.metadata.uid[-5:]}"


def _claim_object(placed: PodOutcome) -> dict[str, Any]:
    """Return the claim for extended resources."""
    requests = [request for group in placed.requests.requests for request in group.alternatives]
    return {
        "devices": {
            "requests": [
                {
                    "name": request.name,
                    "exactly": {
                        "deviceClassName": request.device_class,
                        "allocationMode": request.mode,
                        "count": request.count,
                    },
                }
                for request in requests
            ]
        }
    }
