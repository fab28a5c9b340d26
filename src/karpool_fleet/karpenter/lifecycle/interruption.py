"""Handles machines that end by themselves: spot interruption notices and unannounced terminations.

A notice deletes the claim, so that its pods move while the machine still runs, and excludes the offering from
the next plans. An unannounced termination is noticed through the same channel, or by a sweep every two
minutes, which also finds machines without a claim.
"""

import structlog

from karpool.kube.errors import KubeError
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODES
from karpool_fleet.cloud.cloud import Instance
from karpool_fleet.karpenter.provisioning.machines import CLAIM_TAG, CLUSTER_TAG, NAME_TAG
from karpool_fleet.karpenter.shared import Shared

log = structlog.get_logger(__name__)


class Interruptions:
    def __init__(self, shared: Shared) -> None:
        context = shared.context
        self._shared = shared
        self._clock = context.clock
        self._cluster = context.cluster
        self._view = shared.view
        self._cloud = shared.cloud
        self._queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)

    def heard(self, instance: Instance) -> None:
        """Handle a change of a machine."""
        if instance.tags.get(CLUSTER_TAG) != self._cluster or not self._shared.settings.hears_interruptions:
            return
        if instance.state == "interrupted":
            self._shared.market.unavailable.mark((instance.offer,))
        if instance.state != "running":
            self._queue.add(instance.tags.get(NAME_TAG, ""))

    async def run(self) -> None:
        await self._queue.run(self._reconcile)

    async def _reconcile(self, name: str) -> Requeue | None:
        claim = self._view.claims.get(name)
        if claim is None or claim.metadata.deletion_timestamp is not None or not claim.provider_id:
            return None
        instance = self._cloud.find(claim.provider_id)
        if instance is not None and instance.state != "interrupted":
            return None
        if instance is None:
            self._tell(claim, "InstanceTerminating", "Instance is terminating")
        else:
            self._tell(claim, "SpotInterrupted", "Spot interruption warning was triggered")
        await self._view.claims.delete(claim)
        return None

    def _tell(self, claim: NodeClaim, reason: str, message: str) -> None:
        self._shared.say.say(NODECLAIMS, claim, "Warning", reason, message)
        for node in self._view.nodes_of(claim):
            self._shared.say.say(NODES, node, "Warning", reason, message)

    # The sweep

    async def sweep(self) -> None:
        """Sweep every two minutes, until cancelled."""
        while True:
            await self._clock.sleep(self._shared.settings.garbage_seconds)
            try:
                await self._delete_claims_without_machine()
                await self._terminate_machines_without_claim()
            except KubeError as error:
                log.warning("sweep interrupted", reason=str(error))

    async def _delete_claims_without_machine(self) -> None:
        for claim in self._view.claims.objects():
            if claim.is_registered and not claim.is_deleting and self._cloud.find(claim.provider_id) is None:
                log.info("claim deleted", claim=claim.name, reason="its machine is gone")
                await self._view.claims.delete(claim)

    async def _terminate_machines_without_claim(self) -> None:
        uids = {claim.metadata.uid for claim in self._view.claims.objects()}
        for instance in list(self._cloud.instances.values()):
            uid = instance.tags.get(CLAIM_TAG, "")
            if instance.tags.get(CLUSTER_TAG) != self._cluster or not uid or uid in uids:
                continue
            if self._clock.monotonic() - instance.launched_at < self._shared.settings.orphan_seconds:
                continue
            # The claim may be newer than our cache, and a termination cannot be undone.
            if not await self._view.claims.exists(instance.tags.get(NAME_TAG, ""), uid):
                log.info("machine terminated", machine=instance.id, reason="no claim speaks for it")
                self._shared.machines.terminate(instance)
