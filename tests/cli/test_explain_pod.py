"""`karpool explain pod` and `karpool capacity` of what a cluster has: why it waits, and what would help."""

import json
from pathlib import Path

import pytest
import yaml

from karpool.cli.main import run
from karpool.model.catalogue.files import load_shipped
from tests.cli.example_fleet import example_fleet
from tests.cli.test_capacity_says_what_fits import node
from tests.fleet.living import deployment, pool

Capture = pytest.CaptureFixture[str]
NOW = "2026-01-01T12:00:00Z"


@pytest.fixture
def file(tmp_path: Path):
    def write(*objects: dict) -> str:
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)

    return write


def waiting(name: str = "stuck", cpu: str = "1", **spec: object) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}, "creationTimestamp": NOW},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **spec},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
            ],
        },
    }


def explain(capsys: Capture, path: str, name: str = "stuck", *more: str) -> tuple[int, dict]:
    code = run(["explain", "pod", name, "--snapshot", path, "-o", "json", *more], "karpool")
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else {"err": shown.err}


def test_the_example_pod_is_told_what_is_in_the_way_everywhere(file, capsys: Capture) -> None:
    path = file(*example_fleet(load_shipped("us-east-1")))

    assert run(["explain", "pod", "ml/embeddings-1", "--snapshot", path], "karpool") == 3

    shown = capsys.readouterr().out
    assert "pod ml/embeddings-1 fits nowhere, and no new node would take it" in shown
    assert "default-scheduler says: 0/7 nodes are available" in shown
    assert "too little nvidia.com/gpu even when empty (the largest has 0, asked 1)" in shown
    assert "limit nvidia.com/gpu reached: 0 of 1 left" in shown
    assert "no instance type has 1 nvidia.com/gpu" in shown


def test_groups_of_nodes_are_largest_first_and_full_is_not_small(file, capsys: Capture) -> None:
    full = {**waiting("other", cpu="7"), "status": {"phase": "Running"}}
    full["spec"]["nodeName"] = "large"
    small = [node(f"small-{index}", cpu="2") for index in range(3)]

    code, said = explain(capsys, file(*small, node("large", cpu="8"), full, waiting(cpu="4")))

    assert code == 3
    assert [(group["nodes"], group["detail"]) for group in said["obstacles"]] == [
        (3, "too little cpu even when empty (the largest has 2, asked 4)"),
        (1, "cpu is used by other pods (most free 1, asked 4)"),
    ]
    assert all(group["remedy"] for group in said["obstacles"])


def test_a_pod_does_not_wait_for_itself(file, capsys: Capture) -> None:
    limited = pool("web", limits={"cpu": "2"}, type=["m5.large"], capacity=["on-demand"])

    code, said = explain(capsys, file(node("n1", cpu="500m"), limited, waiting()))

    assert (code, said["verdict"]) == (0, "waits, and a new node would take it")
    (offer,) = said["offers"]
    assert (offer["name"], offer["instanceTypes"], offer["pricePerHour"]) == (
        "karpenter/web",
        ["m5.large"],
        pytest.approx(0.096),
    )
    assert said["othersWaiting"] == 0


def test_each_pool_has_a_price_though_only_one_would_be_asked(file, capsys: Capture) -> None:
    pools = [
        pool("a", type=["m5.large"], capacity=["on-demand"]),
        pool("b", type=["m5.xlarge"], capacity=["on-demand"]),
    ]

    _, said = explain(capsys, file(node("n1", cpu="500m"), *pools, waiting()))

    prices = {offer["name"]: offer["pricePerHour"] for offer in said["offers"]}
    assert prices == {"karpenter/a": pytest.approx(0.096), "karpenter/b": pytest.approx(0.192)}


def claim(name: str, *, created: str, initialized: str = "", pool_name: str = "web") -> dict:
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": created} for kind in ("Launched",)]
    if initialized:
        conditions += [
            {"type": kind, "status": "True", "lastTransitionTime": initialized}
            for kind in ("Registered", "Initialized")
        ]
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "20"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "labels": {"karpenter.sh/nodepool": pool_name, "topology.kubernetes.io/region": "us-east-1"},
        },
        "spec": {"requirements": []},
        "status": {
            "providerID": f"aws:///us-east-1a/{name}",
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            **({"nodeName": "n1"} if initialized else {}),
        },
    }


def test_a_node_on_its_way_is_named_with_the_time_its_pool_needs(file, capsys: Capture, tmp_path) -> None:
    there = node("n1", cpu="500m", **{"karpenter.sh/nodepool": "web", "karpenter.sh/initialized": "true"})
    there["spec"] = {"providerID": "aws:///us-east-1a/old"}
    past = claim("old", created="2026-01-01T11:00:00Z", initialized="2026-01-01T11:01:30Z")
    path = file(there, pool("web", type=["m5.large"]), past, claim("new", created=NOW), waiting())

    code, said = explain(capsys, path)

    assert (code, said["verdict"]) == (0, "waits for a node that is on its way")
    (coming,) = said["coming"]
    assert (coming["claim"], coming["stage"], coming["takesPod"]) == ("new", "Registering", True)
    assert coming["comparedWith"] == 1


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        (
            {"schedulingGates": [{"name": "example.com/quota"}]},
            "is held by scheduling gates",
            "example.com/quota",
        ),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
            "waits for a volume",
            "PersistentVolumeClaim default/data does not exist",
        ),
    ],
)
def test_what_no_node_can_mend_comes_first(file, capsys: Capture, more, verdict, words) -> None:
    path = file(node("n1", cpu="8"), waiting(**more))

    code, said = explain(capsys, path)
    assert (code, said["verdict"]) == (3, verdict)

    run(["explain", "pod", "stuck", "--snapshot", path], "karpool")
    assert words in capsys.readouterr().out.splitlines()[1]


def test_a_bound_volume_says_where_it_can_be_used(file, capsys: Capture) -> None:
    in_zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [in_zone]}]}}},
    }
    bound = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"volumeName": "disk"},
        "status": {"phase": "Bound"},
    }
    mount = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    there = node("n1", cpu="8", **{"topology.kubernetes.io/zone": "a"})

    _, said = explain(capsys, file(there, volume, bound, waiting(**mount)))

    (note,) = said["volumes"]
    assert note["isReady"] and note["claim"] == "default/data"
    assert "bound to disk, which can be used where topology.kubernetes.io/zone In (b)" in note["detail"]
    assert [group["detail"] for group in said["obstacles"]] == ["a volume cannot be used there"]


def test_events_are_quoted_newest_first_and_only_those_of_the_pod(file, capsys: Capture) -> None:
    def event(name: str, message: str, at: str, about: str = "stuck") -> dict:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": about, "namespace": "default"},
            "reason": "FailedScheduling",
            "message": message,
            "reportingComponent": name,
            "lastTimestamp": at,
        }

    path = file(
        node("n1", cpu="500m"),
        waiting(),
        event("karpenter", "no pool\x1b[31m", "2026-01-01T12:00:01Z"),
        event("autoscaler", "no group", "2026-01-01T12:00:02Z"),
        event("karpenter2", "of another", "2026-01-01T12:00:03Z", about="other"),
    )

    _, said = explain(capsys, path)
    assert [remark["message"] for remark in said["remarks"]] == ["0/1 nodes", "no group", "no pool\x1b[31m"]

    run(["explain", "pod", "stuck", "--snapshot", path], "karpool")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["explain", "pod", "nobody"], 1, "there is no pod default/nobody in cluster.yaml"),
        (["explain", "pod", "a/b/c"], 2, "is not like"),
        (["explain", "pod", "a/b", "-n", "c"], 2, "names namespace a"),
        (["explain", "pod", "stuck", "--karmada-context", "x"], 1, "cannot be combined with --snapshot"),
        (["capacity"], 2, "name the workload"),
        (["capacity", "nonsense/x"], 2, "is not like"),
        (["capacity", "pod/"], 2, "is not like"),
        (["capacity", "deployment/none"], 1, "there is no Deployment default/none"),
        (["capacity", "-l", "app in ("], 2, "unbalanced"),
        (["capacity", "-l", "app=none"], 1, "no pod with these labels is pending"),
        (["capacity", "pod/stuck", "-A"], 2, "--all-namespaces needs --selector"),
        (["capacity", "pod/stuck", "--template-path", "spec.template"], 2, "--template-path needs -f"),
    ],
)
def test_wrong_input_is_told_what_would_be_right(file, capsys: Capture, arguments, code, words) -> None:
    path = file(node("n1", cpu="500m"), waiting())

    assert run([*arguments, "--snapshot", path], "karpool") == code
    assert words in capsys.readouterr().err


def capacity(capsys: Capture, path: str, *arguments: str) -> tuple[int, dict]:
    code = run(["capacity", *arguments, "--snapshot", path, "-o", "json"], "karpool")
    return code, json.loads(capsys.readouterr().out)


def test_a_deployment_is_asked_about_what_it_still_misses(file, capsys: Capture) -> None:
    placed = {**waiting("web"), "status": {"phase": "Running"}}
    placed["metadata"]["name"], placed["spec"]["nodeName"] = "web-0", "n1"
    second = waiting("web")
    second["metadata"]["name"] = "web-1"
    wanted = deployment("web", 4, cpu="1")
    wanted["metadata"]["namespace"] = "default"

    code, said = capacity(capsys, file(node("n1", cpu="3"), placed, second, wanted), "deploy/web")

    assert (code, said["wanted"], said["places"][0]["replicas"]) == (3, 3, 2)
    assert said["about"] == "1 of its pods have a node"
    assert said["pricePerHour"] == said["price_per_hour"]  # old keys for one release


def test_pods_that_labels_choose_are_asked_one_after_the_other(file, capsys: Capture) -> None:
    """The second group must not be offered the room of the first."""
    path = file(node("n1", cpu="3"), waiting("a", cpu="2"), waiting("b", cpu="1500m"))

    code, said = capacity(capsys, path, "-l", "app in (a, b)")

    assert code == 3
    assert [(item["workload"], item["verdict"]) for item in said["items"]] == [
        ("default/a", "fits now"),
        ("default/b", "does not fit"),
    ]


def test_a_file_may_hold_several_workloads(file, tmp_path, capsys: Capture) -> None:
    workloads = tmp_path / "workloads.yaml"
    workloads.write_text(yaml.safe_dump_all([deployment("a", 1, cpu="2"), deployment("b", 1, cpu="1")]))

    code, said = capacity(capsys, file(node("n1", cpu="3")), "-f", str(workloads))
    assert (code, [item["verdict"] for item in said["items"]]) == (0, ["fits now", "fits now"])

    code, said = capacity(capsys, file(node("n1", cpu="2")), "-f", str(workloads))
    assert (code, [item["verdict"] for item in said["items"]]) == (3, ["fits now", "does not fit"])


def test_every_refusal_has_its_line_in_the_table(file, capsys: Capture) -> None:
    tainted = node("n2", cpu="8")
    tainted["spec"] = {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]}

    run(["capacity", "pod/stuck", "--snapshot", file(node("n1", cpu="500m"), tainted, waiting())], "karpool")

    shown = capsys.readouterr().out
    assert "1 node: insufficient cpu" in shown
    assert "1 node: untolerated taint team=red:NoSchedule" in shown


def test_it_is_said_who_would_have_to_go(file, capsys: Capture) -> None:
    holder = waiting("holder", cpu="3")
    holder["spec"] |= {"nodeName": "n1", "priority": -5}
    holder["status"] = {"phase": "Running"}
    path = file(node("n1", cpu="4"), holder, waiting("stuck", cpu="2"))

    _, shown = explain(capsys, path)
    run(["explain", "pod", "stuck", "--snapshot", path], "karpool")

    going = [{"pod": "default/holder", "priority": -5, "why": "has a lower priority"}]
    assert shown["wouldFitWithout"] == {"node": "n1", "pods": going, "isCut": False, "forbiddenBy": ""}
    assert "WOULD FIT ON n1 IF THESE WENT" in capsys.readouterr().out


def test_a_budget_that_forbids_it_is_named(file, capsys: Capture) -> None:
    holder = waiting("holder", cpu="3")
    holder["metadata"]["labels"] = {"app": "db"}
    holder["spec"] |= {"nodeName": "n1", "priority": -5}
    holder["status"] = {"phase": "Running"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "db"}}},
    }
    path = file(node("n1", cpu="4"), holder, waiting("stuck", cpu="2"), budget)

    _, shown = explain(capsys, path)
    run(["explain", "pod", "stuck", "--snapshot", path], "karpool")

    why = "default/holder: disruption budget db allows no disruption"
    assert shown["wouldFitWithout"]["forbiddenBy"] == why
    assert f"but they cannot all be removed now: {why}" in capsys.readouterr().out
