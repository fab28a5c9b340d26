"""Runs every plugin on a question, and isolates their failures.

Our own plugins are called directly: they only compute. Others are called in another thread with a deadline. A
plugin that raises, hangs, or returns something else than an estimate has the code Unknown. Only `Invalid`,
from one of ours, concerns the request itself, and becomes an Error.

A call with a deadline runs in its own thread, which cannot be stopped but can be abandoned: at the deadline
the caller continues. Abandoned calls hold a slot until they return; if all slots are held so, further calls
fail at once. The threads are daemons, so that a stuck one does not block the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Generic, TypeVar

import structlog

from karpool.estimator.plugins.interface import (
    CANNOT_TELL,
    NO_NODES,
    Estimate,
    EstimateCode,
    EstimatesComponents,
    EstimatesReplicas,
    EstimatorPlugin,
    ExtensionPoint,
    MergedEstimate,
    PluginResult,
    PluginRole,
    answers_without_nodes,
    merge_results,
    role_of,
)
from karpool.estimator.question import EstimateQuestion
from karpool.model.errors import Invalid

log = structlog.get_logger(__name__)

# Callers wait three seconds for all clusters together.
TIMEOUT_SECONDS = 1.0
Observe = Callable[[ExtensionPoint, str, float], None]  # plugin name, or "" for all of them; seconds


def _unobserved(point: ExtensionPoint, plugin: str, seconds: float) -> None:
    return None


class Framework:
    """`trusted` plugins are called directly, `others` with a deadline."""

    def __init__(
        self,
        trusted: Sequence[EstimatorPlugin],
        others: Sequence[EstimatorPlugin] = (),
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        observe: Observe = _unobserved,
    ) -> None:
        self.plugins = (*trusted, *others)
        # Looked up once: inspecting a plugin takes as long as calling it.
        self._trusted = {point: list(_asked(trusted, point)) for point in ExtensionPoint}
        self._others = {point: list(_asked(others, point)) for point in ExtensionPoint}
        self._guards: dict[str, DeadlineCaller[EstimateQuestion, Any]] = {
            other.name: DeadlineCaller(other.name) for other in others
        }
        self._timeout = timeout_seconds
        self._observe = observe
        self._looks_beyond_nodes = any(answers_without_nodes(plugin) for plugin in self.plugins)

    async def run(self, question: EstimateQuestion) -> MergedEstimate:
        if not question.snapshot.room.n and not self._looks_beyond_nodes:
            return NO_NODES
        point = ExtensionPoint.COMPONENTS if question.for_sets else ExtensionPoint.REPLICAS
        start = perf_counter()
        verdicts = self._ask_trusted(question, point)
        for plugin, role, function in self._others[point]:
            estimate = await self._guarded(plugin, function, question, point)
            verdicts.append(PluginResult(plugin, role, estimate))
        self._observe(point, "", perf_counter() - start)
        return merge_results(verdicts, point)

    def run_trusted(self, question: EstimateQuestion) -> MergedEstimate:
        """The same without third-party plugins, for callers that cannot wait."""
        if not question.snapshot.room.n and not self._looks_beyond_nodes:
            return NO_NODES
        point = ExtensionPoint.COMPONENTS if question.for_sets else ExtensionPoint.REPLICAS
        return merge_results(self._ask_trusted(question, point), point)

    def _ask_trusted(self, question: EstimateQuestion, point: ExtensionPoint) -> list[PluginResult]:
        verdicts: list[PluginResult] = []
        for plugin, role, function in self._trusted[point]:
            start = perf_counter()
            try:
                estimate = function(question)
            except Invalid as error:
                estimate = Estimate(0, EstimateCode.ERROR, (str(error),))
            except Exception as error:  # a bug of ours must not silence the other clusters
                estimate = _failed(plugin, error)
            self._observe(point, plugin, perf_counter() - start)
            verdicts.append(PluginResult(plugin, role, estimate))
        return verdicts

    async def _guarded(
        self, plugin: str, function: "_Function", question: EstimateQuestion, point: ExtensionPoint
    ) -> Estimate:
        start = perf_counter()
        try:
            answer: Any = await self._guards[plugin].call(function, question, seconds=self._timeout)
        except PluginStuck as error:
            log.warning("plugin gave no answer", plugin=plugin, reason=str(error))
            answer = Estimate(CANNOT_TELL, EstimateCode.UNKNOWN, (str(error),))
        except Exception as error:
            answer = _failed(plugin, error)
        self._observe(point, plugin, perf_counter() - start)
        return _checked(plugin, answer)


_Function = Callable[[EstimateQuestion], Estimate]


_Asked = tuple[str, PluginRole, _Function]  # name, role, and function to call


def _asked(plugins: Iterable[EstimatorPlugin], point: ExtensionPoint) -> Iterator[_Asked]:
    for plugin in plugins:
        if point is ExtensionPoint.REPLICAS and isinstance(plugin, EstimatesReplicas):
            yield plugin.name, role_of(plugin), plugin.estimate
        elif point is ExtensionPoint.COMPONENTS and isinstance(plugin, EstimatesComponents):
            yield plugin.name, role_of(plugin), plugin.estimate_components


def _failed(plugin: str, error: Exception) -> Estimate:
    log.error("plugin raised", plugin=plugin, exc_info=error)
    return Estimate(CANNOT_TELL, EstimateCode.UNKNOWN, (f"{plugin} raised {type(error).__name__}",))


def _checked(plugin: str, estimate: Any) -> Estimate:
    if (
        not isinstance(estimate, Estimate)
        or not isinstance(estimate.value, int)
        or estimate.code not in tuple(EstimateCode)
    ):
        log.error("plugin did not return an estimate", plugin=plugin)
        reason = f"{plugin} returned {type(estimate).__name__}, not an estimate"
        return Estimate(CANNOT_TELL, EstimateCode.UNKNOWN, (reason,))
    return estimate


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
            raise PluginStuck(f"{self._name}: {self.abandoned} earlier calls have not returned")
        started = False
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
                started = True
                call = _Call(function, argument)
                slot = (asyncio.get_running_loop(), self._free.release)
                threading.Thread(target=call.run, args=slot, daemon=True, name=self._name).start()
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
        result.exception()  # no caller waits for it


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
        with suppress(RuntimeError):  # the loop is closed, and with it every caller
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
