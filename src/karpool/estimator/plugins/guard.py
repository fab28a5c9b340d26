"""Call code that nobody here has vouched for, with a deadline.

Each call runs in a thread of its own, which cannot be stopped but can be abandoned:
at the deadline the caller goes on. Calls that were abandoned hold a place until they
come back; when all places are held so, further calls fail at once. Threads are
daemons, so that a stuck one does not keep the process from ending.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

PLACES = 8


class PluginStuck(Exception):
    """No answer within the deadline, or too many earlier calls without one."""


class DeadlineCaller(Generic[A, R]):
    def __init__(self, name: str, *, places: int = PLACES) -> None:
        self._name = name
        self._places = places
        self._free = asyncio.Semaphore(places)
        self.abandoned = 0

    async def call(self, function: Callable[[A], R], argument: A, *, seconds: float) -> R:
        """The function's result; raises what it raises, or Stuck."""
        if self.abandoned >= self._places:
            raise PluginStuck(f"{self._name}: {self.abandoned} earlier calls have not come back")
        started = False
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
                started = True
                call = _Call(function, argument)
                given = (asyncio.get_running_loop(), self._free.release)
                threading.Thread(target=call.run, args=given, daemon=True, name=self._name).start()
                return await asyncio.shield(call.result)
        except TimeoutError:
            if started:
                self._abandon(call)
            raise PluginStuck(f"{self._name}: no answer within {seconds:g} s") from None
        except asyncio.CancelledError:
            if started:
                self._abandon(call)
            raise

    def _abandon(self, call: "_Call[A, R]") -> None:
        if not call.result.done():
            self.abandoned += 1
            call.result.add_done_callback(self._came_back)

    def _came_back(self, result: "asyncio.Future[R]") -> None:
        self.abandoned -= 1
        result.exception()  # nobody waits for it any more


class _Call(Generic[A, R]):
    def __init__(self, function: Callable[[A], R], argument: A) -> None:
        self.result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._function, self._argument = function, argument

    def run(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        outcome: R | BaseException
        try:
            outcome = self._function(self._argument)
        except BaseException as error:
            outcome = error
        with suppress(RuntimeError):  # the loop is gone: so is everybody who cared
            loop.call_soon_threadsafe(self._finish, outcome, over)

    def _finish(self, outcome: R | BaseException, over: Callable[[], None]) -> None:
        over()
        if self.result.done():
            return
        if isinstance(outcome, Exception) and not isinstance(outcome, StopIteration):
            self.result.set_exception(outcome)
        elif isinstance(outcome, BaseException):  # SystemExit and the like end a thread, not the server
            self.result.set_exception(RuntimeError(f"raised {type(outcome).__name__}"))
        else:
            self.result.set_result(outcome)
