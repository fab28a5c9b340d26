"""The page in a real browser: everything shows, nothing hostile runs, keyboard and phone are enough.

Needs Chromium (Debian: `apt-get install chromium`); without it these say that they did not run. With
KARPOOL_SCREENSHOTS=DIR every view is kept there as a picture; in CI (`CI` is set) in build/screenshots.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from karpool.dashboard.api.list_views import ShownFile
from karpool.dashboard.pages.collector import CollectorSettings
from karpool.dashboard.server.app import dashboard
from karpool.kube.clock import RealClock
from karpool.kube.transport.prometheus import PrometheusServer
from karpool.model.kubernetes.api_resources import EVENTS, NODES
from tests.dashboard.browser_page import (
    ACCESSIBILITY,
    HERE,
    LIVE,
    OPENED,
    SCREENS,
    VIEWS,
    Shown,
    in_chromium,
    keep_picture,
    shows,
)
from tests.dashboard.chromium import DESK, Browser, Failed
from tests.dashboard.fleets import (
    HOSTILE,
    HOSTILE_IMAGE,
    answers_for_people,
    clusters_of,
    event,
    merged,
    something_of_everything,
    with_hostile_names,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), in_chromium]
AXE = (HERE / "axe" / "axe.min.js").read_text(encoding="utf-8")
# Of Deque's axe-core: what is serious or critical, with the first place where it is.
SERIOUS = """axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations
  .filter((rule) => ["serious", "critical"].includes(rule.impact))
  .map((rule) => `${rule.id}: ${rule.nodes.length} times, first ${rule.nodes[0].html.slice(0, 200)} `
    + rule.nodes[0].failureSummary))"""
FAULTS = """(() => {
  const add = (tag, text, look = {}) => {
    const made = document.createElement(tag);
    made.textContent = text;
    Object.assign(made.style, look);
    document.getElementById("main").append(made);
    return made;
  };
  add("button", ""); add("img", ""); add("h4", "deep");
  add("p", "").id = "glance";
  add("p", "pale", { color: "rgb(200, 205, 210)" });
  add("button", "x", { width: "9px", height: "9px", minHeight: "0" });
  add("div", "wide", { width: "3000px" });
})()"""


@pytest.mark.long
@pytest.mark.parametrize("screen", SCREENS)
async def test_every_view_is_accessible_and_complains_of_nothing(answering: Shown, screen: str) -> None:
    tab = await answering.tab(screen=screen)
    await tab.evaluate(AXE)
    for view in VIEWS:
        await tab.evaluate(f"location.hash = '#/{view}'")
        await shows(tab, view)
        await keep_picture(tab, f"{screen}-{view}")

        assert await tab.evaluate(ACCESSIBILITY) == [], view
        assert await tab.evaluate(SERIOUS) == [], view

    assert tab.messages == []


@pytest.mark.long
async def test_the_judge_of_others_sees_what_is_wrong(small: Shown) -> None:
    tab = await small.tab()
    await tab.evaluate(FAULTS)
    await tab.evaluate(AXE)

    found = " ".join(await tab.evaluate(SERIOUS))
    assert "button-name" in found and "image-alt" in found and "color-contrast" in found


@pytest.mark.long
async def test_every_state_has_a_link_and_the_history_leads_back(answering: Shown) -> None:
    tab = await answering.tab("nodes")
    rows = "document.querySelectorAll('main tbody tr').length"
    await tab.until(f"{rows} > 10")
    await tab.evaluate("document.querySelector('th[aria-sort] button').click()")
    await tab.until("location.hash.includes('sort=name')")
    first = "document.querySelector('main tbody tr b').innerText"
    ascending = await tab.until(first)
    await tab.evaluate("document.querySelector('th[aria-sort] button').click()")
    await tab.until(f"location.hash.includes('sort=-name') && {first} !== {ascending!r}")
    link = await tab.evaluate("location.href")

    other = await answering.chromium.tab()
    await other.screen(DESK)
    await other.open(f"{link}&q=gpu&cluster=east")
    await shows(other, "nodes")
    await other.until(f"{rows} === 2 && {first} === 'gpu-b'")
    assert await other.evaluate("document.getElementById('node-text').value") == "gpu"
    assert await other.evaluate("document.getElementById('cluster').value") == "east"

    await tab.evaluate("history.back()")
    await tab.until(f"location.hash.includes('sort=name') && {first} === {ascending!r}")
    await tab.evaluate("history.forward()")
    await tab.until(f"{first} !== {ascending!r}")


async def test_everything_is_found_from_one_field(answering: Shown) -> None:
    tab = await answering.tab()
    await tab.press("/")
    assert await tab.evaluate("document.activeElement.id") == "search"
    await tab.evaluate(
        "(() => { const find = document.getElementById('search'); find.value = 'stuck';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    await tab.until("document.querySelector('#hits a')?.innerText.includes('team/stuck-0')")
    await tab.press("ArrowDown")
    await tab.press("Enter")
    await tab.until(f"{OPENED} && document.getElementById('why-body').innerText.includes('fits nowhere')")


@pytest.mark.long
@pytest.mark.parametrize("view", VIEWS)
async def test_hostile_words_in_a_link_stay_words(answering: Shown, view: str) -> None:
    tab = await answering.tab()
    words = "%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E%E2%80%AEgpj%1B"
    asked = "&".join(f"{name}={words}" for name in ("q", "cluster", "sort", "range", "open", "begin", "why"))
    link = f"#/{view}?{asked}"
    await tab.evaluate(f"location.hash = {link!r}")
    await tab.until(OPENED)

    assert await tab.evaluate("window.hacked === undefined")
    assert await tab.evaluate("document.body.innerHTML.match(/[\\u202a-\\u202e\\u001b]/) === null")
    assert await tab.evaluate("document.querySelectorAll('body script, main img').length") == 0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hostile(chromium: Browser) -> AsyncIterator[Shown]:
    """Everything is called something that a page, a terminal or a reader could fall for."""
    now = RealClock().now()
    fleet = something_of_everything(now)
    fleet["east"] = merged(fleet["east"], answers_for_people(now)["east"])
    async with clusters_of(with_hostile_names(fleet)) as clusters:
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        clients[f"gpu{HOSTILE_IMAGE}{150 * 'w'}"] = clients.pop("gpu")
        async with dashboard(clients) as page:
            yield Shown(page, clusters, chromium)


@pytest.mark.long
@pytest.mark.parametrize("view", VIEWS)
async def test_hostile_names_stay_names(hostile: Shown, view: str) -> None:
    for screen in ("light", "phone"):
        tab = await hostile.tab(view, screen)
        await tab.until("document.getElementById('main').textContent.includes('\ufffdgpj\ufffd\ufffd[31m')")

        assert await tab.evaluate("window.hacked === undefined")
        assert (
            await tab.evaluate("/[\u202a-\u202e\u2066-\u2069\u001b]/.test(document.body.innerHTML)") is False
        )
        assert await tab.evaluate("document.querySelectorAll('body script, main img').length") == 0
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), screen
        assert tab.messages == []
        await keep_picture(tab, f"hostile-{view}-{screen}")


async def test_charts_are_drawn_and_a_part_of_the_time_has_a_link(answering: Shown) -> None:
    tab = await answering.tab("time")
    await tab.until("document.querySelectorAll('.chart canvas').length === 7")
    told = await tab.evaluate("document.querySelector('.chart [role=img]').getAttribute('aria-label')")
    assert told.startswith("Cost per hour; cost: $")

    await tab.evaluate("location.hash = '#/time?range=day&cluster=east&begin=1&end=2'")
    await tab.until("document.getElementById('main').innerText.includes('Whole range')")
    await tab.until("document.getElementById('main').innerText.includes('Nothing was seen in this time')")
    assert await tab.evaluate("document.getElementById('range').value") == "day"


async def test_nothing_is_loaded_from_elsewhere(small: Shown) -> None:
    tab = await small.tab("consolidation")

    assert tab.requested
    assert {url for url in tab.requested if not url.startswith((small.page.url, "about:"))} == set()


@pytest.mark.long
async def test_hostile_texts_are_shown_and_not_obeyed(small: Shown) -> None:
    tab = await small.tab("events")
    await tab.until(f"document.getElementById('main').innerText.includes({HOSTILE!r})")
    await tab.evaluate("location.hash = '#/fleet'")
    await shows(tab, "fleet")
    await tab.evaluate("document.querySelector('[aria-label=\"Why: cluster east\"]').click()")
    await tab.until(f"{OPENED} && document.getElementById('why-body').innerText.includes({HOSTILE!r})")
    await keep_picture(tab, "hostile-label")
    await tab.evaluate("document.getElementById('why-close').click()")
    await tab.evaluate("location.hash = '#/scale-ups'")
    await shows(tab, "scale-ups")
    await tab.evaluate("document.querySelectorAll('main button.why').forEach((each) => each.click())")
    await tab.until(OPENED)

    assert await tab.evaluate("window.hacked === undefined")
    assert await tab.evaluate("document.querySelectorAll('body script, main img').length") == 0
    assert tab.messages == []


async def test_the_policy_stops_markup_and_inline_script(small: Shown) -> None:
    tab = await small.tab()

    with pytest.raises(Failed, match="TrustedHTML"):
        await tab.evaluate("document.getElementById('main').innerHTML = '<b>x</b>'")
    with pytest.raises(Failed, match="TrustedScript"):
        await tab.evaluate("document.createElement('script').text = 'window.hacked = 1'")


async def test_keyboard_alone_is_enough(small: Shown) -> None:
    tab = await small.tab()
    await tab.press("Tab")
    assert await tab.evaluate("document.activeElement.className") == "skip"

    await tab.evaluate("document.querySelector('.cells button[tabindex=\"0\"]').focus()")
    first = await tab.evaluate("document.activeElement.getAttribute('aria-label')")
    await tab.press("ArrowRight")
    second = await tab.evaluate("document.activeElement.getAttribute('aria-label')")
    assert first != second
    assert (
        await tab.evaluate(
            "document.querySelectorAll('.cells')[0].querySelectorAll('[tabindex=\"0\"]').length"
        )
        == 1
    )

    await tab.press("Enter")
    await tab.until(OPENED)
    assert await tab.evaluate("document.getElementById('why').contains(document.activeElement)")
    assert await tab.evaluate(ACCESSIBILITY) == []
    await keep_picture(tab, "why-node")

    await tab.press("Escape")
    await tab.until("!document.querySelector('#why[open]')")
    assert await tab.evaluate("document.activeElement.getAttribute('aria-label')") == second


async def test_the_judge_of_accessibility_sees_what_is_wrong(small: Shown) -> None:
    tab = await small.tab()
    await tab.evaluate(FAULTS)
    found = " ".join(await tab.evaluate(ACCESSIBILITY))

    rules = ("no name", "no alt", "contrast", "skips a level", "id twice", "24 pixels", "wider than")
    for rule in rules:
        assert rule in found


async def test_what_changes_shows_by_itself_and_only_that(small: Shown) -> None:
    tab = await small.tab()
    await tab.evaluate(
        "window.touched = new Set(); new MutationObserver((all) => all.forEach((each) =>"
        " each.attributeName === 'data-state' && touched.add(each.target.getAttribute('aria-label'))))"
        ".observe(document.getElementById('main'), {subtree: true, attributes: true})"
    )
    admin = small.clusters["east"].client("admin")
    await admin.patch(NODES, "ip-10-0-0-5", {"spec": {"unschedulable": True}})

    await tab.until(
        "document.querySelector('.cell[aria-label^=\"ip-10-0-0-5,\"]').dataset.state === 'cordoned'"
    )
    assert await tab.evaluate("[...touched].every((each) => each.startsWith('ip-10-0-0-5,'))")


async def test_events_arrive_live_and_can_be_found(small: Shown) -> None:
    tab = await small.tab("events")
    new = event("fresh", "Warning", "InsufficientCapacityError", "no g6.xlarge in us-east-1a", 5000.0)
    await small.clusters["east"].client("admin").create(EVENTS, new)

    await tab.until("document.querySelector('main tbody tr').innerText.includes('no g6.xlarge')")
    await tab.evaluate(
        "(() => { const find = document.getElementById('event-text'); find.value = 'nobody would';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    assert await tab.evaluate("document.querySelectorAll('main tbody tr').length") == 1


async def test_characters_that_nobody_can_see_are_shown_as_such(small: Shown) -> None:
    tab = await small.tab("events")
    new = event("turned", "Warning", "Turned", "evil \u202egpj.exe\u2066 \x1b[31m end", 100.0)
    await small.clusters["east"].client("admin").create(EVENTS, new)

    await tab.until("document.querySelector('main tbody').innerText.includes('gpj.exe')")
    assert await tab.evaluate(
        "document.body.innerHTML.match(/[\\u202a-\\u202e\\u2066-\\u2069\\u001b]/) === null"
    )
    assert await tab.evaluate("document.querySelector('main tbody').innerText.includes('evil \\ufffdgpj')")


async def test_the_theme_can_be_chosen_and_is_remembered(small: Shown) -> None:
    tab = await small.tab()
    assert await tab.evaluate("document.documentElement.dataset.theme") == "light"

    for _ in range(2):
        await tab.evaluate("document.getElementById('theme').click()")
    await tab.evaluate("location.reload()")

    await tab.until("document.documentElement.dataset.theme === 'dark'")


async def test_a_token_is_asked_for_and_does_not_stay_in_the_address(small: Shown) -> None:
    clients = {name: cluster.client("again") for name, cluster in small.clusters.items()}
    async with dashboard(clients, token="correct-horse-battery") as page:
        tab = await small.chromium.tab()
        await tab.open(page.url)
        await tab.until("document.querySelector('#why[open] #token')")
        assert not await tab.evaluate("document.getElementById('main').dataset.shown ?? ''")

        await tab.open("about:blank")
        await tab.open(page.link)
        await shows(tab, "fleet")
        assert "correct-horse" not in await tab.evaluate("location.href")


async def test_a_server_that_goes_away_is_told_and_one_that_comes_back_is_followed(small: Shown) -> None:
    tab = await small.chromium.tab()
    async with dashboard({"east": small.clusters["east"].client("short")}) as page:
        await tab.open(page.url)
        await shows(tab, "fleet")
        port = int(page.url.rstrip("/").rpartition(":")[2])

    await tab.until("document.getElementById('live-text').textContent === 'connection lost'")
    # Started again, with numbers that may be the same: what is shown is asked for all the same.
    async with dashboard({"gpu": small.clusters["gpu"].client("again")}, port=port):
        await tab.until(f"{LIVE} && document.querySelector('[aria-label=\"Why: cluster gpu\"]')")
        await tab.until("!document.querySelector('[aria-label=\"Why: cluster east\"]')")


async def test_a_file_is_called_a_file_and_what_prometheus_lacks_is_said(small: Shown) -> None:
    taken = 1_790_000_000.0
    settings = CollectorSettings(
        file=ShownFile(name="prod.karpool.gz", taken_at=taken),
        prometheus=PrometheusServer("http://127.0.0.1:9"),
    )
    clients = {"east": small.clusters["east"].client("file")}
    async with dashboard(clients, settings=settings) as page:
        tab = await Shown(page, small.clusters, small.chromium).tab()
        said = await tab.until(
            "(text => text.startsWith('file') && text)(document.getElementById('live-text').textContent)"
        )
        assert said.startswith("file prod.karpool.gz, taken ")
        assert "2026" in said
        await tab.evaluate("location.hash = '#/time'")
        await tab.until(
            "document.querySelector('main p.badge.warn')?.innerText.includes('no history from Prometheus')"
        )
