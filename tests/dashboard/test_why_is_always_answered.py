"""Whatever the page shows says why it is so: by a button where it is shown, and by a link."""

import re

import pytest

from tests.dashboard.browser_page import OPENED, REFUSED, VIEWS, Shown, in_chromium, shows
from tests.dashboard.chromium import Tab

pytestmark = [pytest.mark.asyncio(loop_scope="module"), in_chromium]
ASKS = "#glance .fact, main button.why, main .cell"
ASKED_OF_A_KIND = 3
# What an answer of each kind says of every object of it.
SAYS = {
    "cluster": ("What fills it", "What could be launched", "What was refused"),
    "pool": ("Amounts", "Policy"),
    "node": ("Use", "Pods (", "What it says of itself"),
    "pod": ("Nodes that exist", "New nodes"),
    "gpu": ("Who holds it", "What it is"),
    "move": ("Saves", "Disturbs", "What becomes of its pods"),
    "made": ("Predicted", "Came true", "Began"),
    "held": ("): ",),
    "placement": ("What was decided then", "What would be decided now"),
    "promise": ("What it holds",),
    "scale-up": ("attempt",),
    "event": (" said so ", " now"),
    "fact": ("east",),
}


async def opened_why(tab: Tab, why: str) -> str:
    await tab.evaluate(f"location.hash = {why!r}")
    await tab.until(OPENED)
    assert not await tab.evaluate(REFUSED), why
    text: str = await tab.evaluate("document.getElementById('why-body').innerText")
    return text


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("#/fleet?why=cluster/east", "What fills it"),
        ("#/fleet?why=cluster/east", "What could be launched"),
        ("#/fleet?why=cluster/west", "not watched"),
        ("#/fleet?why=pool/east/general", "could be launched"),
        ("#/nodes?why=node/east/ip-10-0-0-5", "What it says of itself"),
        ("#/waiting?why=pod/east/team/stuck-0", "What would have to change"),
        ("#/waiting?why=pod/east/team/trainer", "it runs on node gpu-a"),
        ("#/gpus?why=gpu/east/gpu-a/gpu-a-gpu-3", "team/trainer"),
        ("#/placements?why=placement/default/search-deployment", "What was decided then"),
        ("#/placements?why=placement/default/search-deployment", "What would be decided now"),
        ("#/events?why=event/east/Pod%2520team%252Ftoo-big/FailedScheduling", "Pod team/too-big now"),
        ("#/fleet?why=fact/price", "per hour for"),
        ("#/fleet?why=nonsense/x", "no answer of the kind"),
        ("#/consolidation?why=made/east/nothing", "not there any more"),
    ],
)
async def test_why_has_a_link_and_an_answer(answering: Shown, link: str, says: str) -> None:
    tab = await answering.tab()

    assert says in await opened_why(tab, link)
    assert tab.messages == []


@pytest.mark.long
async def test_every_kind_of_object_says_why(answering: Shown) -> None:
    tab = await answering.tab()
    script: str = await tab.evaluate("fetch('/page/why.js').then((answer) => answer.text())")
    kinds = set(re.findall(r'^  async "?([a-z-]+)"?\(', script, re.MULTILINE))
    asked = dict.fromkeys(kinds, 0)
    for view in VIEWS:
        await tab.evaluate(f"location.hash = '#/{view}'")
        await shows(tab, view)
        for number in range(await tab.evaluate(f"document.querySelectorAll({ASKS!r}).length")):
            await answers(tab, number, asked)

    assert kinds == set(SAYS)
    assert min(asked.values()) > 0, asked
    assert tab.messages == []


async def answers(tab: Tab, number: int, asked: dict[str, int]) -> None:
    """Ask with one button, unless enough were asked about the same kind of object."""
    await tab.evaluate(f"document.querySelectorAll({ASKS!r})[{number}].click()")
    link: str = await tab.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('why')")
    kind = link.partition("/")[0]
    if asked[kind] < ASKED_OF_A_KIND:
        asked[kind] += 1
        await tab.until(OPENED)
        said = await tab.evaluate("document.getElementById('why-body').innerText")
        assert not await tab.evaluate(REFUSED), link
        missing = [words for words in SAYS[kind] if words not in said]
        assert missing == [] or "is held by scheduling gates" in said, (link, missing, said)
    await tab.evaluate("document.getElementById('why-close')?.click()")
