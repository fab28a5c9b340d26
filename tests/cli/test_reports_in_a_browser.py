"""Reports of plans and simulations as people open them: no empty picture, nothing cut off, also on paper.

Needs Chromium; without it these say that they did not run. KARPOOL_SCREENSHOTS=DIR keeps pictures there.
"""

import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from karpool.cli.embedded.simulate_html import report
from karpool.cli.main import run
from karpool.model.catalogue.files import load_shipped
from karpool_fleet.simulation.figures import FIGURES, FigureSeries, Result
from tests.cli.example_fleet import example_fleet
from tests.dashboard.chromium import DESK, PHONE, Browser, browser, executable

pytestmark = [
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(executable() is None, reason="did not run: there is no chromium to run it in"),
]
TABLET = {"width": 820, "height": 1100, "deviceScaleFactor": 1, "mobile": False}
# A picture without a mark in it is empty; grid and axes are no marks.
EMPTY = """[...document.querySelectorAll("svg")].filter((picture) =>
    ![...picture.querySelectorAll("polyline, circle, rect, path")].some((mark) =>
        !mark.classList.contains("grid") && !mark.classList.contains("axis") && mark.getBBox)).length"""
WIDER = "document.documentElement.scrollWidth - innerWidth"


def simulated(variants: int) -> str:
    figures = dict.fromkeys(FIGURES) | {"cost": 1.0, "evictions": 2.0}
    series = {
        "nodes": FigureSeries("nodes", "nodes", [1.0, 2.0]),
        "stuck": FigureSeries("stuck pods", "pods", [0.0, 0.0]),
    }
    results = [
        Result(f"a-rather-long-name-{number}", 1, 3600.0, figures, {}, [0.0, 60.0], series)
        for number in range(variants)
    ]
    return report("Nothing to see", "described", results, [])


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    fleet = tmp_path_factory.mktemp("reports") / "fleet.yaml"
    fleet.write_text(yaml.safe_dump_all(example_fleet(load_shipped("us-east-1"))))
    texts = {"simulation": simulated(1), "simulation of eight": simulated(8)}
    for name, flags in (("plan", []), ("plans", ["--threshold", "1", "--threshold", "3"])):
        with pytest.MonkeyPatch.context() as patch:
            written: list[str] = []
            patch.setattr("karpool.cli.inspect.plan.emit", written.append)
            assert run(["plan", "--snapshot", str(fleet), "-o", "html", *flags], "karpool") == 0
        texts[name] = written[0]
    return texts


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as started:
        yield started


@pytest.mark.parametrize("name", ["plan", "plans", "simulation", "simulation of eight"])
async def test_a_report_fits_and_has_no_empty_picture(
    reports: dict[str, str], chromium: Browser, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(reports[name])
    tab = await chromium.tab()
    for screen, size in (("desk", DESK), ("tablet", TABLET), ("phone", PHONE)):
        await tab.screen(size)
        await tab.open(path.as_uri())
        await tab.until("document.readyState === 'complete' && document.querySelector('h1')")
        assert await tab.evaluate(WIDER) <= 0, screen
        assert await tab.evaluate(EMPTY) == 0, screen
        if pictures := os.environ.get("KARPOOL_SCREENSHOTS"):
            (Path(pictures) / f"report-{name}-{screen}.png").write_bytes(await tab.screenshot())
    assert tab.messages == []

    printed = base64.b64decode((await tab.call("Page.printToPDF", printBackground=False))["data"])
    assert printed.startswith(b"%PDF-")
    await tab.call("Emulation.setEmulatedMedia", media="print")
    await tab.screen({"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False})
    await tab.call("Emulation.setEmulatedMedia", media="print")
    assert await tab.evaluate(WIDER) <= 0, "on paper something would be cut off"
    assert await tab.evaluate("getComputedStyle(document.querySelector('.copied')).display") == "none"


async def test_what_was_0_all_the_time_is_said_and_not_drawn() -> None:
    page = simulated(2)

    assert "Always 0: stuck pods." in page
    assert page.count("<svg") == 2  # cost against disruption, and nodes
    assert simulated(1).count("<svg") == 1
