"""Terminates a node: keeps new pods away, drains it, terminates its machine.

A node with our finalizer that is being deleted is tainted, drained by `drain_plan`, and released when its
machine is gone. Deleting the node or its claim has the same effect. Pod events trigger it; only deadlines are
polled.
"""

from contextlib import suppress

from karpool.cluster.nodes.expected import same_taint
from karpool.kube.errors import Conflict
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.karpenter.objects import DISRUPTED, TERMINATION_FINALIZER, TERMINATION_TIMESTAMP, NodeClaim
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.karpenter.lifecycle.conditions import (
    DISRUPTION_REASON,
    DRAINED,
    FALSE,
    TRUE,
    UNKNOWN,
    VOLUMES_DETACHED,
)
from karpool_fleet.karpenter.provisioning.claims import wire_taint
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.karpenter.termination.claim_finalizer import (
    POLL_SECONDS,
    claim_conditions,
    is_held,
    terminating,
    write_conditions,
)
from karpool_fleet.karpenter.termination.drain_plan import DrainPlan, Forced, drain_plan
from karpool_fleet.karpenter.termination.eviction_queue import EvictionQueue
from karpool_fleet.runtime.controller import SOON, looking_again
from karpool_fleet.runtime.writes import delete_object

EXCLUDE_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"


class NodeTerminator:
    def __init__(self, shared: Shared) -> None:
        context, view = shared.context, shared.view
        self.queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self.evictions = EvictionQueue(shared)
        self._client = context.client
        self._clock = context.clock
        self._view = view
        self._machines = shared.machines
        self._say = shared.say
        self._settings = shared.settings
        view.nodes.subscribe(self._on_node)
        view.claims.subscribe(self._on_claim)
        view.on_pod.append(self._on_pod)

    async def run(self) -> None:
        await self.queue.run(looking_again(self.reconcile), workers=8)

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        if after is not None and after.metadata.deletion_timestamp is not None:
            self.queue.add(after.name)

    def _on_claim(self, before: NodeClaim | None, after: NodeClaim | None) -> None:
        claim = after or before
        if claim is not None and (after is None or after.metadata.deletion_timestamp is not None):
            for node in self._view.nodes_of(claim):
                if node.metadata.deletion_timestamp is not None:
                    self.queue.add(node.name)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        for pod in (before, after):
            if pod is not None and pod.spec.node_name:
                node = self._view.nodes.get(pod.spec.node_name)
                if node is not None and node.metadata.deletion_timestamp is not None:
                    self.queue.add(node.name)

    async def reconcile(self, name: str) -> Requeue | None:
        node = self._view.nodes.get(name)
        if node is None or node.metadata.deletion_timestamp is None or not is_held(node):
            return None
        claim = self._view.claim_of(node)
        if claim is not None and claim.metadata.deletion_timestamp is None:
            await self._view.claims.delete(claim)
            return SOON
        instance = self._machines.find(node.spec.provider_id)
        if instance is None:
            return await self._release(node)
        if (tainted := await self._close(node)) is None:
            return None
        if claim is None:  # its finalizer was removed; only the claim says how to drain
            self._machines.terminate(instance)
            return Requeue(POLL_SECONDS)
        if (wait := await self._drain(tainted, claim)) is not None:
            return wait
        self._machines.terminate(instance)
        await self._note_drained(claim)
        return Requeue(POLL_SECONDS)

    async def _close(self, node: Node) -> Node | None:
        """Keep new pods and load balancers away."""
        patch: dict[str, object] = {}
        taints = node.spec.taints or []
        if DISRUPTED not in taints:
            kept = [taint for taint in taints if not same_taint(taint, DISRUPTED)]
            patch["spec"] = {"taints": [wire_taint(taint) for taint in (*kept, DISRUPTED)]}
        if EXCLUDE_BALANCERS not in node.labels:
            patch["metadata"] = {"labels": {EXCLUDE_BALANCERS: "karpenter"}}
        return await self._view.nodes.patch(node, patch) if patch else node

    async def _drain(self, node: Node, claim: NodeClaim) -> Requeue | None:
        """Drain the node; return None when it is empty and has been tainted for long enough."""
        drained = condition(claim.status.conditions, DRAINED)
        if drained is not None and drained.status == TRUE:
            return None
        if drained is None:
            conditions = claim_conditions(claim, self._clock.now())
            conditions.set(DRAINED, UNKNOWN, "Draining", "Draining")
            await write_conditions(self._view, claim, conditions)
            return Requeue(0)
        now = self._clock.now()
        plan = drain_plan(self._view.pods_on(node.name).values(), now, _deadline(claim))
        await self._carry_out(plan, node, claim)
        if not plan.is_drained:
            return Requeue(plan.again_seconds) if plan.again_seconds is not None else Requeue(60.0)
        least = self._settings.drain_seconds_min
        passed = now - parse_rfc3339(drained.last_transition_time or "")
        # A start in the future was written by a clock that has been corrected since: do not wait for it.
        return Requeue(least - passed) if 0 <= passed < least else None

    async def _carry_out(self, plan: DrainPlan, node: Node, claim: NodeClaim) -> None:
        cause = condition(claim.status.conditions, DISRUPTION_REASON)
        reason = cause.reason if cause is not None and cause.reason else "Forceful Termination"
        for pod in plan.evict:
            self.evictions.add(pod, reason)
        for forced in plan.force:
            await self._force(forced)
        if plan.waiting:
            message = f"Failed to drain node, {plan.waiting} pods are waiting to be evicted"
            self._say.say(NODES, node, "Warning", "FailedDraining", message)

    async def _force(self, forced: Forced) -> None:
        pod, grace = forced.pod, forced.grace_seconds
        granted = f"The pod was granted {grace} seconds of grace-period"
        message = f"Deleting the pod to accommodate the terminationTime of the node. {granted}"
        with suppress(Conflict):
            if await delete_object(self._client, PODS, pod, grace_seconds=grace):
                self._say.say(PODS, pod, "Normal", "Disrupted", message)

    async def _note_drained(self, claim: NodeClaim) -> None:
        deadline = _deadline(claim)
        late = deadline is not None and self._clock.now() > deadline
        volumes = (VOLUMES_DETACHED, FALSE, "TerminationGracePeriodElapsed") if late else None
        await terminating(
            self._view,
            claim,
            self._clock,
            (DRAINED, TRUE, ""),
            volumes or (VOLUMES_DETACHED, TRUE, ""),
        )

    async def _release(self, node: Node) -> Requeue | None:
        """Release the node, whose machine is gone."""
        kept = [
            finalizer for finalizer in node.metadata.finalizers or () if finalizer != TERMINATION_FINALIZER
        ]
        await self._view.nodes.patch(node, {"metadata": {"finalizers": kept}})
        return None


def _deadline(claim: NodeClaim) -> float | None:
    text = claim.annotations.get(TERMINATION_TIMESTAMP)
    try:
        return None if text is None else parse_rfc3339(text)
    except ValueError:
        return None
