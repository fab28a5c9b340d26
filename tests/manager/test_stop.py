"""Whoever waits is woken by a stop, and by nothing else too early."""

import asyncio

import pytest

from karpool.manager.stop import STOPPED, Stop
from tests.kube.virtual import virtually


def test_sleeping_ends_with_its_time_or_with_the_stop() -> None:
    async def main() -> None:
        stop, loop = Stop(), asyncio.get_running_loop()
        began = loop.time()
        assert await stop.sleep(5.0) is False
        assert loop.time() - began == pytest.approx(5.0)
        loop.call_later(1.0, stop.set)
        assert await stop.sleep(60.0) is True
        assert loop.time() - began == pytest.approx(6.0)
        assert await stop.sleep(60.0) is True  # asked already
        assert loop.time() - began == pytest.approx(6.0)

    virtually(main())


def test_until_gives_the_result_the_error_or_the_stop() -> None:
    async def main() -> None:
        stop = Stop()

        async def answer() -> int:
            await asyncio.sleep(1.0)
            return 42

        async def failing() -> int:
            raise ValueError("no")

        assert await stop.until(answer()) == 42
        with pytest.raises(ValueError, match="no"):
            await stop.until(failing())
        cancelled = asyncio.Event()

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        asyncio.get_running_loop().call_later(1.0, stop.set)
        assert await stop.until(endless()) is STOPPED
        assert cancelled.is_set()

    virtually(main())
