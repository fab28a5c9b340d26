"""Put a question to every plugin, and survive whatever they do.

Our own plugins are called directly: they are arithmetic. Others are called with a
deadline, elsewhere. A plugin that raises, hangs, or returns something else than an
estimate has the code Unknown. Only `Invalid`, from one of ours, is about the request
itself, and becomes an Error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import structlog

from karpool.estimator.framework import (
    CANNOT_TELL,
    NO_NODES,
    Code,
    Estimate,
    EstimatesComponents,
    EstimatesReplicas,
    Outcome,
    Plugin,
    Point,
    Role,
    Verdict,
    answers_without_nodes,
    merged,
    role_of,
)
from karpool.estimator.guard import Guard, Stuck
from karpool.estimator.question import Question
from karpool.model.errors import Invalid

log = structlog.get_logger(__name__)

# Callers wait three seconds for all clusters together.
TIMEOUT_SECONDS = 1.0
Observe = Callable[[Point, str, float], None]  # plugin name, or "" for all of them; seconds


def _unobserved(point: Point, plugin: str, seconds: float) -> None:
    return None


class Framework:
    """`trusted` plugins are called directly, `others` with a deadline."""

    def __init__(
        self,
        trusted: Sequence[Plugin],
        others: Sequence[Plugin] = (),
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        observe: Observe = _unobserved,
    ) -> None:
        self.plugins = (*trusted, *others)
        # Looked up once: asking a plugin what it can do takes as long as asking it.
        self._trusted = {point: list(_asked(trusted, point)) for point in Point}
        self._others = {point: list(_asked(others, point)) for point in Point}
        self._guards: dict[str, Guard[Question, Any]] = {each.name: Guard(each.name) for each in others}
        self._timeout = timeout_seconds
        self._observe = observe
        self._looks_beyond_nodes = any(answers_without_nodes(each) for each in self.plugins)

    async def run(self, question: Question) -> Outcome:
        if not question.snapshot.n and not self._looks_beyond_nodes:
            return NO_NODES
        point = Point.COMPONENTS if question.for_sets else Point.REPLICAS
        start = perf_counter()
        verdicts = self._ask_trusted(question, point)
        for plugin, role, function in self._others[point]:
            estimate = await self._guarded(plugin, function, question, point)
            verdicts.append(Verdict(plugin, role, estimate))
        self._observe(point, "", perf_counter() - start)
        return merged(verdicts, point)

    def run_trusted(self, question: Question) -> Outcome:
        """The same without plugins of others, for those who cannot wait."""
        if not question.snapshot.n and not self._looks_beyond_nodes:
            return NO_NODES
        point = Point.COMPONENTS if question.for_sets else Point.REPLICAS
        return merged(self._ask_trusted(question, point), point)

    def _ask_trusted(self, question: Question, point: Point) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for plugin, role, function in self._trusted[point]:
            start = perf_counter()
            try:
                estimate = function(question)
            except Invalid as error:
                estimate = Estimate(0, Code.ERROR, (str(error),))
            except Exception as error:  # a bug of ours must not silence the other clusters
                estimate = _failed(plugin, error)
            self._observe(point, plugin, perf_counter() - start)
            verdicts.append(Verdict(plugin, role, estimate))
        return verdicts

    async def _guarded(
        self, plugin: str, function: "_Function", question: Question, point: Point
    ) -> Estimate:
        start = perf_counter()
        try:
            found: Any = await self._guards[plugin].call(function, question, seconds=self._timeout)
        except Stuck as error:
            log.warning("plugin gave no answer", plugin=plugin, reason=str(error))
            found = Estimate(CANNOT_TELL, Code.UNKNOWN, (str(error),))
        except Exception as error:
            found = _failed(plugin, error)
        self._observe(point, plugin, perf_counter() - start)
        return _checked(plugin, found)


_Function = Callable[[Question], Estimate]


_Asked = tuple[str, Role, _Function]  # name, role, and what to call


def _asked(plugins: Iterable[Plugin], point: Point) -> Iterator[_Asked]:
    for plugin in plugins:
        if point is Point.REPLICAS and isinstance(plugin, EstimatesReplicas):
            yield plugin.name, role_of(plugin), plugin.estimate
        elif point is Point.COMPONENTS and isinstance(plugin, EstimatesComponents):
            yield plugin.name, role_of(plugin), plugin.estimate_components


def _failed(plugin: str, error: Exception) -> Estimate:
    log.error("plugin raised", plugin=plugin, exc_info=error)
    return Estimate(CANNOT_TELL, Code.UNKNOWN, (f"{plugin} raised {type(error).__name__}",))


def _checked(plugin: str, found: Any) -> Estimate:
    if not isinstance(found, Estimate) or not isinstance(found.value, int) or found.code not in tuple(Code):
        log.error("plugin returned something else than an estimate", plugin=plugin)
        reason = f"{plugin} returned {type(found).__name__}, not an estimate"
        return Estimate(CANNOT_TELL, Code.UNKNOWN, (reason,))
    return found
