"""Reports why pods are pending: a condition that is always current, and an event per change.

`tell` only queues; `run` writes in the background, the newest message per pod, so that a thousand messages
never delay a decision. The condition is PodScheduled, as other schedulers write it, but never with the reason
Unschedulable: an autoscaler that does not know fractions would launch a node without a GPU.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from karpool.gpu.controller.worker_pods import WorkerPod
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.kube.api.client import Client
from karpool.kube.errors import Conflict, KubeError, NotFound
from karpool.kube.event_recorder import EventRecorder, ObjectReference
from karpool.model.devices.device_reasons import NoDevice
from karpool.model.devices.gpu_quota import QUOTAS
from karpool.model.devices.quota import QuotaRoom
from karpool.model.kubernetes.api_resources import PODS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339

log = structlog.get_logger(__name__)

MESSAGE_LIMIT = 1024
RETRY_SECONDS = 5.0
_WARNINGS = frozenset(
    (
        WaitReason.BACKOFF,
        WaitReason.EXHAUSTED,
        WaitReason.REJECTED,
        WaitReason.NEVER_FITS,
        WaitReason.QUOTA,
        WaitReason.BAD_REQUEST,
        WaitReason.NOT_ENFORCED,
    )
)
# Reasons with an event; the others are only in the condition.
_EVENTS = _WARNINGS | {WaitReason.REQUESTED, WaitReason.COMING, WaitReason.HANDING_OFF}


class WaitReporter:
    """`workers` are the current pods of our scheduler."""

    def __init__(
        self, client: Client, workers: Callable[[], Mapping[ObjectKey, WorkerPod]], events: EventRecorder
    ) -> None:
        self._client = client
        self._workers = workers
        self._events = events
        self._pending: dict[str, tuple[ObjectKey, WaitExplanation]] = {}
        self._told: dict[str, tuple[str, str]] = {}
        self._low_quotas: set[str] = set()  # namespaces
        self._refused_resizes: dict[str, NoDevice] = {}  # by uid
        self._wake = asyncio.Event()

    def tell(self, explanations: Iterable[WaitExplanation]) -> None:
        keys = {pod.uid: (key, pod.said, pod.is_ours) for key, pod in self._workers().items()}
        self._told = {uid: told for uid, told in self._told.items() if uid in keys}
        for explanation in explanations:
            if explanation.uid not in keys:
                continue
            key, said, is_ours = keys[explanation.uid]
            text = (str(explanation.reason), explanation.message[:MESSAGE_LIMIT])
            if self._told.get(explanation.uid, said) == text:
                continue
            if self._told.get(explanation.uid, said)[0] != text[0] and explanation.reason in _EVENTS:
                self.event(key, explanation.uid, explanation.reason, explanation.message)
            self._told[explanation.uid] = text
            if is_ours:  # the other scheduler writes the condition of its own pods
                self._pending[explanation.uid] = (key, explanation)
        if self._pending:
            self._wake.set()

    def event(self, key: ObjectKey, uid: str, reason: WaitReason, message: str) -> None:
        about = ObjectReference(PODS.api_version, PODS.kind, key.namespace, key.name, uid)
        kind = "Warning" if reason in _WARNINGS else "Normal"
        self._events.record(about, "Warning" if kind == "Warning" else "Normal", str(reason), message)

    def quota_alerts(
        self, rooms: Mapping[str, Sequence[QuotaRoom]], quota_keys: Mapping[str, ObjectKey]
    ) -> None:
        """Report an event on a quota that falls below its threshold; again only after it recovered."""
        low = {namespace: [room for room in figures if room.is_alert] for namespace, figures in rooms.items()}
        for namespace, figures in low.items():
            key = quota_keys.get(namespace)
            if figures and namespace not in self._low_quotas and key is not None:
                left = ", ".join(f"{room.resource} {room.available_percent} %" for room in figures)
                about = ObjectReference(QUOTAS.api_version, QUOTAS.kind, key.namespace, key.name)
                self._events.record(
                    about, "Warning", "QuotaAlert", f"this quota is almost used up: {left} left"
                )
        self._low_quotas = {namespace for namespace, figures in low.items() if figures}

    def refused_resizes(self, refusals: Mapping[str, NoDevice]) -> None:
        """Report an event on a running pod whose annotations request more than its devices have."""
        keys = {pod.uid: key for key, pod in self._workers().items()}
        for uid, refusal in refusals.items():
            if uid in keys and self._refused_resizes.get(uid) != refusal:
                about = ObjectReference(PODS.api_version, PODS.kind, keys[uid].namespace, keys[uid].name, uid)
                message = f"it keeps its allocation: {refusal.detail}"
                self._events.record(about, "Warning", "ResizeRefused", message)
        self._refused_resizes = dict(refusals)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                uid, (key, explanation) = next(iter(self._pending.items()))
                del self._pending[uid]
                await self._write(uid, key, explanation)

    async def _write(self, uid: str, key: ObjectKey, explanation: WaitExplanation) -> None:
        now = rfc3339(self._client.clock.now())
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": str(explanation.reason),
            "message": explanation.message[:MESSAGE_LIMIT],
            "lastTransitionTime": now,
        }
        worker = self._workers().get(key)
        if worker is None or worker.uid != uid or worker.is_bound:
            return
        try:
            try:
                await self._patch(uid, key, condition, worker.version)
            except Conflict:
                pod = await self._client.get(PODS, key.name, namespace=key.namespace, into=Pod)
                if pod.metadata.uid != uid or pod.spec.node_name:
                    return
                await self._patch(uid, key, condition, pod.metadata.resource_version)
        except NotFound:
            return
        except KubeError as error:
            self._told.pop(uid, None)  # the next step reports it again
            log.debug("explanation not written", pod=str(key), reason=str(error))
            await self._client.clock.sleep(RETRY_SECONDS)

    async def _patch(self, uid: str, key: ObjectKey, condition: dict[str, str], version: str) -> None:
        """Patch a version without a node: a pod that was bound since must not be reported as pending."""
        await self._client.patch(
            PODS,
            key.name,
            {
                "metadata": {"uid": uid, "resourceVersion": version},
                "status": {"conditions": [condition]},
            },
            namespace=key.namespace,
            how="strategic",
            subresource="status",
        )
