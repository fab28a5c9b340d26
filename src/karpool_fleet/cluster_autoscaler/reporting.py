"""Writes the status ConfigMap, and events about it."""

from collections.abc import Sequence

from karpool.kube.errors import AlreadyExists, NotFound
from karpool.kube.event_recorder import EventType, ObjectReference
from karpool.model.kubernetes.api_resources import CONFIGMAPS
from karpool_fleet.cluster_autoscaler import status
from karpool_fleet.cluster_autoscaler.group_counts import NodeCounts
from karpool_fleet.runtime.supervisor import Context


class Reporter:
    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._clock = context.clock
        self._events = context.events
        self._transitions = status.Transitions()
        self._uid = ""

    async def announce(self) -> None:
        """Create the status at the start; an existing one is kept."""
        try:
            await self._create(status.initializing(self._clock.now()))
        except AlreadyExists:
            return

    async def write(self, groups: Sequence[status.GroupReport], cluster: NodeCounts, healthy: bool) -> None:
        document = status.document(groups, cluster, healthy, self._transitions, self._clock.now())
        patch = {
            "metadata": {"annotations": {status.LAST_UPDATED: document["time"]}},
            "data": {"status": status.text(document)},
        }
        try:
            written = await self._client.patch(CONFIGMAPS, status.NAME, patch, namespace=status.NAMESPACE)
            self._uid = written["metadata"]["uid"]
        except NotFound:
            await self._create(document)

    async def _create(self, document: status.Document) -> None:
        written = await self._client.create(
            CONFIGMAPS,
            {
                "metadata": {
                    "name": status.NAME,
                    "namespace": status.NAMESPACE,
                    "annotations": {status.LAST_UPDATED: document["time"]},
                },
                "data": {"status": status.text(document)},
            },
        )
        self._uid = written["metadata"]["uid"]

    def say(self, event_type: EventType, reason: str, message: str) -> None:
        """Record an event about the status, which upstream uses for events without a pod or node."""
        about = ObjectReference("v1", "ConfigMap", status.NAMESPACE, status.NAME, self._uid)
        self._events.record(about, event_type, reason, message)
