"""Several nodes that become one, and one that becomes two: the consolidator dies at any write.

With the suite it dies in the middle, between deletions or marks; the long profile tries every write.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from karpool.consolidation.execution.record import MovePhase
from tests.chaos.profile import LONG
from tests.consolidation.executing import FREELY, Play, play
from tests.consolidation.test_moves_survive_anything import BRISK, CONSOLIDATOR, FAST_BOOTS

CHEAPLY = FREELY | {"consolidationPolicy": "WhenEmptyOrUnderutilized"}
Story = Callable[[Play], Awaitable[None]]


async def three_become_one(p: Play) -> None:
    """No two of the pods fit one small node, and all fit a medium one, which was not to be had before."""
    await p.stage.pool("general", types=("small", "medium"), disruption=CHEAPLY)
    shortage = p.stage.cloud.stock_out("medium")
    await p.deploy("web", 3, cpu="1100m")
    await p.running(3)
    assert await p.types() == ["small"] * 3
    shortage.end()
    await asyncio.sleep(240)  # Karpenter remembers a shortage for three minutes
    p.start()
    await p.over()
    assert await p.types() == ["medium"]
    await p.running(3)


async def one_becomes_two(p: Play) -> None:
    """What is left fits no single small node, and two are cheaper than the large one."""
    await p.stage.pool("general", types=("small", "large"), disruption=CHEAPLY)
    await p.deploy("big", 1, cpu="3")
    await p.deploy("web", 2, cpu="1500m")
    await p.running(3)
    assert await p.types() == ["large"]
    await p.scale("big", 0)
    await p.running(2)
    p.start()
    await p.over()
    assert await p.types() == ["small", "small"]
    await p.running(2)


async def _dying(p: Play, story: Story, number: int, when: str) -> tuple[int, list[MovePhase], list[int]]:
    """How often it died, what came of moves, and how many nodes they took and brought."""
    p.stage.cluster.faults.crash_at_write(CONSOLIDATOR, number, when=when)
    await story(p)
    assert await p.leaks() == []
    records = await p.records()
    sizes = [size for record in records for size in (len(record.nodes), len(record.arrived))]
    return p.stage.crashes, [record.phase for record in records], sizes


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("story", "sizes", "least", "some"),
    [
        # Three to prepare; record, asking, 3 marks, pod, arrival, mark, cordoning, 3 cordons, pod gone,
        # deleting, 3 claims, mark gone, settling, done.
        (three_become_one, [3, 1], 23, 19),
        # Three to prepare; record, asking, mark, 2 pods, arrival, 2 marks, cordoning, cordon, 2 pods gone,
        # deleting, claim, 2 marks gone, settling, done.
        (one_becomes_two, [1, 2], 20, 8),
    ],
    ids=["three to one", "one to two"],
)
def test_a_crash_at_any_write_changes_nothing(
    story: Story, sizes: list[int], least: int, some: int, when: str
) -> None:
    for number in count(1) if LONG else [some]:
        crashes, phases, found = play(lambda p, n=number: _dying(p, story, n, when), BRISK, boots=FAST_BOOTS)
        assert (phases, found) == ([MovePhase.DONE], sizes), f"write {number}"
        if crashes == 0:
            assert number > least
            break
    else:
        assert crashes == 1
