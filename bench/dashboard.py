"""What the dashboard costs with 2,000 nodes and some 8,000 pods in one cluster.

Answers are measured as a browser asks for them, over HTTP on loopback, each after a change of a node, so
that the server has to work them out anew; server, clusters and client share one process. A plan is not
made anew with every change. "Shown" is real Chromium, when there is one, from the address to the last
node drawn, without a cache.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from tests.dashboard.chromium import DESK, browser, executable
from tests.dashboard.fleets import clusters_of, large

from karpool.dashboard.server.app import ServedDashboard, dashboard
from karpool.kube.api.client import Client
from karpool.model.kubernetes.api_resources import NODES

COUNT = 2000
RUNS = 7
ANSWERS = {
    "fleet": "api/v1/fleet",
    "nodes": "api/v1/clusters/east/nodes",
    "one node": "api/v1/clusters/east/nodes/ip-10-0-0-7",
    "consolidation, plan at hand": "api/v1/consolidation",
}

Result = dict[str, Any]


def benchmarks() -> Iterator[Callable[[], Result]]:
    for name, path in ANSWERS.items():
        yield _asking(name, path)
    yield first_read
    yield size
    if executable() is not None:
        yield shown


def _asking(name: str, path: str) -> Callable[[], Result]:
    return lambda: answer(name, path)


def answer(name: str, path: str) -> Result:
    async def ask(page: ServedDashboard, admin: Client) -> list[float]:
        values = []
        async with aiohttp.ClientSession(page.url) as session:
            await (await session.get(f"/{path}")).read()  # the plan, where one is needed
            for number in range(RUNS):
                await changed(page, admin, number)
                start = time.perf_counter()
                await (await session.get(f"/{path}")).read()
                values.append((time.perf_counter() - start) * 1e3)
        return values

    return {
        "name": f"dashboard: {name}, {COUNT} nodes",
        "unit": "ms",
        "values": on_a_page(ask),
        "target": None,
    }


def first_read() -> Result:
    """From the start to the first answer with everything in it."""

    async def main() -> float:
        async with clusters_of(large(COUNT)) as clusters:
            start = time.perf_counter()
            async with dashboard({"east": clusters["east"].client("dashboard")}) as page:
                await everything_read(page)
                return time.perf_counter() - start

    values = [asyncio.run(main()) for _ in range(3)]
    return {
        "name": f"dashboard: everything read, {COUNT} nodes",
        "unit": "s",
        "values": values,
        "target": None,
    }


def size() -> Result:
    async def ask(page: ServedDashboard, admin: Client) -> list[float]:
        async with aiohttp.ClientSession(page.url, auto_decompress=False) as session:
            return [len(await (await session.get(f"/{ANSWERS['nodes']}")).read()) / 1024]

    return {
        "name": f"dashboard: nodes on the wire, {COUNT} nodes",
        "unit": "KiB",
        "values": on_a_page(ask),
        "target": None,
    }


def shown() -> Result:
    async def look(page: ServedDashboard, admin: Client) -> list[float]:
        values = []
        async with browser() as chromium:
            for _ in range(5):
                tab = await chromium.tab()
                await tab.screen(DESK)
                start = time.perf_counter()
                await tab.open(page.url)
                await tab.until(f"document.querySelectorAll('.cell').length === {COUNT}")
                values.append(time.perf_counter() - start)
        return values

    return {
        "name": f"dashboard: page shown in Chromium, {COUNT} nodes",
        "unit": "s",
        "values": on_a_page(look),
        "target": None,
    }


def on_a_page(work: Callable[[ServedDashboard, Client], Any]) -> list[float]:
    async def main() -> list[float]:
        async with AsyncExitStack() as stack:
            clusters = await stack.enter_async_context(clusters_of(large(COUNT)))
            clients = {"east": clusters["east"].client("dashboard")}
            page = await stack.enter_async_context(dashboard(clients))
            await everything_read(page)
            found: list[float] = await work(page, clusters["east"].client("admin"))
            return found

    return asyncio.run(main())


async def everything_read(page: ServedDashboard) -> None:
    with page.collector.bell.listen() as listener:
        while page.collector.not_ready() is not None:
            await listener.rung()


async def changed(page: ServedDashboard, admin: Client, number: int) -> None:
    """A node says something else: answers about nodes are out of date."""
    with page.collector.bell.listen() as listener:
        await admin.patch(NODES, "ip-10-0-0-9", {"spec": {"unschedulable": number % 2 == 0}})
        await listener.rung()
