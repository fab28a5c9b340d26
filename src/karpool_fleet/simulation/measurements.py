"""Computes the figures and plots of a run from the observations of every cluster.

Cost is summed machine by machine, from launch to end; static nodes cost from the start. Samples are for plots
only: no figure depends on their interval.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from karpool.model import durations
from karpool.model.contracts.contract import BilledKind
from karpool.model.contracts.contracted_prices import ContractedPrices
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool_fleet.cloud.cloud import Instance
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.simulation.cluster_recorder import ClusterRecorder, WatchedTotals
from karpool_fleet.simulation.figures import FigureSeries, Result
from karpool_fleet.simulation.scenario_file import Scenario

_HOUR = 3600.0


class RunLog(Protocol):
    count: int
    lines: list[bytes]

    @property
    def sha256(self) -> str: ...


@dataclass
class Bill:
    """The exact cost of machines: `per_hour` now, `spent` until `since`."""

    now: Callable[[], float]
    per_hour: float = 0.0
    spent: float = 0.0
    since: float = 0.0
    unpriced: int = 0
    _prices: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        self.settle()
        self.spent = 0.0

    def settle(self) -> None:
        at = self.now()
        self.spent += self.per_hour * (at - self.since) / _HOUR
        self.since = at

    def heard(self, instance: Instance) -> None:
        runs = instance.state != "terminated"
        if runs == (instance.id in self._prices):
            return
        if runs:
            self.add(instance.id, instance.type.price(instance.offer.zone, instance.offer.capacity_type))
        else:
            self.settle()
            self.per_hour -= self._prices.pop(instance.id)

    def add(self, name: str, price: float | None) -> None:
        self.settle()
        self.unpriced += price is None
        self._prices[name] = price or 0.0
        self.per_hour += price or 0.0


class FleetBilling:
    """The exact cost of all machines under one contract; it is updated whenever a machine starts or ends."""

    def __init__(self, fleet: EmbeddedFleet, shared: SharedContract, now: Callable[[], float]) -> None:
        """Start billing.

        A commitment that begins or ends counts from the next change of machines or sample on.
        """
        self._now, self.shared, self._wall = now, shared, fleet.clock.now
        self._machines: Counter[BilledKind] = Counter()
        self._running: dict[str, BilledKind] = {}
        self._since = self._sampled = now()
        self.spent = self.predicted = 0.0
        self._prices = ContractedPrices(shared.contract)
        self._prices.see_time(self._wall())
        for live in fleet.clusters.values():
            for node in live.nodes:
                labels = node["metadata"]["labels"]
                self._add(
                    live, node["metadata"]["name"], labels[INSTANCE_TYPE], labels[ZONE], labels[CAPACITY_TYPE]
                )
            live.cloud.subscribe(partial(self._heard, live))
        self.per_hour = self._bill()

    def begin(self) -> None:
        self.settle()
        self.spent = self.predicted = 0.0
        self._sampled = self._now()

    def settle(self) -> None:
        at = self._now()
        self.spent += self.per_hour * (at - self._since) / _HOUR
        self._since = at
        self.per_hour = self._bill()

    def _bill(self) -> float:
        return self.shared.contract.at(self._wall()).bill(self._machines).per_hour

    def predict(self) -> None:
        """Charge the cost that controllers predict for the time since the last sample."""
        at = self._now()
        self.predicted += self.shared.bill().per_hour * (at - self._sampled) / _HOUR
        self._sampled = at

    def _heard(self, live: LiveCluster, instance: Instance) -> None:
        runs = instance.state != "terminated"
        if runs == (instance.id in self._running):
            return
        self.settle()
        if runs:
            offer = instance.offer
            self._add(live, instance.id, instance.type.name, offer.zone, offer.capacity_type)
        else:
            self._machines[self._running.pop(instance.id)] -= 1
        self.per_hour = self._bill()

    def _add(self, live: LiveCluster, machine: str, name: str, zone: str, capacity_type: str) -> None:
        price = live.catalogue.price(name, zone, capacity_type) or 0.0
        kind = self._prices.kind(live.catalogue, name, zone, capacity_type, price)
        self._running[machine] = kind
        self._machines[kind] += 1


class RunMeasurements:
    def __init__(
        self,
        fleet: EmbeddedFleet,
        scenario: Scenario,
        say: Callable[[str, str, dict[str, Any]], None],
        shared: SharedContract | None = None,
    ) -> None:
        self.watching: dict[str, ClusterRecorder] = {}
        self._fleet, self._scenario = fleet, scenario
        self._now = fleet.clock.monotonic
        self._bills: dict[str, Bill] = {}
        self._stuck_seconds = durations.seconds(scenario.stuck_after)
        self._before: dict[str, tuple[int, int]] = {}  # launches and refusals at the start of the measurement
        self._times: list[float] = []
        self._samples: dict[str, list[float | None]] = {name: [] for name in _SERIES}
        self._began = self._now()
        for name, cluster in fleet.api_servers.items():
            self.watching[name] = ClusterRecorder(cluster.server, self._now, partial(_say, say, name))
        for name, live in fleet.clusters.items():
            self._bills[name] = _bill(live, self._now)
        self._billing = FleetBilling(fleet, shared, self._now) if shared is not None else None

    async def through(self, progress: Callable[[float], None]) -> None:
        """Sample until the scenario ends."""
        clock, start = self._fleet.clock, self._now()
        end, step = self._scenario.seconds, durations.seconds(self._scenario.sample)
        measure = durations.seconds(self._scenario.measure_from)
        begun, number = False, 0
        while True:
            at = self._now() - start
            if not begun and at >= measure:
                self._begin()
                begun = True
            if at >= number * step:
                self._sample(at)
                number += 1
                progress(min(at / end, 1.0))
            if at >= end:
                return
            ahead = [number * step, end] + ([] if begun else [measure])
            await clock.sleep(max(min(ahead) - at, 1e-3))

    def _begin(self) -> None:
        self._began = self._now()
        if self._billing is not None:
            self._billing.begin()
        for watching in self.watching.values():
            watching.begin()
        for name, bill in self._bills.items():
            bill.begin()
            cloud = self._fleet.clusters[name].cloud
            self._before[name] = cloud.launches, cloud.refusals

    def _sample(self, at: float) -> None:
        members = [self.watching[name] for name in self._fleet.clusters]
        if self._billing is not None:
            self._billing.settle()
            self._billing.predict()
        self._times.append(at)
        values: dict[str, float | None] = {
            "costPerHour": sum(bill.per_hour for bill in self._bills.values()),
            "billPerHour": None if self._billing is None else self._billing.per_hour,
            "billSoFar": None if self._billing is None else self._billing.spent,
            "nodes": sum(len(member.nodes) for member in members),
            "pending": sum(len(member.waiting) for member in members),
            "stuck": sum(
                until - since > self._stuck_seconds
                for member in members
                for since, until in _still_waiting(member, self._now())
            ),
            "pods": sum(len(member.pods) - len(member.waiting) for member in members),
            "evictions": sum(member.totals.evictions for member in members),
            "gpuUse": _percent(
                sum(member.amount("gpu given") for member in members),
                sum(member.amount("nvidia.com/gpu there") for member in members),
            ),
            "cpuUse": _percent(
                sum(cluster_recorder.amount("cpu used") for cluster_recorder in members),
                sum(recorder.amount("cpu there") for recorder in members),
            ),
        }
        for name, value in values.items():
            self._samples[name].append(value)

    def result(self, variant: str, log: RunLog, refused: int = 0) -> Result:
        """Return the result. `refused`: arrivals that no cluster accepted."""
        for name in self._fleet.clusters:
            self.watching[name].settle()
            self._bills[name].settle()
        passed = self._now() - self._began
        by_cluster = {name: self._figures([name], passed) for name in self._fleet.clusters}
        whole = self._figures(list(self._fleet.clusters), passed)
        whole["decisions"] = float(log.count)
        if self._billing is not None:
            self._billing.settle()
            whole["billed"] = self._billing.spent
            whole["billPredicted"] = self._billing.predicted if self._scenario.contract_known else None
        whole["arrivalsRefused"] = float(refused)
        whole["restarts"] = float(
            sum(sum(server.components.restarts.values()) for server in self._fleet.api_servers.values())
        )
        if self._fleet.karmada is not None:
            totals = self.watching[self._fleet.karmada.name].totals
            whole["placed"], whole["replicasMoved"] = float(totals.placed), float(totals.replicas_moved)
        series = {
            name: FigureSeries(title, unit, self._samples[name])
            for name, (title, unit) in _SERIES.items()
            if any(value for value in self._samples[name])
        }
        return Result(
            variant,
            self._scenario.seed,
            self._scenario.seconds,
            whole,
            by_cluster,
            self._times,
            series,
            log.lines,
            log.sha256,
        )

    def _figures(self, names: list[str], passed: float) -> dict[str, float | None]:
        watched = [self.watching[name] for name in names]
        totals = [recorder.totals for recorder in watched]
        bills = [self._bills[name] for name in names]
        clouds = [self._fleet.clusters[name].cloud for name in names]
        before = [self._before.get(name, (0, 0)) for name in names]
        now = self._now()
        spans = [
            span for recorder in watched for span in (*recorder.totals.waits, *_still_waiting(recorder, now))
        ]
        waits = sorted(until - since for since, until in spans)
        spent = sum(bill.spent for bill in bills)
        evictions, pod_seconds = _sum(totals, "evictions"), _sum(totals, "pod_seconds")
        return {
            "cost": spent,
            "costPerHour": spent / passed * _HOUR if passed else None,
            "billed": None,
            "billPredicted": None,
            "nodesMean": _sum(totals, "node_seconds") / passed if passed else None,
            "nodesMost": _sum(totals, "nodes_most"),
            "nodesEnd": float(sum(len(cluster_recorder.nodes) for cluster_recorder in watched)),
            "launched": float(sum(c.launches - b[0] for c, b in zip(clouds, before, strict=True))),
            "refused": float(sum(c.refusals - b[1] for c, b in zip(clouds, before, strict=True))),
            "pods": _sum(totals, "pods"),
            "podsBound": _sum(totals, "bound"),
            "podsEnded": _sum(totals, "ended"),
            "pendingP50": quantile(waits, 0.5),
            "pendingP95": quantile(waits, 0.95),
            "pendingMost": waits[-1] if waits else None,
            "pendingEnd": float(sum(len(recorder.waiting) for recorder in watched)),
            "stuckMost": float(most_at_once(spans, self._stuck_seconds)),
            "stuckHours": sum(wait - self._stuck_seconds for wait in waits if wait > self._stuck_seconds)
            / _HOUR,
            "overfull": _sum(totals, "overfull"),
            "evictions": evictions,
            "evictionsPerPodDay": evictions / (pod_seconds / 86_400) if pod_seconds else None,
            "lost": _sum(totals, "lost"),
            "nodesRemoved": _sum(totals, "nodes_removed"),
            "cpuUse": _percent(*_integrals(totals, "cpu used", "cpu there")),
            "memoryUse": _percent(*_integrals(totals, "memory used", "memory there")),
            "gpuUse": _percent(*_integrals(totals, "gpu given", "nvidia.com/gpu there")),
            "gpuHours": _integrals(totals, "gpu given", "")[0] / _HOUR,
            "placed": None,
            "replicasMoved": None,
            "moves": _sum(totals, "moves"),
            "movesRejected": _sum(totals, "moves_rejected"),
            "scaleUps": _sum(totals, "scale_ups"),
            "leftovers": float(sum(not pod.counts and pod.smart for w in watched for pod in w.pods.values())),
            "arrivalsRefused": None,
            "restarts": None,
            "decisions": None,
        }


_SERIES: Mapping[str, tuple[str, str]] = {
    "costPerHour": ("cost", "$ per hour"),
    "billPerHour": ("bill under the contract", "$ per hour"),
    "billSoFar": ("billed so far", "$"),
    "nodes": ("nodes", "nodes"),
    "pods": ("pods with a node", "pods"),
    "pending": ("pods without a node", "pods"),
    "stuck": ("over-commitment: pods that waited too long", "pods"),
    "evictions": ("pods evicted so far", "pods"),
    "cpuUse": ("CPU requested", "%"),
    "gpuUse": ("GPU utilisation", "%"),
}


def _still_waiting(watching: ClusterRecorder, now: float) -> Iterable[tuple[float, float]]:
    return ((since, now) for key, since in watching.waiting.items() if watching.pods[key].counts)


def most_at_once(spans: Iterable[tuple[float, float]], after: float) -> int:
    """Return the largest number of pods that were pending for longer than `after` at the same moment."""
    steps = [
        step for since, until in spans if until - since > after for step in ((since + after, 1), (until, -1))
    ]
    most = level = 0
    for _, change in sorted(steps):  # an end and a begin at the same moment do not overlap
        level += change
        most = max(most, level)
    return most


def _bill(live: LiveCluster, now: Callable[[], float]) -> Bill:
    bill = Bill(now, since=now())
    for node in live.nodes:
        labels = node["metadata"]["labels"]
        instance_type = live.catalogue.types[labels[INSTANCE_TYPE]]
        bill.add(node["metadata"]["name"], instance_type.price(labels[ZONE], labels[CAPACITY_TYPE]))
    live.cloud.subscribe(bill.heard)
    return bill


def _say(
    say: Callable[[str, str, dict[str, Any]], None], cluster: str, decision: str, details: Mapping[str, Any]
) -> None:
    say(cluster, decision, dict(details))


def _sum(totals: Iterable[WatchedTotals], name: str) -> float:
    return float(sum(getattr(total, name) for total in totals))


def _integrals(totals: Iterable[WatchedTotals], used: str, there: str) -> tuple[float, float]:
    pairs = [(total.seconds.get(used, 0.0), total.seconds.get(there, 0.0)) for total in totals]
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


def _percent(used: float, there: float) -> float | None:
    return 100 * used / there if there else None


def quantile(ordered: list[float], share: float) -> float | None:
    """Return the quantile; None for an empty list."""
    if not ordered:
        return None
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
