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

from karpool.estimator.plugins.guard import DeadlineCaller, PluginStuck
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
        # Looked up once: asking a plugin what it can do takes as long as asking it.
        self._trusted = {point: list(_asked(trusted, point)) for point in ExtensionPoint}
        self._others = {point: list(_asked(others, point)) for point in ExtensionPoint}
        self._guards: dict[str, DeadlineCaller[EstimateQuestion, Any]] = {
            other.name: DeadlineCaller(other.name) for other in others
        }
        self._timeout = timeout_seconds
        self._observe = observe
        self._looks_beyond_nodes = any(answers_without_nodes(plugin) for plugin in self.plugins)

    async def run(self, question: EstimateQuestion) -> MergedEstimate:
        if not question.snapshot.n and not self._looks_beyond_nodes:
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
        """The same without plugins of others, for those who cannot wait."""
        if not question.snapshot.n and not self._looks_beyond_nodes:
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
            found: Any = await self._guards[plugin].call(function, question, seconds=self._timeout)
        except PluginStuck as error:
            log.warning("plugin gave no answer", plugin=plugin, reason=str(error))
            found = Estimate(CANNOT_TELL, EstimateCode.UNKNOWN, (str(error),))
        except Exception as error:
            found = _failed(plugin, error)
        self._observe(point, plugin, perf_counter() - start)
        return _checked(plugin, found)


_Function = Callable[[EstimateQuestion], Estimate]


_Asked = tuple[str, PluginRole, _Function]  # name, role, and what to call


def _asked(plugins: Iterable[EstimatorPlugin], point: ExtensionPoint) -> Iterator[_Asked]:
    for plugin in plugins:
        if point is ExtensionPoint.REPLICAS and isinstance(plugin, EstimatesReplicas):
            yield plugin.name, role_of(plugin), plugin.estimate
        elif point is ExtensionPoint.COMPONENTS and isinstance(plugin, EstimatesComponents):
            yield plugin.name, role_of(plugin), plugin.estimate_components


def _failed(plugin: str, error: Exception) -> Estimate:
    log.error("plugin raised", plugin=plugin, exc_info=error)
    return Estimate(CANNOT_TELL, EstimateCode.UNKNOWN, (f"{plugin} raised {type(error).__name__}",))


def _checked(plugin: str, found: Any) -> Estimate:
    if (
        not isinstance(found, Estimate)
        or not isinstance(found.value, int)
        or found.code not in tuple(EstimateCode)
    ):
        log.error("plugin returned something else than an estimate", plugin=plugin)
        reason = f"{plugin} returned {type(found).__name__}, not an estimate"
        return Estimate(CANNOT_TELL, EstimateCode.UNKNOWN, (reason,))
    return found
