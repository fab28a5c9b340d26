"""How tests look at the page: its views and screens, what says that a view stands, and pictures of it."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from karpool.dashboard.server.app import ServedDashboard
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.dashboard.chromium import DESK, PHONE, Browser, Tab, executable

in_chromium = pytest.mark.skipif(
    executable() is None, reason="did not run: there is no chromium to run it in"
)
HERE = Path(__file__).parent
ACCESSIBILITY = (HERE / "accessibility.js").read_text(encoding="utf-8")
PICTURES = os.environ.get("KARPOOL_SCREENSHOTS", "build/screenshots" if os.environ.get("CI") else "")
VIEWS = (
    "fleet",
    "nodes",
    "waiting",
    "gpus",
    "consolidation",
    "placements",
    "promises",
    "scale-ups",
    "events",
    "time",
)
TABLET = {"width": 820, "height": 1100, "deviceScaleFactor": 1, "mobile": False}
SCREENS = {
    "light": (DESK, False),
    "dark": (DESK, True),
    "phone": (PHONE, False),
    "phone-dark": (PHONE, True),
    "tablet": (TABLET, False),
}
REFUSED = "[...document.querySelectorAll('#why-body > p.badge.bad')].map((each) => each.innerText).join()"
LIVE = "document.getElementById('live').dataset.state === 'live' && document.querySelector('#glance .fact')"
OPENED = "document.querySelector('#why[open]') && document.getElementById('why-body').innerText !== 'Asking…'"


class Shown:
    """A fleet, its dashboard, and how to look at it."""

    def __init__(
        self, page: ServedDashboard, clusters: Mapping[str, EmbeddedCluster], chromium: Browser
    ) -> None:
        self.page, self.clusters, self.chromium = page, clusters, chromium

    async def tab(self, view: str = "fleet", screen: str = "light") -> Tab:
        tab = await self.chromium.tab()
        size, dark = SCREENS[screen]
        await tab.screen(size, dark=dark)
        await tab.open(f"{self.page.url}#/{view}")
        await shows(tab, view)
        return tab


async def shows(tab: Tab, view: str) -> None:
    await tab.until(f"document.getElementById('main').dataset.shown === '{view}' && {LIVE}")


async def keep_picture(tab: Tab, name: str) -> None:
    if PICTURES:
        content = await tab.screenshot()
        folder = HERE.parents[1] / PICTURES  # an absolute one stays what it is
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(content)
