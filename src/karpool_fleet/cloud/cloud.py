"""A simulated cloud: it launches machines, runs out of stock and reclaims spot machines.

It is outside of Kubernetes, as real clouds are: Karpenter and cluster-autoscaler launch machines here, and
kubelets boot on them. A launch tries offers in the given order and takes the first that is in stock. A
machine runs until it is terminated, the spot market reclaims it, or its zone fails.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import NamedTuple

from karpool.kube.clock import Clock
from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.taints import Taint
from karpool_fleet.cloud.delays import Delay, lognormal

SPOT_NOTICE_SECONDS = 120.0


class CloudOffer(NamedTuple):
    """One purchase option of an instance type."""

    type: str
    zone: str
    capacity_type: str

    def __str__(self) -> str:
        return f"{self.type} {self.capacity_type} in {self.zone}"


class InsufficientCapacity(Exception):
    """None of the offers was in stock; `offers` are those that were tried."""

    def __init__(self, offers: Sequence[CloudOffer]) -> None:
        self.offers = tuple(offers)
        shown = ", ".join(str(offer) for offer in offers[:3]) + (", ..." if len(offers) > 3 else "")
        super().__init__(f"no stock of {len(offers)} offerings: {shown}")


def offer_labels(instance_type: InstanceType, offer: CloudOffer) -> dict[str, str]:
    """Return the node labels that follow from the type and the offer."""
    fixed = {
        key: next(iter(values.values))
        for key, values in instance_type.requirements.items()
        if len(values.values) == 1 and not values.complement
    }
    return {**fixed, INSTANCE_TYPE: offer.type, ZONE: offer.zone, CAPACITY_TYPE: offer.capacity_type}


@dataclass
class Boot:
    """How a machine boots. `device_seconds` replaces the usual delay of the device plugin."""

    registers: bool = True
    becomes_ready: bool = True
    device_seconds: float | None = None
    times: int = 0  # number of further machines that boot like this


HEALTHY = Boot()


@dataclass
class Instance:
    """A machine. Its kubelet registers with `labels` and `taints`."""

    id: str
    type: InstanceType
    offer: CloudOffer
    launched_at: float  # monotonic: a jump of the wall clock does not affect booting
    tags: Mapping[str, str]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    refused: tuple[CloudOffer, ...] = ()  # earlier offers that were out of stock
    state: str = "running"  # running, interrupted (still runs), terminated
    ends_at: float | None = None  # when an interrupted machine will be gone
    boot: Boot = field(default_factory=lambda: HEALTHY)

    @property
    def provider_id(self) -> str:
        return f"embedded:///{self.offer.zone}/{self.id}"


@dataclass
class CloudStockOut:
    """A stock-out of matching offers, completely or after `left` more launches. Patterns as in file names."""

    type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"
    left: int = 0
    over: bool = False

    def end(self) -> None:
        self.over = True

    def covers(self, offer: CloudOffer) -> bool:
        return (
            not self.over
            and fnmatchcase(offer.type, self.type)
            and fnmatchcase(offer.zone, self.zone)
            and fnmatchcase(offer.capacity_type, self.capacity_type)
        )


@dataclass(frozen=True)
class CloudSettings:
    launch: Delay = field(default_factory=lambda: lognormal(3.0, 0.3))  # until the API answers a launch
    terminate: Delay = field(default_factory=lambda: lognormal(5.0, 0.3))  # until a machine is gone


class Cloud:
    def __init__(
        self, catalogue: Catalogue, clock: Clock, random: Random, settings: CloudSettings | None = None
    ) -> None:
        self.catalogue = catalogue
        self.instances: dict[str, Instance] = {}  # by id, without terminated ones
        self.launches = 0
        self.refusals = 0
        self._clock = clock
        self._random = random
        self._settings = settings or CloudSettings()
        self._stock_outs: list[CloudStockOut] = []
        self._failed_zones: set[str] = set()
        self._bad_boots: list[Boot] = []
        self._by_claim: dict[str, str] = {}
        self._listeners: list[Callable[[Instance], None]] = []

    def subscribe(self, listener: Callable[[Instance], None]) -> None:
        """Call the listener for every current machine, and for every change from now on."""
        self._listeners.append(listener)
        for instance in list(self.instances.values()):
            listener(instance)

    def unsubscribe(self, listener: Callable[[Instance], None]) -> None:
        self._listeners.remove(listener)

    # Launching

    async def launch(
        self,
        offers: Sequence[CloudOffer],
        *,
        tags: Mapping[str, str],
        labels: Mapping[str, str],
        taints: Sequence[Taint] = (),
        furnished: Callable[[InstanceType], InstanceType] = lambda bought: bought,
    ) -> Instance:
        """Launch the first offer in stock; raises InsufficientCapacity.

        A tag `claim` makes it idempotent. `furnished` adds what is installed on machines afterwards.
        """
        await self._clock.sleep(self._settings.launch.draw(self._random))
        if (known := self.bought_for(tags.get("claim", ""))) is not None:
            return known
        for position, offer in enumerate(offers):
            if self._take(offer):
                return self._start(
                    offer, tuple(offers[:position]), tags, labels, tuple(taints), furnished=furnished
                )
        self.refusals += 1
        raise InsufficientCapacity(offers)

    def adopt(self, instance: Instance) -> None:
        """Add a machine that was launched before this cloud started."""
        self.instances[instance.id] = instance
        if claim := instance.tags.get("claim"):
            self._by_claim[claim] = instance.id
        self._tell(instance)

    def find(self, provider_id: str) -> Instance | None:
        """Return the machine of a node with this provider id; None if it is gone."""
        instance = self.instances.get(provider_id.rpartition("/")[2])
        return instance if instance is not None and instance.provider_id == provider_id else None

    def bought_for(self, claim: str) -> Instance | None:
        """Return the machine whose tag `claim` has this value."""
        return self.instances.get(self._by_claim.get(claim, "")) if claim else None

    def is_in_stock(self, offer: CloudOffer) -> bool:
        return offer.zone not in self._failed_zones and all(
            rule.left > 0 for rule in self._stock_outs if rule.covers(offer)
        )

    async def terminate(self, instance_id: str) -> None:
        """Terminate a machine and wait until it is gone. Repeating it is safe."""
        instance = self.instances.get(instance_id)
        if instance is not None:
            await self._clock.sleep(self._settings.terminate.draw(self._random))
            self._end(instance)

    # Faults

    def stock_out(
        self, instance_type: str = "*", zone: str = "*", capacity_type: str = "*", *, left: int = 0
    ) -> CloudStockOut:
        rule = CloudStockOut(instance_type, zone, capacity_type, left)
        self._stock_outs.append(rule)
        return rule

    def fail_zone(self, zone: str) -> None:
        """Fail a zone: its machines end at once, and it has no stock until `restore_zone`."""
        self._failed_zones.add(zone)
        for instance in [instance for instance in self.instances.values() if instance.offer.zone == zone]:
            self._end(instance)

    def restore_zone(self, zone: str) -> None:
        self._failed_zones.discard(zone)

    def boot_badly(
        self,
        times: int = 1,
        *,
        registers: bool = True,
        becomes_ready: bool = True,
        device_seconds: float | None = None,
    ) -> Boot:
        """Make the next machines never register, never become ready, or offer their devices late."""
        boot = Boot(registers, becomes_ready, device_seconds, times)
        self._bad_boots.append(boot)
        return boot

    def interrupt(self, instance_id: str, notice_seconds: float = SPOT_NOTICE_SECONDS) -> None:
        """Announce that a spot machine is reclaimed, and end it after the notice."""
        instance = self.instances[instance_id]
        instance.state = "interrupted"
        instance.ends_at = self._clock.now() + notice_seconds
        asyncio.get_running_loop().call_later(notice_seconds, self._end, instance)
        self._tell(instance)

    def _take(self, offer: CloudOffer) -> bool:
        if not self.is_in_stock(offer):
            return False
        for rule in self._stock_outs:
            if rule.covers(offer):
                rule.left -= 1
        return True

    def _start(
        self,
        offer: CloudOffer,
        refused: tuple[CloudOffer, ...],
        tags: Mapping[str, str],
        labels: Mapping[str, str],
        taints: tuple[Taint, ...],
        *,
        furnished: Callable[[InstanceType], InstanceType],
    ) -> Instance:
        self.launches += 1
        bought = self.catalogue.types[offer.type]
        instance = Instance(
            id=f"i-{self._random.getrandbits(68):017x}",
            type=furnished(bought),
            offer=offer,
            launched_at=self._clock.monotonic(),
            tags=dict(tags),
            labels={**offer_labels(bought, offer), **labels},
            taints=taints,
            refused=refused,
            boot=self._next_boot(),
        )
        self.adopt(instance)
        return instance

    def _next_boot(self) -> Boot:
        for boot in self._bad_boots:
            if boot.times > 0:
                boot.times -= 1
                return boot
        return HEALTHY

    def _end(self, instance: Instance) -> None:
        if self.instances.pop(instance.id, None) is not None:
            self._by_claim.pop(instance.tags.get("claim", ""), None)
            instance.state = "terminated"
            self._tell(instance)

    def _tell(self, instance: Instance) -> None:
        for listener in list(self._listeners):
            listener(instance)
