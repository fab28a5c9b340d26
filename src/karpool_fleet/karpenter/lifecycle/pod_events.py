"""Maintains `lastPodEventTime` of claims: when a pod last came to a node or left it.

Binding, terminating and ending count, except for pods of daemons. Several events within a few seconds count
as one. After a restart every pod is new, as upstream, and all windows start again.
"""

from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_daemon
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.runtime.controller import looking_again


class PodEventTimes:
    def __init__(self, shared: Shared) -> None:
        context = shared.context
        self._queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self._clock = context.clock
        self._view = shared.view
        self._seconds = shared.settings.pod_event_seconds
        self._view.on_pod.append(self._on_pod)

    async def run(self) -> None:
        await self._queue.run(looking_again(self.reconcile), workers=4)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        if after is not None and is_pod_event(before, after):
            claim = self._view.claim_on(after.spec.node_name)
            if claim is not None:
                self._queue.add(claim.name)

    async def reconcile(self, name: str) -> Requeue | None:
        claim = self._view.claims.get(name)
        if claim is None:
            return None
        now, last = self._clock.now(), claim.status.last_pod_event_time
        if last is not None and now - parse_rfc3339(last) < self._seconds:
            return None
        await self._view.claims.patch(claim, {"status": {"lastPodEventTime": rfc3339(now)}}, status=True)
        return None


def is_pod_event(before: Pod | None, after: Pod) -> bool:
    if not after.spec.node_name or is_daemon(after):
        return False
    if before is None or not before.spec.node_name:
        return True
    return (after.is_terminating and not before.is_terminating) or (
        after.is_terminal and not before.is_terminal
    )
