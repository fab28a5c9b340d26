"""Buy the machine of a claim, once, and give it back, in the background.

Both take seconds, so nobody waits for them: whoever asked looks again when the
machine has changed. The claim's uid goes with the purchase, so that a launch that is
repeated after a crash finds the machine that was bought before.
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
        self.on_launched: list[Callable[[str], None]] = []  # told the claim's name when there is an outcome
        self._outcomes: dict[str, Outcome] = {}  # by uid
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}  # by instance id
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Holds what is under way; it ends with this."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.get_running_loop().create_future()

    def of(self, claim: NodeClaim) -> Instance | None:
        """The machine of a claim, also when the claim does not say so yet."""
        return self._cloud.find(claim.provider_id) or self._cloud.bought_for(claim.metadata.uid)

    def find(self, provider_id: str) -> Instance | None:
        return self._cloud.find(provider_id)

    def terminate(self, instance: Instance) -> None:
        """The cloud tells when it is gone. Safe to repeat."""
        if instance.id not in self._ending and self._group is not None:
            self._ending[instance.id] = self._group.create_task(self._terminate(instance.id))

    async def _terminate(self, instance_id: str) -> None:
        try:
            await self._cloud.terminate(instance_id)
        finally:
            del self._ending[instance_id]

    def abandon(self, uid: str) -> None:
        """Stop a launch that nobody waits for any more; nothing has been bought yet."""
        if (task := self._running.get(uid)) is not None:
            task.cancel()
        self.forget(uid)

    def launch(self, claim: NodeClaim) -> Outcome | None:
        """What came of it; None while it is under way. Starts it if nobody has."""
        uid = claim.metadata.uid
        if uid in self._outcomes:
            return self._outcomes[uid]
        if uid not in self._running and self._group is not None:
            self._running[uid] = self._group.create_task(self._launch(claim))
        return None

    def forget(self, uid: str) -> None:
        """The outcome has been written down, or does not matter any more; a next launch is a new one."""
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
