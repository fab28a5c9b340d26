"""Measures the time of filters and scores per cluster, as Karmada does.

Reading the clock takes longer than most filters, so only some decisions are timed; the result is the same.
"""

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Literal, Protocol

from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.cycle import plugins as all_plugins
from karpool.scheduler.cycle.decision import NotScheduled
from karpool.scheduler.cycle.plugins import Check, Score

EVERY = 50  # one in so many decisions is timed: with 100 clusters timing takes as long as the decision itself

Step = Literal["Filter", "Score", "Select", "AssignReplicas"]
STEPS: tuple[Step, ...] = ("Filter", "Score", "Select", "AssignReplicas")
Point = Literal["Filter", "Score"]
POINTS: tuple[Point, ...] = ("Filter", "Score")
Result = Literal["Success", "Unschedulable"]
RESULTS: tuple[Result, ...] = ("Success", "Unschedulable")


class PluginTimer(Protocol):
    def plugin(self, plugin: str, point: Point, result: Result, seconds: float) -> None:
        """Record one plugin on one cluster."""

    def point(self, point: Point, result: Result, seconds: float) -> None:
        """Record all filters on one cluster, or all scores on all of them."""


def screen(
    clusters: Iterable[MemberCluster], checks: Sequence[tuple[str, Check]], timing: PluginTimer | None
) -> tuple[list[MemberCluster], list[NotScheduled]]:
    if timing is None:
        return all_plugins.filter_clusters(clusters, checks)
    watched = [(name, _watched(name, check, timing)) for name, check in checks]
    passed: list[MemberCluster] = []
    refused: list[NotScheduled] = []
    for cluster in clusters:
        started = perf_counter()
        let_through, kept_out = all_plugins.filter_clusters((cluster,), watched)
        if let_through or kept_out:
            timing.point("Filter", _result(bool(kept_out)), perf_counter() - started)
        passed += let_through
        refused += kept_out
    return passed, refused


def score(
    clusters: Sequence[MemberCluster], scores: Sequence[tuple[str, Score]], timing: PluginTimer | None
) -> list[int]:
    """The score of each cluster, in order."""
    if timing is None:
        totals = [0 for _ in clusters]
        for _, rate in scores:
            totals = [total + rate(cluster) for total, cluster in zip(totals, clusters, strict=True)]
        return totals
    sums, started = [], perf_counter()
    for cluster in clusters:
        total = 0
        for name, rate in scores:
            before = perf_counter()
            total += rate(cluster)
            timing.plugin(name, "Score", "Success", perf_counter() - before)
        sums.append(total)
    timing.point("Score", "Success", perf_counter() - started)
    return sums


def _watched(plugin: str, check: Check, timing: PluginTimer) -> Check:
    def timed(cluster: MemberCluster) -> str:
        begun = perf_counter()
        reason = check(cluster)
        timing.plugin(plugin, "Filter", _result(bool(reason)), perf_counter() - begun)
        return reason

    return timed


def _result(refused: bool) -> Result:
    return "Unschedulable" if refused else "Success"
