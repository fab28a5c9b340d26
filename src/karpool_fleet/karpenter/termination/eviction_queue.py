"""Evicts pods within their disruption budgets, and retries until they are gone."""

from karpool.kube.errors import Conflict, NotFound, Throttled
from karpool.kube.transport.backoff import Backoff
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.api_resources import PODS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.karpenter.shared import Shared

RETRY = Backoff(first=0.1, limit=10.0)


class EvictionQueue:
    """Evictions in progress. Every request has the uid, so that a new pod of the same name is not evicted."""

    def __init__(self, shared: Shared) -> None:
        context = shared.context
        self._client = context.client
        self._random = context.random
        self._view = shared.view
        self._say = shared.say
        self._queue: WorkQueue[tuple[ObjectKey, str]] = WorkQueue(context.clock, chance=context.random.random)
        self._reasons: dict[str, str] = {}
        self._tries: dict[str, int] = {}

    async def run(self) -> None:
        await self._queue.run(self._evict, workers=8)

    def add(self, pod: Pod, reason: str) -> None:
        uid = pod.metadata.uid
        if uid not in self._reasons:
            self._reasons[uid] = reason
            self._queue.add((ObjectKey(pod.metadata.namespace, pod.name), uid))

    async def _evict(self, work: tuple[ObjectKey, str]) -> Requeue | None:
        key, uid = work
        pod = self._view.pod(key)
        node = self._view.nodes.get(pod.spec.node_name) if pod is not None else None
        if (
            pod is None
            or pod.metadata.uid != uid
            or pod.is_terminating
            or node is None
            or node.metadata.deletion_timestamp is None
        ):
            self._done(uid)
            return None
        try:
            await self._client.evict(key.name, namespace=key.namespace, uid=uid)
        except Throttled:
            self._tries[uid] = self._tries.get(uid, 0) + 1
            return Requeue(RETRY.delay(self._tries[uid], self._random.random()))
        except (NotFound, Conflict):
            self._done(uid)
            return None
        self._say.say(PODS, pod, "Normal", "Evicted", f"Evicted pod: {self._reasons.get(uid, '')}")
        self._done(uid)
        return None

    def _done(self, uid: str) -> None:
        self._reasons.pop(uid, None)
        self._tries.pop(uid, None)
