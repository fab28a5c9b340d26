"""Put a question to every plugin, and survive whatever they do.

Our own plugins are called directly: they are arithmetic. Others are called with a
deadline, elsewhere. A plugin that raises, hangs, or returns something else than an
estimate has the code Unknown. Only `Invalid`, from one of ours, is about the request
itself, and becomes an Error.
"""

from collections.abc import Callable, Sequence
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
        self._trusted, self._others = tuple(trusted), tuple(others)
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
        for plugin in self._others:
            if function := _function(plugin, point):
                estimate = await self._guarded(plugin, function, question, point)
                verdicts.append(Verdict(plugin.name, role_of(plugin), estimate))
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
        for plugin in self._trusted:
            function = _function(plugin, point)
            if function is None:
                continue
            start = perf_counter()
            try:
                estimate = function(question)
            except Invalid as error:
                estimate = Estimate(0, Code.ERROR, (str(error),))
            except Exception as error:  # a bug of ours must not silence the other clusters
                estimate = _failed(plugin, error)
            self._observe(point, plugin.name, perf_counter() - start)
            verdicts.append(Verdict(plugin.name, role_of(plugin), estimate))
        return verdicts

    async def _guarded(
        self, plugin: Plugin, function: "_Function", question: Question, point: Point
    ) -> Estimate:
        start = perf_counter()
        try:
            found: Any = await self._guards[plugin.name].call(function, question, seconds=self._timeout)
        except Stuck as error:
            log.warning("plugin gave no answer", plugin=plugin.name, reason=str(error))
            found = Estimate(CANNOT_TELL, Code.UNKNOWN, (str(error),))
        except Exception as error:
            found = _failed(plugin, error)
        self._observe(point, plugin.name, perf_counter() - start)
        return _checked(plugin, found)


_Function = Callable[[Question], Estimate]


def _function(plugin: Plugin, point: Point) -> _Function | None:
    if point is Point.COMPONENTS:
        return plugin.estimate_components if isinstance(plugin, EstimatesComponents) else None
    return plugin.estimate if isinstance(plugin, EstimatesReplicas) else None


def _failed(plugin: Plugin, error: Exception) -> Estimate:
    log.error("plugin raised", plugin=plugin.name, exc_info=error)
    return Estimate(CANNOT_TELL, Code.UNKNOWN, (f"{plugin.name} raised {type(error).__name__}",))


def _checked(plugin: Plugin, found: Any) -> Estimate:
    if not isinstance(found, Estimate) or not isinstance(found.value, int) or found.code not in tuple(Code):
        log.error("plugin returned something else than an estimate", plugin=plugin.name)
        reason = f"{plugin.name} returned {type(found).__name__}, not an estimate"
        return Estimate(CANNOT_TELL, Code.UNKNOWN, (reason,))
    return found
