"""`karpool capacity KIND/NAME`: whatever kind of workload a cluster has, built in or not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.cli.main import run
from karpool.model.catalogue.files import load_shipped
from tests.cli.example_fleet import example_fleet

POD = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
}
SELECTOR = {"matchLabels": {"app": "x"}}
JOB = {"spec": {"template": POD}}
WORKLOADS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "cj/x": ("batch/v1", "CronJob", {"schedule": "0 * * * *", "jobTemplate": JOB}, "1 of 1 replicas"),
    "ds/x": ("apps/v1", "DaemonSet", {"selector": SELECTOR, "template": POD}, "1 of 1 replicas"),
    "rc/x": (
        "v1",
        "ReplicationController",
        {"replicas": 3, "selector": {"app": "x"}, "template": POD},
        "2 of 2 replicas",  # one of its three has a node
    ),
    "rollout/x": (
        "argoproj.io/v1alpha1",
        "Rollout",
        {"replicas": 4, "selector": SELECTOR, "template": POD},
        "3 of 3 replicas",
    ),
    "jobset/x": (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {
            "replicatedJobs": [
                {"name": "driver", "replicas": 1, "template": JOB},
                {"name": "worker", "replicas": 2, "template": JOB},
            ]
        },
        "1 of 1 sets of 1 driver, 2 worker",
    ),
    "vcjob/x": (
        "batch.volcano.sh/v1alpha1",
        "Job",
        {"tasks": [{"name": "w", "replicas": 2, "template": POD}]},
        "2 of 2 replicas",
    ),
}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    objects = list(example_fleet(load_shipped("us-east-1")))
    node = next(obj["metadata"]["name"] for obj in objects if obj["kind"] == "Node")
    objects.append(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "placed", "namespace": "default", "labels": {"app": "x"}},
            "spec": {**POD["spec"], "nodeName": node},
            "status": {"phase": "Running"},
        }
    )
    for api_version, kind, spec, _ in WORKLOADS.values():
        metadata = {"name": "x", "namespace": "default"}
        objects.append({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return path


@pytest.mark.parametrize("reference", WORKLOADS)
def test_a_workload_is_found_by_its_kind_and_name(
    reference: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capacity", reference, "--snapshot", str(fleet)], "karpool") == 0
    assert WORKLOADS[reference][3] in capsys.readouterr().out


def test_what_is_not_there_says_how_to_find_what_is(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capacity", "vcjob/none", "--snapshot", str(fleet)], "karpool") == 1
    assert "`kubectl get jobs.batch.volcano.sh -A`" in capsys.readouterr().err
    assert run(["capacity", "nonsense/x", "--snapshot", str(fleet)], "karpool") == 2
    assert "cronjob/NAME" in capsys.readouterr().err
