"""Reads the history of a fleet from a Prometheus that scrapes dashboards, for the charts.

Off unless an address is set. Answers are bounded and validated. If Prometheus fails, the page shows a remark
and its own samples.
"""

import asyncio
import http.client
import json
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from karpool.dashboard.pages.time_series import TimeRange
from karpool.kube.clock import Clock
from karpool.kube.errors import ConfigError
from karpool.model.errors import Invalid

PREFIX = "karpool_fleet_"
# For each series of a chart: its metric, and the number of chart units per unit of the metric.
METRICS: Mapping[str, tuple[str, str, float]] = {
    "cost": ("cost_dollars_per_hour", "Effective price per hour of the nodes of a cluster.", 1.0),
    "nodes": ("nodes", "Nodes of a cluster.", 1.0),
    "cpuRequested": ("cpu_requested_cores", "Requests of pods on nodes.", 1000.0),
    "cpuFree": ("cpu_free_cores", "Free amount on nodes.", 1000.0),
    "memoryRequested": ("memory_requested_bytes", "Requests of pods on nodes.", 1.0),
    "memoryFree": ("memory_free_bytes", "Free amount on nodes.", 1.0),
    "waiting": ("waiting_pods", "Pending pods.", 1.0),
    "promises": ("promised_replicas", "Replicas that are placed but not known to run on a node.", 1.0),
}
EVICTIONS = f"{PREFIX}evictions"  # a counter: Prometheus adds _total
_SERIES = {f"{PREFIX}{metric}": (name, units) for name, (metric, _, units) in METRICS.items()}
_HELD = 32  # cached answers, for the clusters and ranges that people view
_AGAIN_SECONDS = 10.0  # a chart is refreshed with every sample

Past = Mapping[str, Mapping[int, float]]  # by series and step
Fetch = Callable[[str], bytes]


class _Series(msgspec.Struct, frozen=True):
    values: list[tuple[float, str]]
    metric: dict[str, str] = {}


class _Matrix(msgspec.Struct, frozen=True):
    result_type: str = msgspec.field(name="resultType")
    result: list[_Series]


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Matrix | None = None
    error: str = ""


class PrometheusHistory:
    """Queries the history. `fetch` answers a path; it runs outside the event loop."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch, self._clock = fetch, clock
        self._answers: dict[tuple[Any, ...], tuple[float, Past, str]] = {}
        self._asking = asyncio.Lock()  # one query at a time: pages wait, Prometheus is not overloaded

    async def read(self, cluster: str, range_: TimeRange, begin: float, end: float) -> tuple[Past, str]:
        """Return the values of one cluster, or of the fleet, and the reason if there are none."""
        step = range_.step_seconds
        first, last = math.ceil(begin / step), math.floor(end / step)
        question = (cluster, step, first, last)
        async with self._asking:
            asked_at, past, remark = self._answers.get(question, (-math.inf, {}, ""))
            if self._clock.monotonic() < asked_at + _AGAIN_SECONDS:
                return past, remark
            try:
                past, remark = await asyncio.to_thread(self._ask, cluster, range_, first, last), ""
            except (OSError, http.client.HTTPException, Invalid, ConfigError) as error:
                said = str(error)[:300] or type(error).__name__
                past, remark = {}, f"no history from Prometheus: {said}"
            while len(self._answers) >= _HELD:
                del self._answers[next(iter(self._answers))]
            self._answers[question] = self._clock.monotonic(), past, remark
            return past, remark

    def _ask(self, cluster: str, range_: TimeRange, first: int, last: int) -> Past:
        step = range_.step_seconds
        chosen = f",cluster={json.dumps(cluster, ensure_ascii=False)}" if cluster else ""
        # Several dashboards export the same clusters: each cluster counts once.
        gauges = f'max by (__name__, cluster) ({{__name__=~"{PREFIX}.+"{chosen}}})'
        # A difference, not increase(): increase() returns nothing where samples are further apart than steps,
        # and
        # extrapolates to fractions of evictions otherwise.
        counter = f'{{__name__="{EVICTIONS}_total"{chosen}}}'
        told_to_leave = f"max by (cluster) ({counter}) - max by (cluster) ({counter} offset {step}s)"
        series: dict[str, dict[int, float]] = {}
        for query in (f"sum by (__name__) ({gauges})", f"sum (clamp_min({told_to_leave}, 0))"):
            times = {"start": first * step, "end": last * step, "step": step}
            path = f"/api/v1/query_range?{urlencode({'query': query, **times})}"
            for name, units, values in _series(self._fetch(path), range_.steps):
                series[name] = {round(at / step): units * value for at, value in values}
        return series


def _series(content: bytes, steps: int) -> list[tuple[str, float, list[tuple[float, float]]]]:
    """Return name, unit factor and values of each series. Raises Invalid."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(
            "answer", content[:60].decode(errors="replace"), f"is none of Prometheus: {error}"
        ) from None
    if answer.status != "success" or answer.data is None or answer.data.result_type != "matrix":
        raise Invalid("answer", answer.status, answer.error[:200] or "is not a range of values")
    series = []
    for told in answer.data.result[: 2 * len(_SERIES)]:
        # A series without a name is the sum of evictions; unknown names are ignored.
        metric = told.metric.get("__name__", "")
        name, units = ("evictions", 1.0) if not metric else _SERIES.get(metric, ("", 1.0))
        if len(told.values) > steps + 1:
            raise Invalid("answer", len(told.values), f"has more than the {steps} steps that were asked for")
        if name:
            series.append((name, units, [pair for pair in map(_value, told.values) if pair is not None]))
    return series


def _value(pair: tuple[float, str]) -> tuple[float, float] | None:
    try:
        value = float(pair[1])
    except ValueError:
        raise Invalid("answer", pair[1][:40], "is not a number") from None
    return (pair[0], value) if math.isfinite(value) and math.isfinite(pair[0]) and value >= 0 else None
