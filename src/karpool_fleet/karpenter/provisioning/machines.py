"""Launches the machine of a claim, once, and terminates it, in the background.

Both take seconds and do not block callers: a caller reconciles again when the machine has changed. The launch
carries the uid of the claim, so that a launch repeated after a crash finds the machine of the first.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import UNREGISTERED, NodeClaim
from karpool_fleet.cloud.cloud import Cloud, Instance, InsufficientCapacity
from karpool_fleet.karpenter.provisioning.market import LaunchMarket

CLUSTER_TAG = "cluster"
CLAIM_TAG = "claim"
NAME_TAG = "karpenter.sh/nodeclaim"


@dataclass(frozen=True, slots=True)
class OutOfStock:
    message: str


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    message: str


Outcome = Instance | OutOfStock | LaunchFailed


class Machines:
    def __init__(self, cluster: str, cloud: Cloud, market: LaunchMarket) -> None:
        self._cluster = cluster
        self._cloud = cloud
        self._market = market
        # Called with the name of the claim when a launch has ended.
        self.on_launched: list[Callable[[str], None]] = []
        self._outcomes: dict[str, Outcome] = {}  # by uid
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}  # by instance id
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Hold the running tasks; they end with this."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.get_running_loop().create_future()

    def of(self, claim: NodeClaim) -> Instance | None:
        """Return the machine of a claim, even if the claim does not name it yet."""
        return self._cloud.find(claim.provider_id) or self._cloud.bought_for(claim.metadata.uid)

    def find(self, provider_id: str) -> Instance | None:
        return self._cloud.find(provider_id)

    def terminate(self, instance: Instance) -> None:
        """Terminate a machine; the cloud reports when it is gone. Repeating it is safe."""
        if instance.id not in self._ending and self._group is not None:
            self._ending[instance.id] = self._group.create_task(self._terminate(instance.id))

    async def _terminate(self, instance_id: str) -> None:
        try:
            await self._cloud.terminate(instance_id)
        finally:
            del self._ending[instance_id]

    def abandon(self, uid: str) -> None:
        """Cancel a launch that is no longer needed; nothing has been bought yet."""
        if (task := self._running.get(uid)) is not None:
            task.cancel()
        self.forget(uid)

    def launch(self, claim: NodeClaim) -> Outcome | None:
        """Return the outcome of the launch; None while it runs. The first call starts it."""
        uid = claim.metadata.uid
        if uid in self._outcomes:
            return self._outcomes[uid]
        if uid not in self._running and self._group is not None:
            self._running[uid] = self._group.create_task(self._launch(claim))
        return None

    def forget(self, uid: str) -> None:
        """Drop the outcome, which was stored or does not matter any longer; the next launch is a new one."""
        self._outcomes.pop(uid, None)

    async def _launch(self, claim: NodeClaim) -> None:
        uid = claim.metadata.uid
        try:
            self._outcomes[uid] = await self._buy(claim)
        finally:
            del self._running[uid]
        for tell in self.on_launched:
            tell(claim.name)

    async def _buy(self, claim: NodeClaim) -> Outcome:
        try:
            offers = self._market.offers(claim)
        except Invalid as error:
            return LaunchFailed(str(error))
        if not offers and self._cloud.bought_for(claim.metadata.uid) is None:
            return OutOfStock("all requested instance types were unavailable during launch")
        try:
            instance = await self._cloud.launch(
                offers,
                tags={
                    CLUSTER_TAG: self._cluster,
                    CLAIM_TAG: claim.metadata.uid,
                    NAME_TAG: claim.name,
                },
                labels=claim.labels,
                taints=(UNREGISTERED, *claim.taints, *(claim.spec.startup_taints or ())),
                furnished=partial(self._market.overlaid, claim.pool_name),
            )
        except InsufficientCapacity as error:
            self._market.unavailable.mark(error.offers)
            return OutOfStock(f"insufficient capacity, {error}")
        self._market.unavailable.mark(instance.refused)
        return instance
