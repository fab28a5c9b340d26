"""`karpool capacity -f` of workloads with several pod templates: as a whole, or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.cli.main import run

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}},
    "status": {
        "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def replicas_of(count: Any, cpu: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "1Gi"}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    return {"replicas": count, "template": {"spec": {"containers": containers}}}


def job(kind: str = "PyTorchJob", group: str = "kubeflow.org", workers: Any = 3) -> dict[str, Any]:
    roles = {"Master": replicas_of(1, "1"), "Worker": replicas_of(workers, "2")}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"pytorchReplicaSpecs": roles},
    }


@pytest.fixture
def capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def asked(workload: dict[str, Any], *more: str) -> tuple[int, str, str]:
        file, cluster = tmp_path / "workload.yaml", tmp_path / "cluster.json"
        file.write_text(yaml.safe_dump(workload))
        cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE]}))
        code = run(["capacity", "-f", str(file), "--snapshot", str(cluster), *more], "karpool")
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def test_a_set_fits_as_a_whole(capacity: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = capacity(job())
    assert code == 0
    assert out.endswith("fits now: 1 of 1 sets of 1 master, 3 worker; at most 2 fit\n")


def test_more_copies_than_fit_are_refused(capacity: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = capacity(job(), "--replicas", "3", "-o", "json")
    answer = json.loads(out)
    assert code == 3
    assert (answer["verdict"], answer["most"]) == ("does not fit", 2)
    assert answer["components"] == {"master": 1, "worker": 3}


def test_a_kind_that_nobody_knows_is_read_where_it_is_told(
    capacity: Callable[..., tuple[int, str, str]],
) -> None:
    unknown = job("Thing", "example.com")
    code, _, err = capacity(unknown)
    assert code == 1
    assert "pass the path of its pod templates with --template-path" in err
    code, out, _ = capacity(unknown, "--template-path", "spec.pytorchReplicaSpecs.*.template")
    assert code == 0
    assert "1 of 1 sets" in out


@pytest.mark.parametrize(
    ("path", "named"),
    [("spec.nothing.template", "spec.nothing"), ("spec.pytorchReplicaSpecs", "spec.pytorch")],
)
def test_a_template_that_is_not_there_is_named(
    capacity: Callable[..., tuple[int, str, str]], path: str, named: str
) -> None:
    code, _, err = capacity(job("Thing", "example.com"), "--template-path", path)
    assert code == 1
    assert named in err


@pytest.mark.parametrize("workers", [-1, "many", 2**40])
def test_amounts_that_make_no_sense_name_their_path(
    capacity: Callable[..., tuple[int, str, str]], workers: Any
) -> None:
    code, _, err = capacity(job(workers=workers))
    assert code == 1
    assert "pytorchReplicaSpecs.Worker.replicas" in err


def test_a_component_without_replicas_takes_nothing(capacity: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = capacity(job(workers=0), "-o", "json")
    assert code == 0
    assert json.loads(out)["most"] == 16


def test_a_set_without_any_replica_is_no_set(capacity: Callable[..., tuple[int, str, str]]) -> None:
    empty = job(workers=0)
    empty["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 0
    code, out, err = capacity(empty)
    assert (code, out) == (1, "")
    assert err == "error: spec: 0: no component has replicas (master, worker); set replicas of at least one\n"


@pytest.mark.parametrize("section", ["requests", "limits"])
def test_less_than_nothing_names_its_path(
    capacity: Callable[..., tuple[int, str, str]], section: str
) -> None:
    workload = job()
    roles = workload["spec"]["pytorchReplicaSpecs"]
    roles["Worker"]["template"]["spec"]["containers"][0]["resources"][section] = {"cpu": "-1"}
    code, out, err = capacity(workload)
    assert (code, out) == (1, "")
    path = f"spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources.{section}.cpu"
    assert err == f"error: {path}: '-1': must not be negative\n"


THING = {
    "apiVersion": "example.com/v1",
    "kind": "Thing",
    "metadata": {"name": "t"},
    "spec": {"groups": [{"name": "a", **replicas_of(2, "1")}, {"name": "b", **replicas_of(1, "4")}]},
}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("spec.groups[0].template", "2 of 2 replicas; at most 16 fit"),
        ("{.spec.groups[1].template}", "1 of 1 replicas; at most 4 fit"),
        ("$.spec.groups[*].template", "1 of 1 sets of 2 a, 1 b; at most 2 fit"),
    ],
)
def test_paths_may_choose_an_entry_and_be_written_as_kubectl_has_them(capacity, path, said) -> None:
    code, out, _ = capacity(THING, "--template-path", path)
    assert (code, said in out) == (0, True)


def test_an_entry_that_is_not_there_is_named(capacity) -> None:
    code, _, err = capacity(THING, "--template-path", "spec.groups[2].template")
    assert code == 1
    assert "spec.groups[2]: None: is missing: the list has 2 entries" in err


def test_a_rollout_whose_template_is_elsewhere_says_where(capacity) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    rollout = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "r"}}
    code, _, err = capacity({**rollout, "spec": {"replicas": 5, "workloadRef": reference}})
    assert code == 1
    assert "spec.workloadRef.name: 'web': its pods are described there: ask about that Deployment" in err


def test_a_job_with_one_role_and_no_replicas_is_no_set_either(capacity) -> None:
    empty = job()
    empty["spec"]["pytorchReplicaSpecs"] = {"Worker": replicas_of(0, "1")}
    code, _, err = capacity(empty)
    assert code == 1
    assert "no component has replicas (worker)" in err
