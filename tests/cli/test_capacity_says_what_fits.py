"""`karpool capacity`: now, after scale-up, or never; named reasons; exit code 3 when it does not fit."""

import json
from pathlib import Path

import pytest
import yaml

from karpool.cli.main import run
from tests.fleet.living import deployment, pool

Capture = pytest.CaptureFixture[str]


def node(name: str, cpu: str = "2", **labels: str) -> dict:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "20"}
    own = {"kubernetes.io/hostname": name, "topology.kubernetes.io/region": "us-east-1", **labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


@pytest.fixture
def files(tmp_path: Path):
    def write(name: str, *objects: dict) -> str:
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)

    return write


def capacity(files, workload, *cluster, more=()):
    arguments = ["capacity", "-f", files("workload.yaml", workload), "--snapshot", files("c.yaml", *cluster)]
    return run([*arguments, *more], "karpool")


def as_json(capsys: Capture) -> dict:
    return json.loads(capsys.readouterr().out)


def test_what_fits_now_needs_no_new_node(files, capsys: Capture) -> None:
    assert capacity(files, deployment("web", 3, cpu="500m"), node("n1"), more=["-o", "json"]) == 0

    found = as_json(capsys)
    assert (found["kind"], found["verdict"], found["new_nodes"]) == ("Capacity", "fits now", 0)
    assert found["most"] == 4


def test_after_scale_up_names_pool_types_count_and_price(files, capsys: Capture) -> None:
    pools = [pool("web", limits={"cpu": "8"}, type=["m5.large"], capacity=["on-demand"])]
    assert capacity(files, deployment("web", 5, cpu="1"), node("n1"), *pools, more=["-o", "json"]) == 0

    found = as_json(capsys)
    existing, web = found["places"]
    assert found["verdict"] == "fits after scale-up"
    assert (existing["replicas"], web["replicas"], web["nodes"]) == (2, 3, 3)
    assert web["instance_types"] == ["m5.large"]
    assert found["price_per_hour"] == pytest.approx(3 * 0.096)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodeSelector": {"kubernetes.io/arch": "riscv"}}, "requirement kubernetes.io/arch"),
        ({"nodeSelector": {"team": "red"}}, "requirement team"),
        ({"cpu": "900"}, "no instance type has 900 cpu"),
    ],
)
def test_never_names_the_constraint(files, capsys: Capture, change, reason) -> None:
    workload = deployment("web", 1, **change)

    assert capacity(files, workload, node("n1"), pool("web", category=["m"])) == 3

    shown = capsys.readouterr()
    assert "default/web does not fit: 0 of 1 replicas" in shown.out
    line = next(line for line in shown.out.splitlines() if line.startswith("karpenter/web"))
    assert "never" in line
    assert reason in line
    assert shown.err == ""


def test_a_limit_is_not_never(files, capsys: Capture) -> None:
    pools = [pool("web", limits={"cpu": "1"}, type=["m5.large"])]
    assert capacity(files, deployment("web", 9, cpu="1"), node("n1"), *pools) == 3

    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("karpenter/web"))
    assert "not now" in line
    assert "limit cpu reached: 1 of 1 left, smallest type needs 2" in line


def test_quotas_count_too(files, capsys: Capture) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "default"},
        "spec": {"hard": {"requests.cpu": "1"}},
        "status": {"hard": {"requests.cpu": "1"}, "used": {"requests.cpu": "0"}},
    }
    assert capacity(files, deployment("web", 3, cpu="500m"), node("n1"), quota) == 3

    assert "ResourceQuotaEstimator allows 2 of 3" in capsys.readouterr().out


def test_replicas_topology_and_wide(files, capsys: Capture) -> None:
    spread = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "web"}},
            }
        ]
    }
    pools = [pool("web", limits={"cpu": "12"}, type=["m5.large"], zone=["us-east-1a", "us-east-1b"])]
    workload = deployment("web", 1, cpu="1500m", **spread)

    assert capacity(files, workload, *pools, more=["--replicas", "6", "--region", "us-east-1"]) == 0
    assert "6 of 6 replicas, 6 new nodes" in capsys.readouterr().out
    assert (
        capacity(files, workload, *pools, more=["--replicas", "7", "-o", "wide", "--region", "us-east-1"])
        == 3
    )
    assert "limit cpu reached" in capsys.readouterr().out


def test_a_region_that_nobody_names_is_said(files, capsys: Capture) -> None:
    assert capacity(files, deployment("web", 1), pool("web")) == 3

    assert "the region is unknown" in capsys.readouterr().out


def test_a_region_that_nobody_names_is_said_of_sets_too(files, capsys: Capture) -> None:
    template = deployment("web", 1)["spec"]["template"]
    roles = {role: {"replicas": 1, "template": template} for role in ("Master", "Worker")}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": roles},
    }

    assert capacity(files, job, pool("web")) == 3

    assert "the region is unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("workload", "code", "words"),
    [
        ({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}, 2, "no object with pods"),
        ({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}, 1, "must be an object"),
        (deployment("web", 1, cpu="much"), 1, "much"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(files, capsys: Capture, workload, code, words) -> None:
    assert capacity(files, workload, node("n1")) == code

    assert words in capsys.readouterr().err


def test_node_groups_of_cluster_autoscaler_are_places(files, capsys: Capture) -> None:
    labels = {
        "eks.amazonaws.com/nodegroup": "web",
        "node.kubernetes.io/instance-type": "m5.large",
        "topology.kubernetes.io/zone": "us-east-1a",
        "eks.amazonaws.com/capacityType": "ON_DEMAND",
    }
    there = node("n1", **labels)
    there["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    group = {
        "name": "eks-web-1",
        "health": {
            "nodeCounts": {"registered": {"total": 1}},
            "cloudProviderTarget": 1,
            "minSize": 1,
            "maxSize": 3,
        },
        "scaleUp": {"status": "NoActivity"},
    }
    status = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
        "data": {"status": yaml.safe_dump({"autoscalerStatus": "Running", "nodeGroups": [group]})},
    }
    assert capacity(files, deployment("web", 5, cpu="1"), there, status, more=["-o", "json"]) == 0

    found = as_json(capsys)
    place = found["places"][-1]
    assert (place["name"], place["replicas"], place["room"]) == ("cluster-autoscaler/eks-web-1", 3, 4)
    assert found["price_per_hour"] == pytest.approx(2 * 0.096)


def test_resource_claims_are_not_counted_as_nothing(files, capsys: Capture) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    workload = deployment("web", 1, resourceClaims=claims)

    assert capacity(files, workload, node("n1"), pool("web", type=["m5.large"]), more=["-o", "json"]) == 3

    found = as_json(capsys)
    assert found["verdict"] == "cannot tell: resource claims"
    assert [place["outlook"] for place in found["places"]] == ["cannot tell", "cannot tell"]


def dra_objects(*devices: dict, held: str = "") -> list[dict]:
    api = "resource.k8s.io/v1"
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    claim = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    exactly = claim["devices"]["requests"][0]["exactly"]
    exactly |= {"allocationMode": "ExactCount", "count": 1}
    results = [{"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": held}]
    objects = [
        {
            "apiVersion": api,
            "kind": "ResourceSlice",
            "metadata": {"name": "n1-gpu"},
            "spec": {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": list(devices)},
        },
        {
            "apiVersion": api,
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
        },
        {
            "apiVersion": api,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one-gpu", "namespace": "default"},
            "spec": {"spec": claim},
        },
    ]
    if held:
        objects.append(
            {
                "apiVersion": api,
                "kind": "ResourceClaim",
                "metadata": {"name": "other", "namespace": "default"},
                "spec": claim,
                "status": {"allocation": {"devices": {"results": results}}},
            }
        )
    return objects


@pytest.mark.parametrize(("held", "most"), [("", 2), ("gpu-1", 1)])
def test_devices_of_drivers_are_counted(files, capsys: Capture, held, most) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    workload = deployment("web", most, resourceClaims=claims, cpu="100m")
    objects = dra_objects({"name": "gpu-0"}, {"name": "gpu-1"}, held=held)

    assert capacity(files, workload, node("n1"), node("n2"), *objects, more=["-o", "json"]) == 0
    found = as_json(capsys)
    assert (found["verdict"], found["most"]) == ("fits now", most)

    more = deployment("web", most + 1, resourceClaims=claims, cpu="100m")
    assert capacity(files, more, node("n1"), node("n2"), *objects) == 3
    shown = capsys.readouterr()
    assert "does not fit" in shown.out


def test_a_claim_that_cannot_be_read_may_hold_any_device(files, capsys: Capture) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    workload = deployment("web", 1, resourceClaims=claims)
    broken = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "bad", "namespace": "default"},
        "spec": {"devices": {"requests": 7}},
    }

    assert capacity(files, workload, node("n1"), *dra_objects({"name": "gpu-0"}), broken) == 3
    shown = capsys.readouterr()
    assert "cannot tell: resource claims" in shown.out
    assert "ResourceClaim default/bad" in shown.err


def test_a_pod_without_resource_claims_is_never_said_to_have_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a}\n"
    (tmp_path / "c.yaml").write_text(pool)  # of no region: nobody knows what it could buy
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
    (tmp_path / "p.yaml").write_text(pod)
    arguments = ["capacity", "-f", str(tmp_path / "p.yaml"), "--snapshot", str(tmp_path / "c.yaml")]

    assert run(arguments, "karpool") == 3
    shown = capsys.readouterr().out
    assert "cannot tell: 0 of" in shown and "resource claims" not in shown
    assert "it is unknown how many more" in shown
    assert "the region is unknown" in shown
