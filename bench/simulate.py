"""How many times as fast as real time a scenario is played: 500 nodes, 2,000 pods, some hours.

Two clusters under Karmada with scheduler, estimators and Karpenter, and once more with consolidators
that follow Balanced; Deployments come and go all the time. `from nothing` includes bringing the fleet up,
`steady` is what comes after the first hour. Time is that of the process's CPU, which on a quiet machine is
the wall's: all is one thread.
"""

import logging
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import msgspec
import structlog

from karpool_fleet.simulation.engine import simulate
from karpool_fleet.simulation.scenario_file import parse_scenario

RUNS = 2
HOURS = 6  # a few hours are like a day, and take a quarter of its time
TARGET = 1000.0
_POOL = """
      - apiVersion: karpenter.sh/v1
        kind: NodePool
        metadata: {name: general}
        spec:
          disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 5m}
          template:
            spec:
              nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
              requirements:
                - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}
                - {key: karpenter.k8s.aws/instance-cpu, operator: In, values: ["8"]}
"""
_SCENARIO = f"""
kind: Scenario
seed: 1
duration: {HOURS}h
measureFrom: 1h
sample: 5m
clusters:
  - name: east
    objects: {_POOL}
  - name: west
    region: us-west-2
    objects: {_POOL}
karmada: {{}}
controllers:
  scheduler: {{feature-gates: SchedulingOvercommitProtection=true}}
  estimator: {{node-capacity-providers: [karpenter], feature-gates: SchedulingOvercommitProtection=true}}
objects:
  - apiVersion: policy.karmada.io/v1alpha1
    kind: ClusterPropagationPolicy
    metadata: {{name: all}}
    spec:
      schedulerName: karpool-scheduler
      resourceSelectors: [{{apiVersion: apps/v1, kind: Deployment}}]
      placement:
        replicaScheduling:
          replicaSchedulingType: Divided
          replicaDivisionPreference: Weighted
          weightPreference: {{dynamicWeight: AvailableReplicas}}
workloads:
  - {{name: base, every: 5s, count: 20, replicas: 99, requests: {{cpu: 1900m, memory: 2Gi}}}}
  - name: web
    start: 1h
    every: exponential(15m)
    replicas: [1, 12]
    requests: {{cpu: 500m, memory: 1Gi}}
    lifetime: lognormal(1h, 0.7)
"""


def benchmarks() -> Iterator[Callable[[], dict[str, Any]]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs: list[tuple[float, float]] = []

    def measured() -> list[tuple[float, float]]:
        while len(runs) < RUNS:
            runs.append(played())
        return runs

    def simulated_whole() -> dict[str, Any]:
        found = _result(f"simulate 500 nodes, {HOURS} h from nothing", [run[0] for run in measured()])
        return {**found, "target": None}

    def simulated_steady() -> dict[str, Any]:
        return _result("simulate 500 nodes, steady", [run[1] for run in measured()])

    def simulated_consolidated() -> dict[str, Any]:
        found = [played({"consolidator": {"interval": "1m", "policy": "Balanced"}})[1] for _ in range(RUNS)]
        return _result("simulate 500 nodes, steady, with consolidators", found)

    yield simulated_whole
    yield simulated_steady
    yield simulated_consolidated


def _result(name: str, values: list[float]) -> dict[str, Any]:
    return {"name": name, "unit": "x", "values": values, "target": TARGET, "better": "higher"}


def played(more: dict[str, Any] | None = None) -> tuple[float, float]:
    """How many times as fast as real time: with bringing up, and after the first hour."""
    [named] = parse_scenario(_SCENARIO.encode())
    controllers = {**named.scenario.controllers, **(more or {})}
    scenario = msgspec.structs.replace(named.scenario, controllers=controllers)
    named = msgspec.structs.replace(named, scenario=scenario)
    start, after_an_hour = process_time(), 0.0

    def progress(share: float) -> None:
        nonlocal after_an_hour
        if not after_an_hour and share >= 1 / HOURS:
            after_an_hour = process_time()

    result = simulate(named, progress=progress, keep_log=False)
    end = process_time()
    nodes = result.figures["nodesMean"] or 0.0
    assert nodes >= 490, f"only {nodes} nodes"
    return HOURS * 3600 / (end - start), (HOURS - 1) * 3600 / (end - after_an_hour)
