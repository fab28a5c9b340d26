"""A browser for the tests of a module, and fleets that it looks at."""

from collections.abc import AsyncIterator

import pytest_asyncio

from karpool.dashboard.server.app import dashboard
from karpool.kube.clock import RealClock
from tests.dashboard.browser_page import Shown
from tests.dashboard.chromium import Browser, browser
from tests.dashboard.fleets import answers_for_people, clusters_of, merged, something_of_everything


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def small(chromium: Browser) -> AsyncIterator[Shown]:
    async with clusters_of(something_of_everything(RealClock().now())) as clusters:
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        async with dashboard(clients) as page:
            yield Shown(page, clusters, chromium)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def answering(chromium: Browser) -> AsyncIterator[Shown]:
    """With waiting pods, GPUs and moves beside everything else."""
    now = RealClock().now()
    fleet = something_of_everything(now)
    fleet["east"] = merged(fleet["east"], answers_for_people(now)["east"])
    async with clusters_of(fleet) as clusters:
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        async with dashboard(clients) as page:
            yield Shown(page, clusters, chromium)
