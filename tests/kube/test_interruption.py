"""Waits are ended from outside, and nobody else's cancellation is mistaken for that."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing

import pytest

from karpool.kube.watch.silence import Interrupted, Interruption, SilenceTimeout
from karpool_fleet.clusters.clock import run_manual


def forever() -> Awaitable[bool]:
    return asyncio.Event().wait()


def test_a_wait_gives_what_it_waited_for() -> None:
    async def story() -> int:
        return await Interruption().wait(lambda: asyncio.sleep(5, 7))

    assert run_manual(story()) == 7


def test_it_ends_the_wait_under_way_and_every_later_one() -> None:
    async def story() -> int:
        interruption, ends = Interruption(), 0
        asyncio.get_running_loop().call_later(3, interruption.interrupt)
        for _ in range(3):
            try:
                await interruption.wait(forever)
            except Interrupted:
                ends += 1
        task = asyncio.current_task()
        assert task is not None and not task.cancelling(), "the task goes on as if nobody had cancelled it"
        await asyncio.sleep(1)
        return ends

    assert run_manual(story()) == 3


@pytest.mark.parametrize("both", [False, True])
def test_a_cancellation_by_others_goes_its_usual_way(both: bool) -> None:
    async def story() -> None:
        interruption = Interruption()
        waiting = asyncio.ensure_future(interruption.wait(forever))
        await asyncio.sleep(1)
        if both:
            interruption.interrupt()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run_manual(story())


def test_one_within_another() -> None:
    """The inner one ends inside, the outer one passes through it, and both at once end outside."""

    async def ended(*which: int) -> str:
        both = [Interruption(), Interruption()]

        def interrupt() -> None:
            for number in which:
                both[number].interrupt()

        asyncio.get_running_loop().call_later(1, interrupt)

        async def inner() -> str:
            try:
                await both[1].wait(forever)
            except Interrupted:
                return "inside"
            raise AssertionError("waits for ever")

        try:
            return await both[0].wait(inner)
        except Interrupted:
            return "outside"

    async def story() -> list[str]:
        return [await ended(0), await ended(1), await ended(0, 1), await ended(1, 0)]

    assert run_manual(story()) == ["outside", "inside", "outside", "outside"]


async def heard(pauses: list[float]) -> AsyncGenerator[int, None]:
    for number, pause in enumerate(pauses):
        await asyncio.sleep(pause)
        yield number


def listening(pauses: list[float], busy: float = 0.0) -> Callable[[], Awaitable[tuple[int, float]]]:
    """How many were heard, and when the silence was too long."""

    async def story() -> tuple[int, float]:
        loop, count = asyncio.get_running_loop(), 0
        start, pieces = loop.time(), heard(pauses)
        with closing(SilenceTimeout(10)) as silence:
            try:
                while await silence.wait(lambda: anext(pieces, None)) is not None:
                    count += 1
                    await asyncio.sleep(busy)
            except TimeoutError:
                return count, round(loop.time() - start, 3)
        return count, 0.0

    return story


@pytest.mark.parametrize(
    ("pauses", "busy", "found"),
    [
        ([9.0] * 5, 0.0, (5, 0.0)),
        ([11.0], 0.0, (0, 10.0)),
        ([3.0, 4.0, 60.0], 0.0, (2, 17.0)),
        ([1.0, 9.0, 9.0], 35.0, (3, 0.0)),  # who is busy does not listen, and that is no silence
        ([1.0, 12.0], 35.0, (1, 46.0)),
    ],
)
def test_only_a_silence_while_one_listens_is_too_long(
    pauses: list[float], busy: float, found: tuple[int, float]
) -> None:
    assert run_manual(listening(pauses, busy)()) == found
