"""Runs a coroutine until a signal asks the process to stop."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from karpool.manager.stop import Stop

T = TypeVar("T")


def run_until_signalled(
    main: Callable[[Stop], Awaitable[T]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run `main` with a Stop that SIGINT, SIGTERM and SIGHUP set; a second signal ends it at once.

    `loop_factory` is for loops with virtual time; the default is the fastest loop available.
    """

    async def watched() -> T:
        stop = Stop()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def asked() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in _stop_signals():
            loop.add_signal_handler(number, asked)
        return await main(stop)

    with asyncio.Runner(loop_factory=loop_factory or _fast_loop()) as runner:
        return runner.run(watched())


def _stop_signals() -> list[signal.Signals]:
    """Return the stop signals; SIGHUP, sent when a terminal closes, unless it is ignored (nohup)."""
    ends = [signal.SIGINT, signal.SIGTERM]
    return ends if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*ends, signal.SIGHUP]


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
