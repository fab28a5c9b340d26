"""A page of many nodes: little is asked for at first, and scrolling changes rows instead of making them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from karpool.dashboard.server.app import dashboard
from tests.dashboard.browser_page import ACCESSIBILITY, LIVE, Shown, in_chromium, keep_picture, shows
from tests.dashboard.chromium import DESK, PHONE, Browser, Tab
from tests.dashboard.fleets import clusters_of, large

pytestmark = [pytest.mark.asyncio(loop_scope="module"), in_chromium]
NODES = 2000
# Scroll on by so many rows, one at a time and without rest between them; tell what was done meanwhile to the
# rows of the table meanwhile.
SCROLLED = """(async () => {
    const place = document.querySelector("main .tall"), body = place.querySelector("tbody");
    const rows = new Set(body.children);
    const observer = new MutationObserver(() => {});
    observer.observe(body, {childList: true});
    for (let passed = 0; passed < %d; passed += 1) {
        place.scrollTop += 46;
        place.dispatchEvent(new Event("scroll"));
        for (let turn = 0; turn < 10; turn += 1) await null;
    }
    const moved = observer.takeRecords().length;
    observer.disconnect();
    return {moved, new: [...body.children].filter((row) => !rows.has(row)).length};
})()"""
PLACES = "[...document.querySelectorAll('main tbody tr')].map((row) => +row.getAttribute('aria-rowindex'))"
IN_ORDER = f"(places => places.every((each, at) => !at || each === places[at - 1] + 1) && places)({PLACES})"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def many(chromium: Browser) -> AsyncIterator[Shown]:
    async with AsyncExitStack() as stack:
        clusters = await stack.enter_async_context(clusters_of(large(NODES)))
        page = await stack.enter_async_context(dashboard({"east": clusters["east"].client("dashboard")}))
        yield Shown(page, clusters, chromium)


@pytest.mark.long
async def test_the_first_view_asks_one_question_and_reads_only_what_it_shows(many: Shown) -> None:
    tab = await many.chromium.tab()
    await tab.screen(DESK)
    await tab.open(many.page.url)
    await tab.until(f"{LIVE}")
    path = many.page.url.rstrip("/")
    asked = [url.removeprefix(path) for url in tab.requested]

    assert "/page/clusters.js" in asked
    of_other_views = {"/page/nodes.js", "/page/why.js", "/page/time.js", "/page/vendor/uplot.js"}
    assert of_other_views.isdisjoint(asked)
    lists = [url for url in asked if url.startswith("/api/v1/clusters?")]
    assert set(lists) == {"/api/v1/clusters?offset=0&limit=100"}


@pytest.mark.long
async def test_rows_are_used_again_and_stand_in_order_when_they_stand_still(many: Shown) -> None:
    tab = await many.tab("nodes")
    await tab.until("document.querySelectorAll('main tbody tr').length > 20")
    await tab.evaluate("document.querySelectorAll('main tbody button.why')[20].focus({preventScroll: true})")
    focused = await tab.evaluate("document.activeElement.getAttribute('aria-label')")

    before = await tab.evaluate(PLACES)

    assert await tab.evaluate(SCROLLED % 20) == {"moved": 0, "new": 0}

    # A row that is still drawn keeps the focus; one that is not leaves it to the table.
    await tab.until(f"({IN_ORDER})[0] > {before[0]}")
    assert await tab.evaluate("document.activeElement.getAttribute('aria-label')") == focused
    assert await tab.evaluate(SCROLLED % 60) == {"moved": 0, "new": 0}
    await tab.until(f"({IN_ORDER})[0] > {before[25]}")
    assert await tab.evaluate("document.activeElement.getAttribute('role')") == "region"
    # Every row is where its number says, and says what the server says of that place.
    index, name = await tab.until(
        "(row => row.querySelector('b') && [+row.getAttribute('aria-rowindex') - 2,"
        " row.querySelector('b').innerText])(document.querySelectorAll('main tbody tr')[15])"
    )
    listed = await tab.evaluate(
        f"fetch('/api/v1/nodes?offset={index}&limit=1').then((answer) => answer.json())"
    )
    assert listed["items"][0]["node"]["name"] == name
    top = await tab.evaluate("document.querySelectorAll('main tbody tr')[15].style.transform")
    assert top == f"translateY({46 * index}px)"


@pytest.mark.long
async def test_two_thousand_nodes_stay_usable(many: Shown) -> None:
    tab = await many.tab()
    await tab.until("document.querySelectorAll('.cell').length === 2000")
    await keep_picture(tab, "two-thousand-nodes")
    assert await tab.evaluate(ACCESSIBILITY) == []
    # One element for each node, and one tab stop for each pool.
    assert await tab.evaluate("document.querySelectorAll('main *').length") < 2200
    assert await tab.evaluate("document.querySelectorAll('.cell[tabindex=\"0\"]').length") == 2

    await tab.evaluate("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    await tab.press("End")
    assert await tab.evaluate("document.activeElement === document.activeElement.parentElement.lastChild")

    await tab.evaluate(
        "(() => { const find = document.getElementById('find'); find.value = 'ip-10-0-7-24';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    assert await tab.evaluate("document.querySelectorAll('.cell:not(.other)').length") == 11

    await scrolled_rows_are_forgotten(tab)
    await tab.screen(PHONE)
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.messages == []


async def scrolled_rows_are_forgotten(tab: Tab) -> None:
    """Only rows that are seen are drawn; those far away are asked for again when somebody comes back."""

    def asked() -> int:
        return sum("/nodes?" in url and "offset=0&" in url for url in tab.requested)

    await tab.evaluate("location.hash = '#/nodes'")
    first = "document.querySelector('main tbody tr b')?.innerText"
    await shows(tab, "nodes")
    top = await tab.until(first)
    before = asked()
    assert await tab.evaluate("document.querySelectorAll('main tbody tr').length") < 60
    await tab.evaluate("document.querySelector('.tall').scrollTop = 1e9")
    await tab.until(f"{first} && {first} !== {top!r}")
    await tab.evaluate("document.querySelector('.tall').scrollTop = 0")
    await tab.until(f"{first} === {top!r}")
    assert asked() == before + 1
