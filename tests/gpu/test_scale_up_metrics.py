"""Every series is there from the start, bounded, and known to the alerts."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from karpool.cluster.market.launch_reasons import ATTEMPT_REASONS, LaunchReason
from karpool.gpu.controller.metrics import FAILURE, STAGES, SUCCESS, ScaleUpMetrics
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState
from karpool.gpu.scale_up.demand import GpuDemand
from karpool.model.kubernetes.api_resources import PODS, ObjectKey
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.placeholder import Placeholder

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "alerts" / "gpu.yaml"
STORIES = Path(__file__).parent / "alerts_test.yaml"
KEY = DemandKey("shared", "A100", 1, 40, 100)
NOW = 10_000.0


def pod(name: str, request: str, created: float = NOW) -> Placeholder:
    return Placeholder(PODS, ObjectKey("ns", name), name, request, 1, 0, RequestPurpose.SCALE_UP, created)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_states_and_reasons_are_there_at_zero() -> None:
    registry = CollectorRegistry()
    metrics = ScaleUpMetrics(registry)
    metrics.observe([ScaleUpRecord(KEY, ScaleUpState.BUFFERED, NOW, NOW)], [], {}, {}, NOW)
    metrics.observe([], [], {}, {}, NOW)
    for state in ScaleUpState:
        assert value(registry, "karpool_gpu_scaling_requests", state=state.value) == 0
    for setback in ATTEMPT_REASONS:
        labels = {
            "pool": "shared",
            "model": "A100",
            "result": FAILURE,
            "reason": setback.value,
        }
        assert registry.get_sample_value("karpool_gpu_scaling_results_total", labels) == 0
    for stage in STAGES:
        name = "karpool_gpu_nodeclaim_provision_duration_seconds_count"
        assert value(registry, name, pool="shared", stage=stage) == 0


def test_gauges_follow_what_is_and_return_to_zero() -> None:
    registry = CollectorRegistry()
    metrics = ScaleUpMetrics(registry)
    record = ScaleUpRecord(KEY, ScaleUpState.PENDING, NOW - 50, NOW - 30)
    pods = [pod("a", record.name), pod("b", record.name, NOW - 2400), pod("c", "gone")]
    metrics.observe(
        [record], pods, {record.name: GpuDemand(KEY, (), ())}, {"shared": 3}, NOW, delete_tries={"a": 4}
    )
    shared = {"pool": "shared", "model": "A100"}
    assert value(registry, "karpool_gpu_smart_pods_active", **shared) == 2
    assert value(registry, "karpool_gpu_smart_pods_active", pool="unknown", model="unknown") == 1
    assert value(registry, "karpool_gpu_smart_pods_overdue") == 1
    assert value(registry, "karpool_gpu_smart_pod_delete_tries") == 4
    assert value(registry, "karpool_gpu_scaling_requests", state="Pending") == 1
    assert value(registry, "karpool_gpu_scaling_requests_oldest_seconds", state="Pending") == 30
    assert value(registry, "karpool_gpu_scaling_holds", pool="shared") == 3
    metrics.observe([], [], {}, {}, NOW)
    assert value(registry, "karpool_gpu_smart_pods_active", **shared) == 0
    assert value(registry, "karpool_gpu_scaling_holds", pool="shared") == 0
    assert value(registry, "karpool_gpu_scaling_requests", state="Pending") == 0


def test_the_names_of_the_design_are_there_when_wished_and_only_then() -> None:
    registry, plain = CollectorRegistry(), CollectorRegistry()
    both = ScaleUpMetrics(registry, original_names=True)
    ScaleUpMetrics(plain)
    both.created("shared", "A100", 3)
    both.attempt("shared", "A100", "c1", SUCCESS)
    both.attempt("shared", "A100", "c1", FAILURE, LaunchReason.STOCK_OUT.value)
    both.deleted("shared", "A100", "HandedOff")
    both.stage_seconds("shared", "total", 100)
    both.rejected("shared", "quota")
    text = generate_latest(registry).decode()
    for prefix in ("karpool_gpu", "tensor_fusion"):
        for name in (
            'smart_pods_created_total{model="A100",pool="shared"} 3.0',
            "smart_pods_active",
            "nodeclaim_provision_duration_seconds_bucket",
            "scaling_success_rate 0.5",
        ):
            assert f"{prefix}_{name}" in text, name
    assert "tensor_fusion" not in generate_latest(plain).decode()


def test_hostile_names_cannot_make_any_number_of_series() -> None:
    registry = CollectorRegistry()
    metrics = ScaleUpMetrics(registry)
    for number in range(1000):
        metrics.created(f"pool-{number}", "x" * 10_000)
        metrics.attempt(f"pool-{number}", "m", f"candidate-{number}", FAILURE, f"reason-{number}")
    lines = generate_latest(registry).decode().splitlines()
    assert sum(line.startswith("karpool_gpu_smart_pods_created_total") for line in lines) <= 201
    assert max(map(len, lines)) < 1000
    assert sum(line.startswith("karpool_gpu_scaling_attempts_total") for line in lines) <= 1000
    total = value(registry, "karpool_gpu_smart_pods_created_total", pool="other", model="other")
    assert total is not None and total >= 799


def test_alerts_ask_only_for_series_that_exist() -> None:
    registry = CollectorRegistry()
    ScaleUpMetrics(registry)
    known = {sample for metric in registry.collect() for sample in _names(metric.name, metric.type)}
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    for rule in rules:
        asked = set(re.findall(r"\b(karpool_gpu_[a-z_]+)", rule["expr"]))
        assert asked and asked <= known, (rule, asked - known)
    reasons = {each for rule in rules for each in re.findall(r'reason!?="([A-Za-z]+)"', rule["expr"])}
    assert reasons <= {setback.value for setback in ATTEMPT_REASONS}
    states = {each for rule in rules for each in re.findall(r'state=~"([A-Za-z|]+)"', rule["expr"])}
    assert {state for each in states for state in each.split("|")} <= {state.value for state in ScaleUpState}
    alerts = [rule for rule in rules if "alert" in rule]
    assert len(alerts) >= 6 and all({"summary", "description"} <= set(rule["annotations"]) for rule in alerts)


def _names(name: str, kind: str) -> list[str]:
    if kind == "counter":
        return [f"{name}_total"]
    return [f"{name}_bucket", f"{name}_count", f"{name}_sum"] if kind == "histogram" else [name]


def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: the rules were not checked by Prometheus itself")
    for how, path in (("check", ALERTS), ("test", STORIES)):
        answer = subprocess.run([tool, how, "rules", str(path)], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
