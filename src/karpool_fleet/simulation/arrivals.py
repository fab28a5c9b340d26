"""Turns the workloads of a scenario into objects with arrival times.

Pure. Each workload has its own random numbers, so that adding one does not change another. A wave thins
arrivals out: each arrival is kept with a probability that depends on the time of day.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from karpool.model import durations
from karpool_fleet.cloud.delays import parse_delay
from karpool_fleet.simulation.scenario_file import ARRIVALS_MAX, Scenario, ScenarioWorkload, Wave

RUN_SECONDS = "embedded.karpool.dev/run-seconds"
WORKLOAD = "simulation.karpool.dev/workload"
API_VERSIONS = {"Pod": "v1", "Deployment": "apps/v1", "Job": "batch/v1"}
Object = dict[str, Any]


@dataclass(frozen=True)
class Arrival:
    """An object that is created, and perhaps deleted later. Times are seconds from the start."""

    at: float
    cluster: str
    object: Object
    ends_at: float | None = None


def arrivals(scenario: Scenario) -> list[Arrival]:
    """Return the arrivals of all workloads, in order of time."""
    arrivals: list[Arrival] = []
    for workload in scenario.workloads:
        draw = Random(f"{scenario.seed}/workload/{workload.name}")  # noqa: S311 - repeatable on purpose
        arrivals.extend(_of(workload, scenario, draw))
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _of(workload: ScenarioWorkload, scenario: Scenario, draw: Random) -> Iterator[Arrival]:
    every = parse_delay(workload.every)
    lifetime = parse_delay(workload.lifetime) if workload.lifetime else None
    end = durations.seconds(workload.until) if workload.until else scenario.seconds
    end = min(end, scenario.seconds)
    most = ARRIVALS_MAX if workload.count is None else workload.count
    at, number = durations.seconds(workload.start), 0
    while at < end and number < most:
        if workload.wave is None or draw.random() < _share(workload.wave, at):
            seconds = None if lifetime is None else lifetime.draw(draw)
            yield _arrival(workload, scenario.home, at, number, seconds=seconds, draw=draw)
            number += 1
        at += max(every.draw(draw), 1e-3)


def _share(wave: Wave, at: float) -> float:
    phase = (at - durations.seconds(wave.peak)) / durations.seconds(wave.period)
    return wave.low + (1 - wave.low) * (1 + math.cos(2 * math.pi * phase)) / 2


def _arrival(
    workload: ScenarioWorkload, home: str, at: float, number: int, *, seconds: float | None, draw: Random
) -> Arrival:
    bounds = [workload.replicas] if isinstance(workload.replicas, int) else workload.replicas
    replicas = bounds[0] if len(bounds) == 1 else draw.randint(bounds[0], bounds[1])
    requests = dict(workload.requests)
    if workload.sizes:
        weights = [size.weight for size in workload.sizes]
        requests |= draw.choices(workload.sizes, weights)[0].requests
    name = workload.name if workload.count == 1 else f"{workload.name}-{number}"
    built = build(
        workload.kind,
        name,
        workload.namespace,
        requests,
        replicas=replicas,
        labels={**workload.labels, WORKLOAD: workload.name},
        annotations=workload.annotations,
        pod=workload.pod,
        run_seconds=seconds,
    )
    ends = at + seconds if seconds is not None and workload.kind == "Deployment" else None
    return Arrival(at, workload.cluster or home, built, ends)


def build(
    kind: str,
    name: str,
    namespace: str,
    requests: Mapping[str, str],
    *,
    replicas: int = 1,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    pod: Mapping[str, Any],
    run_seconds: float | None,
) -> Object:
    """Return a workload. Pods and Jobs end after `run_seconds`; Deployments end when they are deleted."""
    labels = {**labels, "app": name}
    notes = dict(annotations)
    if run_seconds is not None and kind != "Deployment":
        notes[RUN_SECONDS] = str(max(1, round(run_seconds)))
    whole = {resource: amount for resource, amount in requests.items() if "/" in resource}
    container: Object = {"name": "main", "image": "example.invalid/app:1"}
    container["resources"] = {"requests": dict(requests), **({"limits": whole} if whole else {})}
    spec: Object = {"containers": [container], **pod}
    if kind == "Job" or (kind == "Pod" and run_seconds is not None):
        spec.setdefault("restartPolicy", "Never")
    meta: Object = {"name": name, "namespace": namespace, "labels": labels}
    base: Object = {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": meta}
    if kind == "Pod":
        return {**base, "metadata": {**meta, "annotations": notes}, "spec": spec}
    template = {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}
    if kind == "Job":
        counts = {"parallelism": replicas, "completions": replicas, "ttlSecondsAfterFinished": 60}
        return {**base, "spec": {**counts, "backoffLimit": 1000, "template": template}}
    return {
        **base,
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
