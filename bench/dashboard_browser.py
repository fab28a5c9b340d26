"""The dashboard of 100 clusters with 1,000 nodes each, in real Chromium.

Clusters are embedded API servers in this process, read by informers; everything between them and the pixels
is the product. What is measured: how soon the first view stands once the fleet has been read, also when
every cluster has just changed; frames while 100,000 rows are scrolled; what the page holds afterwards; and
what the process takes while nothing changes and a page is open. That last figure holds the work of the 100
embedded API servers too, so that it is an upper bound.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.dashboard.chromium import DESK, Browser, Tab, browser, executable
from tests.dashboard.fleets import clusters_of, nodes_and_pods

from karpool.cli.logging import configure
from karpool.dashboard.server.app import ServedDashboard, dashboard
from karpool.kube.api.client import Client
from karpool.model.kubernetes.api_resources import NODES

CLUSTERS = 100
NODES_EACH = 1000
RUNS = 5
IDLE_SECONDS = 60.0
FRAMES = 600
Result = dict[str, Any]
Add = Callable[[str, str, list[float], float | None], None]

FIRST_VIEW = """document.getElementById("main").dataset.shown === "fleet"
    && document.querySelectorAll("main tbody tr").length >= 10
    && document.getElementById("glance").innerText.includes("%s")"""
# One step a frame, as a hand on a wheel makes it; what comes back are the gaps between frames in ms.
SCROLL = """new Promise((done) => {
    const place = document.querySelector("main .tall"), gaps = [];
    let before;
    const step = (at) => {
        if (before !== undefined) gaps.push(at - before);
        before = at;
        place.scrollTop += %d;
        if (gaps.length < %d) requestAnimationFrame(step); else done(gaps);
    };
    requestAnimationFrame(step);
})"""
VIEWS = ("nodes", "waiting", "gpus", "placements", "promises", "scale-ups", "events", "time", "fleet")


def benchmarks() -> Iterator[Result]:
    if executable() is not None:
        yield from asyncio.run(measured())


async def measured() -> list[Result]:
    results: list[Result] = []

    def add(name: str, unit: str, values: list[float], target: float | None) -> None:
        what = f"page of {CLUSTERS * NODES_EACH:,} nodes: {name}"
        results.append({"name": what, "unit": unit, "values": values, "target": target})

    async with fleet() as (page, admins, chromium):
        try:
            await measure(page, admins, chromium, add)
        except Exception:  # what was measured before it stays
            traceback.print_exc()
    return results


async def measure(page: ServedDashboard, admins: list[Client], chromium: Browser, add: Add) -> None:
    add("first view", "s", [await first_view(page, chromium) for _ in range(RUNS)], 1.0)
    costs = [await cost_of_first_view(page, chromium) for _ in range(RUNS)]
    add("first view, processor time of the server", "s", [server for server, _ in costs], None)
    add("first view, processor time of the page", "s", [drawing for _, drawing in costs], None)
    seconds = []
    for number in range(RUNS):
        await everything_changes(admins, number)
        seconds.append(await first_view(page, chromium))
    add("first view after all changed", "s", seconds, 1.0)

    tab = await opened(page, chromium, "nodes")
    held = await heap(tab)
    add("node table, memory of the page at first", "MiB", [held], None)
    for speed, pixels in (("slowly", 40), ("fast", 400)):
        add(f"node table, frames a second, scrolled {speed}", "/s", await scrolled(tab, pixels), 60.0)
        # What a frame takes of the page's thread, however busy the machine is; 60 a second have 16.7 ms each.
        spent = page_seconds(await tab.traced(scrolled(tab, pixels)))
        add(f"node table, processor time of a frame, {speed}", "ms", [1000 * spent / FRAMES], 16.7)
    for _ in range(3):
        await scrolled(tab, 2000)
    add("node table, memory after 80,000 rows", "MiB", [await heap(tab)], 2 * held)
    for view in VIEWS:
        await tab.evaluate(f"location.hash = '#/{view}'")
        await tab.until(f"document.getElementById('main').dataset.shown === '{view}'", seconds=120)
    add("memory after every view", "MiB", [await heap(tab)], 2 * held)

    began, spent = time.monotonic(), time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    used = (time.process_time() - spent) / (time.monotonic() - began)
    add("idle, share of a core, API servers included", "%", [100 * used], 5.0)


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[ServedDashboard, list[Client], Browser]]:
    configure(verbosity=0)
    names = [f"cluster-{number:03}" for number in range(CLUSTERS)]
    objects = {
        name: nodes_and_pods(NODES_EACH, seed=number, prefix=name) for number, name in enumerate(names)
    }
    async with AsyncExitStack() as stack:
        clusters = await stack.enter_async_context(clusters_of(objects))
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        page = await stack.enter_async_context(dashboard(clients))
        with page.collector.bell.listen() as listener:
            while page.collector.not_ready() is not None:
                await listener.rung()
        admins = [cluster.client("admin") for cluster in clusters.values()]
        yield page, admins, await stack.enter_async_context(browser())


async def everything_changes(admins: list[Client], number: int) -> None:
    for admin in admins:
        body = {"spec": {"unschedulable": number % 2 == 0}}
        await admin.patch(NODES, f"{admin.name}-10-0-0-9", body)


async def opened(page: ServedDashboard, chromium: Browser, view: str) -> Tab:
    tab = await chromium.tab()
    await tab.screen(DESK)
    await tab.open(f"{page.url}#/{view}")
    await tab.until(f"document.getElementById('main').dataset.shown === '{view}'", seconds=120)
    return tab


async def first_view(page: ServedDashboard, chromium: Browser) -> float:
    """Seconds from the address to the drawn table, as the page's own clock has it, with nothing cached."""
    tab = await chromium.tab()
    await tab.screen(DESK)
    await drawn(tab, page)
    milliseconds: float = await tab.evaluate("performance.now()")
    await tab.open("about:blank")
    return milliseconds / 1000


async def cost_of_first_view(page: ServedDashboard, chromium: Browser) -> tuple[float, float]:
    """What it takes of a processor, however busy that is: of this process, and of the page's thread."""
    tab = await chromium.tab()
    await tab.screen(DESK)
    began = time.process_time()
    spent = page_seconds(await tab.traced(drawn(tab, page)))
    server = time.process_time() - began
    await tab.open("about:blank")
    return server, spent


async def drawn(tab: Tab, page: ServedDashboard) -> None:
    await tab.open(page.url)
    await tab.until(FIRST_VIEW % f"{CLUSTERS * NODES_EACH:,}", seconds=120)


async def scrolled(tab: Tab, pixels: int) -> list[float]:
    """Frames a second, over pieces of a tenth of all frames."""
    gaps: list[float] = await tab.evaluate(SCROLL % (pixels, FRAMES))
    piece = FRAMES // 10
    return [piece * 1000 / sum(gaps[at : at + piece]) for at in range(0, FRAMES, piece)]


def page_seconds(trace: list[dict[str, Any]]) -> float:
    """Processor time of the main threads of pages: scripts, styles, layout, everything."""
    threads = {
        (event["pid"], event["tid"])
        for event in trace
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = (
        event for event in trace if event["name"] == "RunTask" and (event["pid"], event["tid"]) in threads
    )
    return float(sum(event.get("tdur", 0) for event in tasks)) / 1e6


async def heap(tab: Tab) -> float:
    """MiB of live objects, after rubbish was collected."""
    await tab.call("HeapProfiler.collectGarbage")
    return float((await tab.call("Runtime.getHeapUsage"))["usedSize"]) / 2**20
