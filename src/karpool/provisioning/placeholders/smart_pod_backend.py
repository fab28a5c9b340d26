"""The Smart Pod Manager: the default backend, for any autoscaler that watches pods.

It has no state of its own: the placeholders are read from the cluster, and names decide which request they
belong to. It creates and deletes smart pods in its own namespace and changes nothing else.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.kube.api.client import Client
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import EVENTS, PODS, ListOptions, ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, RequestPurpose
from karpool.provisioning.placeholders.backend import RequestResult
from karpool.provisioning.placeholders.backend_name import BackendName
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState
from karpool.provisioning.placeholders.pod_events import AutoscalerEventLog
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings, placeholder_of, selector, smart_pod
from karpool.provisioning.placeholders.writes import (
    CreateResult,
    CreateState,
    create_missing,
    delete_own,
    request_all,
)

UNSCHEDULABLE = "Unschedulable"


class SmartPodBackend:
    """Creates and deletes smart pods. `watches` feed it; before they are synced, no placeholder is known.

    With a `purpose` it sees, and can withdraw, only smart pods of that purpose.
    """

    name = BackendName.SMART_POD

    def __init__(
        self,
        client: Client,
        settings: SmartPodSettings,
        monitor: ClaimMonitor,
        purpose: RequestPurpose | None = None,
    ) -> None:
        self.purpose = purpose
        self.settings = settings
        self.monitor = monitor
        self.events = AutoscalerEventLog(client.clock)
        self._client = client
        self._known: dict[ObjectKey, Placeholder] = {}

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        own_objects = ListOptions(namespace=self.settings.namespace, label_selector=selector(self.purpose))
        said = ListOptions(namespace=self.settings.namespace)
        return (
            WatchedKind(PODS, Pod, PutDropSink(self.put_pod, self.drop_pod), own_objects),
            WatchedKind(EVENTS, KubeEvent, PutDropSink(self.events.put, self.events.drop), said),
        )

    def put_pod(self, key: ObjectKey, pod: Pod) -> None:
        placeholder = placeholder_of(pod, self.settings.namespace)
        if placeholder is None or self.purpose not in (None, placeholder.purpose):
            self._known.pop(key, None)
        else:
            self._known[key] = placeholder

    def drop_pod(self, key: ObjectKey) -> None:
        self._known.pop(key, None)

    def placeholders(self) -> Sequence[Placeholder]:
        return [self._with_events(placeholder) for placeholder in self._known.values()]

    def placeholders_of(self, request: str) -> Sequence[Placeholder]:
        """Return the placeholders of one request, of any epoch."""
        return [
            self._with_events(placeholder)
            for placeholder in self._known.values()
            if placeholder.request == request
        ]

    def _with_events(self, placeholder: Placeholder) -> Placeholder:
        """Add the claim and the messages of the autoscaler; the node of a bound pod is certain."""
        if placeholder.node:
            return replace(placeholder, claim=self.monitor.claim_of(placeholder.node))
        events = self.events.events_of(placeholder.uid)
        if placeholder.outlook is not PlaceholderState.WAITING:
            return placeholder
        if events.latest_is_refusal and events.refused is not None:
            return replace(placeholder, outlook=PlaceholderState.REFUSED, message=events.refused.message)
        if events.coming is not None:
            claim = events.coming.claim or self.monitor.claim_of(events.coming.node)
            return replace(
                placeholder, outlook=PlaceholderState.COMING, claim=claim, message=events.coming.message
            )
        return placeholder

    async def request(
        self, ask: NodeRequest, candidate: NodeCandidate, indices: Collection[int] | None = None
    ) -> RequestResult:
        """Create missing pods. Raises Invalid and creates none if request and candidate conflict."""
        chosen = range(len(ask.units)) if indices is None else indices
        manifests = {index: smart_pod(ask, candidate, index, self.settings) for index in chosen}

        async def make(index: int) -> CreateResult:
            outcome = await create_missing(self._client, PODS, manifests[index])
            if self.settings.marks_unschedulable and outcome.made in (
                CreateState.CREATED,
                CreateState.PRESENT,
            ):
                await self._mark(outcome)
            return outcome

        return await request_all(manifests, make)

    async def _mark(self, outcome: CreateResult) -> None:
        """Set the condition that autoscalers look for, on behalf of a scheduler that does not set it."""
        meta, status = outcome.object["metadata"], outcome.object.get("status") or {}
        conditions = status.get("conditions") or ()
        if outcome.object.get("spec", {}).get("nodeName") or any(
            condition.get("type") == "PodScheduled" for condition in conditions
        ):
            return
        said = {
            "type": "PodScheduled",
            "status": "False",
            "reason": UNSCHEDULABLE,
            "message": "waits for a node of its own",
            "lastTransitionTime": rfc3339(self._client.clock.now()),
        }
        await self._client.patch(
            PODS,
            meta["name"],
            {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [said]}},
            namespace=meta["namespace"],
            how="strategic",
            subresource="status",
        )

    async def withdraw(self, placeholder: Placeholder) -> bool:
        if placeholder.resource != PODS or placeholder.key.namespace != self.settings.namespace:
            raise ValueError(f"{placeholder.key} is not a smart pod of {self.settings.namespace}")
        return await delete_own(self._client, placeholder)
