"""The scheduler's writes: bindings, conditions, events and deletions of victims.

There is one intention per pod, the latest; a failed write is retried until its result is known. If the answer
to a binding is lost, the binding does not count as failed: the pod is read, and its room stays taken until
its node is known.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from karpool.kube import event_recorder
from karpool.kube.errors import Conflict, KubeError, NotFound
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.api_resources import PODS, PVCS, ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool.model.kubernetes.volumes import SELECTED_NODE
from karpool.packing.dra.pod_claims import PodDemand, PodOutcome
from karpool_fleet.kube_scheduler.cache import SchedulerCache
from karpool_fleet.kube_scheduler.claims import Claim, claim_keys, selected_node, unbound_claims
from karpool_fleet.kube_scheduler.device_claims import DeviceClaims
from karpool_fleet.kube_scheduler.preemption import Preemption
from karpool_fleet.kube_scheduler.settings import KubeSchedulerSettings
from karpool_fleet.kubelet.pod_status import condition_patch
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import delete_object, patch_object

_MOMENT = 1e-6  # times are sums of floats
_CONFLICT_SECONDS = 1.0  # until an event that we have not received yet should arrive


@dataclass(frozen=True, slots=True)
class Bind:
    uid: str
    node: str
    since: float  # monotonic
    demand: PodDemand | None = None  # device demand, and its allocation
    devices: PodOutcome | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The message for a pod that stays pending. `repeats`: nothing was tried, so there is no event."""

    uid: str
    reason: str
    message: str
    nominated: str | None = None  # None: unchanged
    victims: Preemption | None = None
    repeats: bool = False


class SchedulerWriter:
    def __init__(
        self,
        context: Context,
        settings: KubeSchedulerSettings,
        cache: SchedulerCache,
        *,
        pod: Callable[[ObjectKey], Pod | None],
        claim: Callable[[ObjectKey], Claim | None],
        try_again: Callable[[ObjectKey], None],
        devices: DeviceClaims,
    ) -> None:
        self._client, self._clock, self._events = context.client, context.clock, context.events
        self._settings = settings
        self._cache = cache
        self._devices = devices
        self._pod, self._claim, self._try_again = pod, claim, try_again
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self._intents: dict[ObjectKey, Bind | Report] = {}
        self._await_claims: dict[ObjectKey, None] = {}
        self._told_claims: dict[ObjectKey, dict[ObjectKey, int]] = {}  # pod -> claim -> version that we wrote

    async def run(self) -> None:
        await self._queue.run(self._write, workers=self._settings.writers)

    def bind(self, key: ObjectKey, intent: Bind) -> None:
        self._intents[key] = intent
        self._queue.add(key)

    def report(self, key: ObjectKey, intent: Report) -> None:
        before = self._intents.get(key)
        if not isinstance(before, Bind):
            if before is not None and before.uid == intent.uid and intent.victims is None:
                intent = replace(intent, victims=before.victims)  # they still have to be deleted
            self._intents[key] = intent
            self._queue.add(key)

    def drop_report(self, key: ObjectKey) -> None:
        """Drop the report of a pod that is gone or not ours; a binding in progress is still finished."""
        if isinstance(self._intents.get(key), Report):
            del self._intents[key]

    def claims_changed(self) -> None:
        for key in self._await_claims:
            self._queue.add(key)

    async def _write(self, key: ObjectKey) -> Requeue | None:
        intent = self._intents.get(key)
        if intent is None:
            return None
        again = await (self._bind(key, intent) if isinstance(intent, Bind) else self._report(key, intent))
        if again is None and self._intents.get(key) is intent:
            del self._intents[key]
            self._await_claims.pop(key, None)
            self._told_claims.pop(key, None)
        return again

    # Binding

    async def _bind(self, key: ObjectKey, intent: Bind) -> Requeue | None:
        pod = self._pod(key)
        if pod is not None and pod.spec.volumes and claim_keys(pod):
            wait = await self._settle_claims(key, pod, intent)
            if wait is not None:
                return wait
            if self._cache.assumed(key) is None:
                return None
        if pod is not None and intent.demand is not None and intent.devices is not None:
            await self._devices.write(pod, intent.demand, intent.devices)
        try:
            await self._client.bind(key.name, intent.node, namespace=key.namespace, uid=intent.uid)
        except KubeError:
            if not await self._was_bound(key, intent):
                return None
        about = event_recorder.ObjectReference("v1", "Pod", key.namespace, key.name, intent.uid)
        self._events.record(about, "Normal", "Scheduled", f"Successfully assigned {key} to {intent.node}")
        return None

    async def _was_bound(self, key: ObjectKey, intent: Bind) -> bool:
        """Find out the result of a binding that seems to have failed; raises while it is not known."""
        try:
            now = await self._client.get(PODS, key.name, namespace=key.namespace, into=Pod)
        except NotFound:
            now = None
        if now is not None and now.metadata.uid == intent.uid:
            if now.spec.node_name == intent.node:
                return True
            if now.spec.node_name:
                self._cache.learn_bound(now)
                return False
        self._give_up(key)
        return False

    def _give_up(self, key: ObjectKey) -> None:
        self._cache.forget(key, self._pod(key))
        self._intents.pop(key, None)
        self._await_claims.pop(key, None)
        self._told_claims.pop(key, None)
        self._try_again(key)

    async def _settle_claims(self, key: ObjectKey, pod: Pod, intent: Bind) -> Requeue | None:
        """Write the chosen node to the claims, and wait until their volumes are bound."""
        open_claims = unbound_claims(pod, self._claim)
        if not open_claims:
            return None
        left = intent.since + self._settings.volume_seconds - self._clock.monotonic()
        if left < _MOMENT:
            self._give_up(key)
            return None
        self._await_claims[key] = None
        told = self._told_claims.setdefault(key, {})
        for object_key in open_claims:
            claim = self._claim(object_key)
            if claim is None or selected_node(claim) == intent.node:
                continue
            if object_key not in told:
                chosen = {"metadata": {"annotations": {SELECTED_NODE: intent.node}}}
                written = await self._client.patch(
                    PVCS, object_key.name, chosen, namespace=object_key.namespace
                )
                told[object_key] = int(written["metadata"]["resourceVersion"])
            elif int(claim["metadata"]["resourceVersion"]) > told[object_key]:
                self._give_up(key)  # the provisioner cannot create a volume for that node
                return None
        return Requeue(left)

    # Reports

    async def _report(self, key: ObjectKey, intent: Report) -> Requeue | None:
        pod = self._pod(key)
        if pod is None or pod.metadata.uid != intent.uid or pod.spec.node_name:
            return None
        status = self._news(pod, intent)
        if status:
            version = {"uid": intent.uid, "resourceVersion": pod.metadata.resource_version}
            try:
                await self._client.patch(
                    PODS,
                    key.name,
                    {"metadata": version, "status": status},
                    namespace=key.namespace,
                    how="strategic",
                    subresource="status",
                )
            except NotFound:
                return None
            except Conflict:
                return Requeue(_CONFLICT_SECONDS)  # our cache is outdated; retry
        if intent.reason == "Unschedulable" and (status or intent.victims) and not intent.repeats:
            about = event_recorder.ref(PODS, pod)
            self._events.record(about, "Warning", "FailedScheduling", intent.message)
        if intent.victims is not None:
            await self._remove_victims(intent)
        return None

    def _news(self, pod: Pod, intent: Report) -> dict[str, Any]:
        """Return the part of the status that has changed."""
        status: dict[str, Any] = {}
        told = condition(pod.status.conditions, "PodScheduled")
        same = told is not None and told.status == "False"
        if told is None or not same or (told.reason, told.message) != (intent.reason, intent.message):
            status["conditions"] = [
                condition_patch(
                    "PodScheduled",
                    "False",
                    intent.reason,
                    (told.last_transition_time if told and same else None) or self._now(),
                    intent.message,
                )
            ]
        if intent.nominated is not None and intent.nominated != pod.status.nominated_node_name:
            status["nominatedNodeName"] = intent.nominated or None
        return status

    async def _remove_victims(self, intent: Report) -> None:
        """Delete the victims. The nomination is written before, so that a restart finds it."""
        assert intent.victims is not None
        for victim in intent.victims.victims:
            message = "default-scheduler: preempting to accommodate a higher priority pod"
            target = condition_patch(
                "DisruptionTarget", "True", "PreemptionByScheduler", self._now(), message
            )
            told = {"status": {"conditions": [target]}}
            with suppress(Conflict):
                await patch_object(self._client, PODS, victim, told, status=True, how="strategic")
                if await delete_object(self._client, PODS, victim):
                    why = f"Preempted by pod {intent.uid} on node {intent.victims.node}"
                    self._events.record(event_recorder.ref(PODS, victim), "Normal", "Preempted", why)

    def _now(self) -> str:
        return rfc3339(self._clock.now())
