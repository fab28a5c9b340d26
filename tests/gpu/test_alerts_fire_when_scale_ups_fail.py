"""Failures played in the simulated cluster: what the metrics show, and which alerts Prometheus raises."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from karpool.gpu.controller.actuator import actuate
from karpool.gpu.controller.allocator_state import AllocatorState
from karpool.gpu.controller.metrics import STAGES, ScaleUpMetrics
from karpool.gpu.controller.step_report import StepReport
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scale_up.step import plan_step
from tests.gpu.simulated import RUNGS, Cluster, _drive, _Hands

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "alerts" / "gpu.yaml"
MINUTE = 60.0
SECONDS = "karpool_gpu_nodeclaim_provision_duration_seconds"


class MeasuredCluster(Cluster):
    """The controller as it runs, its metrics included; one sample of every series a minute."""

    def __init__(self) -> None:
        super().__init__(ScaleUpSettings(max_in_flight=4))
        self.registry = CollectorRegistry()
        self.metrics = ScaleUpMetrics(self.registry)
        self.report = StepReport(self.metrics)
        self.samples: list[dict[str, float]] = []

    def _run(self, desk: AllocatorState) -> None:
        view = self.view()
        triage, world = desk.refresh(view, lambda item: RUNGS)
        hands = _Hands(self, desk)
        for item, allocation in triage.served:
            _drive(hands.bind(item, allocation))
        plan = self.last_plan = plan_step(world, self.settings)
        result = _drive(actuate(plan, dict(world.records), hands))
        self.report.report(world, plan, result.unwritten)
        tries = {uid: times for uid, (_, times) in desk.deletes.items()}
        self.metrics.observe(
            self.records.values(), world.placeholders, world.demand, {}, self.now, delete_tries=tries
        )

    def play(
        self, minutes: int, every_tick: Callable[["MeasuredCluster"], None] = lambda cluster: None
    ) -> None:
        for _ in range(minutes):
            for _ in range(12):
                every_tick(self)
                self.advance(MINUTE / 12)
            self.samples.append(self._series())

    def _series(self) -> dict[str, float]:
        found = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                labels = ",".join(f'{name}="{text}"' for name, text in sorted(sample.labels.items()))
                if not sample.name.endswith("_created"):
                    found[f"{sample.name}{{{labels}}}"] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def firing(cluster: MeasuredCluster, folder: Path) -> set[str]:
    """Every alert that Prometheus raises at some time, given these samples."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: the rules were not evaluated by Prometheus itself")
    names = sorted({name for sample in cluster.samples for name in sample})
    series = [
        {
            "series": name,
            "values": " ".join(str(sample[name]) if name in sample else "_" for sample in cluster.samples),
        }
        for name in names
    ]
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    alerts = [rule["alert"] for rule in rules if "alert" in rule]
    raised = set()
    for alert in alerts:
        fired = f'count(max_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[3h])) > bool 0'
        story = {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": series,
                    "promql_expr_test": [
                        {
                            "expr": fired,
                            "eval_time": f"{len(cluster.samples) - 1}m",
                            "exp_samples": [{"labels": "{}", "value": 1}],
                        }
                    ],
                }
            ],
        }
        path = folder / f"{alert}.yaml"
        path.write_text(yaml.safe_dump(story))
        answer = subprocess.run(
            [tool, "test", "rules", str(path)], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            raised.add(alert)
        else:
            assert "exp: {1}" in answer.stderr + answer.stdout or "got:" in answer.stderr + answer.stdout
    return raised


def every_stage_is_timed(cluster: MeasuredCluster, times: int) -> bool:
    return all(cluster.value(f"{SECONDS}_count", pool="shared", stage=stage) == times for stage in STAGES)


@pytest.mark.long
def test_a_scale_up_that_succeeds_is_counted_and_timed_and_nobody_is_alarmed(tmp_path: Path) -> None:
    cluster = MeasuredCluster()
    uid = cluster.add_worker("small")
    cluster.play(10)

    assert cluster.workers[uid].node and not cluster.records
    assert cluster.value("karpool_gpu_scaling_success_rate") == 1
    labels = {"pool": "shared", "model": "*", "result": "success", "reason": ""}
    assert cluster.value("karpool_gpu_scaling_results_total", **labels) == 1
    assert every_stage_is_timed(cluster, 1)
    total = cluster.value(f"{SECONDS}_sum", pool="shared", stage="total")
    parts = [
        cluster.value(f"{SECONDS}_sum", pool="shared", stage=stage) for stage in STAGES if stage != "total"
    ]
    assert 0 < total == pytest.approx(sum(parts), abs=1.0)
    assert cluster.value("karpool_gpu_smart_pods_created_total", pool="shared", model="*") == 1
    assert firing(cluster, tmp_path) == set()


def test_a_restart_in_between_counts_nothing_twice(tmp_path: Path) -> None:
    cluster = MeasuredCluster()
    cluster.add_worker("small")
    cluster.play(1)
    cluster.crash()
    cluster.report = StepReport(cluster.metrics)
    cluster.play(9)

    assert cluster.value("karpool_gpu_scaling_success_rate") == 1
    assert cluster.value(f"{SECONDS}_count", pool="shared", stage="total") == 1
    assert cluster.value(f"{SECONDS}_count", pool="shared", stage="handoff") == 1


@pytest.mark.long
def test_a_machine_that_does_not_start_is_an_alarm(tmp_path: Path) -> None:
    cluster = MeasuredCluster()
    cluster.add_worker("small")

    def never_starts(cluster: MeasuredCluster) -> None:
        for claim in cluster.claims.values():
            claim.launches = cluster.now + 3600

    cluster.play(30, never_starts)

    assert "KarpoolSmartPodPendingTooLong" in firing(cluster, tmp_path)


@pytest.mark.long
def test_claims_that_get_lost_are_an_alarm(tmp_path: Path) -> None:
    cluster = MeasuredCluster()
    cluster.add_worker("small")

    def gets_lost(cluster: MeasuredCluster) -> None:
        cluster.next_node = {"lost": True}

    cluster.play(60, gets_lost)

    assert cluster.value("karpool_gpu_scaling_success_rate") == 0
    assert "KarpoolNodeClaimFailureRateHigh" in firing(cluster, tmp_path)


@pytest.mark.long
def test_nodes_that_come_late_are_an_alarm(tmp_path: Path) -> None:
    cluster = MeasuredCluster()
    cluster.add_worker("small")

    def comes_late(cluster: MeasuredCluster) -> None:
        cluster.next_node = {"slow": 800.0}
        for claim in cluster.claims.values():
            claim.launches = max(claim.launches, claim.created + 600)

    cluster.play(60, comes_late)

    assert cluster.value("karpool_gpu_scaling_success_rate") == 1
    assert cluster.value(f"{SECONDS}_sum", pool="shared", stage="total") > 1200
    assert "KarpoolScalingResponseTooLong" in firing(cluster, tmp_path)


@pytest.mark.long
def test_a_smart_pod_that_does_not_go_is_an_alarm(tmp_path: Path) -> None:
    cluster = MeasuredCluster()
    uid = cluster.add_worker("small")

    def does_not_go(cluster: MeasuredCluster) -> None:
        for pod in cluster.pods.values():
            pod.stuck = True

    cluster.play(2, does_not_go)
    cluster.delete_worker(uid)
    cluster.play(58, does_not_go)

    assert cluster.pods
    assert firing(cluster, tmp_path) >= {"KarpoolSmartPodCleanupFailing"}
