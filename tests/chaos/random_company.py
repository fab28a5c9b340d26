"""Random days of a company: people, machines and weather, all drawn from one seed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from random import Random

from karpool.kube.errors import KubeError
from karpool_fleet.cloud.cloud import CloudStockOut
from tests.chaos.company import AGGREGATED, BY_ROOM, Company
from tests.chaos.story import report
from tests.chaos.weather import KINDS, under

# What Karmada is asked for never exceeds what the members can hold, so that everybody can be served.
ROOM = 16


class Days:
    def __init__(self, at: Company, seed: int) -> None:
        self.at = at
        self.draw = Random(f"{seed}/days")
        self._number = 0
        self._placed: dict[str, int] = {}
        self._local: dict[str, int] = {}
        self._gpu: list[str] = []
        self._out: list[CloudStockOut] = []

    async def step(self) -> None:
        for _ in range(self.draw.randint(1, 2)):
            act = self.draw.choices(list(ACTIONS), list(ACTIONS.values()))[0]
            with suppress(KubeError):
                await act(self)
        kinds = self.draw.sample(list(KINDS), self.draw.choice((0, 1, 1, 2)))
        if kinds:
            self.at.tell(f"weather: {', '.join(kinds)}")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(under(self.at, *kinds))
            await asyncio.sleep(self.draw.choice((5, 30, 90, 240)))
        found = self.at.jury.violations
        assert not found, report(self.at)

    def end(self) -> None:
        for rule in self._out:
            rule.end()

    async def leave(self) -> None:
        for name in self._placed:
            await self.at.withdraw(name)
        for name in self._local:
            await self.at.uninstall(name)
        for name in self._gpu:
            await self.at.give_back_gpu(name)

    def forget(self) -> None:
        """A new day begins with nothing."""
        self._placed.clear()
        self._local.clear()
        self._gpu.clear()
        self._out.clear()

    # What people do

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    @property
    def _free(self) -> int:
        return ROOM - sum(self._placed.values())

    async def place(self) -> None:
        if self._free >= 1:
            name, replicas = self._name("app"), self.draw.randint(1, min(6, self._free))
            self._placed[name] = replicas
            await self.at.place(name, replicas, self.draw.choice((AGGREGATED, BY_ROOM)))

    async def scale(self) -> None:
        if self._placed:
            name = self.draw.choice(list(self._placed))
            most = self._free + self._placed[name]
            self._placed[name] = self.draw.randint(0, min(9, most))
            await self.at.scale(name, self._placed[name])

    async def withdraw(self) -> None:
        if self._placed:
            name = self.draw.choice(list(self._placed))
            del self._placed[name]
            await self.at.withdraw(name)

    async def install(self) -> None:
        if len(self._local) < 2:
            name = self._name("local")
            self._local[name] = self.draw.randint(2, 5)
            limit = self.draw.choice(({"maxUnavailable": 1}, {"minAvailable": "50%"}))
            await self.at.install(name, self._local[name], **limit)

    async def resize(self) -> None:
        if self._local:
            name = self.draw.choice(list(self._local))
            self._local[name] = self.draw.randint(1, 5)
            await self.at.resize(name, self._local[name])

    async def ask_for_gpu(self) -> None:
        if len(self._gpu) < 3:
            name = self._name("model")
            self._gpu.append(name)
            await self.at.ask_for_gpu(name, self.draw.choice(("4Gi", "8Gi", "20Gi")))

    async def give_back_gpu(self) -> None:
        if self._gpu:
            await self.at.give_back_gpu(self._gpu.pop(self.draw.randrange(len(self._gpu))))

    # What clouds do

    async def stock_out(self) -> None:
        cluster = self.draw.choice(("grows", "gpu"))
        self.at.tell(f"no stock in {cluster}")
        self._out.append(self.at.fleet.clusters[cluster].cloud.stock_out())

    async def stock(self) -> None:
        self.at.tell("stock is back")
        self.end()

    async def lose_machine(self) -> None:
        cloud = self.at.fleet.clusters[self.draw.choice(("grows", "gpu"))].cloud
        if cloud.instances:
            chosen = self.draw.choice(list(cloud.instances))
            self.at.tell(f"machine {chosen} dies")
            await cloud.terminate(chosen)

    async def bad_boot(self) -> None:
        self.at.tell("the next machine of gpu shows its devices late")
        self.at.fleet.clusters["gpu"].cloud.boot_badly(device_seconds=400)


ACTIONS: Mapping[Callable[[Days], Awaitable[None]], int] = {
    Days.place: 6,
    Days.scale: 6,
    Days.withdraw: 2,
    Days.install: 2,
    Days.resize: 4,
    Days.ask_for_gpu: 4,
    Days.give_back_gpu: 3,
    Days.stock_out: 1,
    Days.stock: 2,
    Days.lose_machine: 1,
    Days.bad_boot: 1,
}
