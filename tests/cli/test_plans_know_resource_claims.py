"""`karpool plan` on a cluster in which devices of DRA drivers are given out."""

import json

import pytest
import yaml

from karpool.cli.main import run
from tests.consolidation.cluster_objects import flat, node, pod, pool


@pytest.fixture
def plan(tmp_path, capsys):
    def command(*objects):
        path = tmp_path / "prod.yaml"
        path.write_text(yaml.safe_dump_all(flat(*objects)))
        assert run(["plan", "--snapshot", str(path), "-o", "json"], "karpool") == 0
        return json.loads(capsys.readouterr().out)

    return command


@pytest.mark.parametrize("claims", [None, [{"name": "gpu", "resourceClaimTemplateName": "one"}]])
def test_a_pod_with_a_claim_keeps_its_node(plan, claims):
    web = pod("web", "big", cpu="100m")
    if claims:
        web["spec"]["resourceClaims"] = claims
    objects = pool("web", types=("m5.2xlarge", "m5.large")), node("big", "m5.2xlarge", pool="web"), web

    assert bool(plan(*objects)["moves"]) is not bool(claims)


DRIVER = "gpu.example.com"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
SPEC = {
    "devices": {
        "requests": [
            {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
        ]
    }
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "team"},
    "spec": {"spec": SPEC},
}


def devices(name, count):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-gpus"},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{index}"} for index in range(count)],
        },
    }


def allocated(name, where, device, owner=""):
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner, "controller": True}]
    result = {"request": "r", "driver": DRIVER, "pool": where, "device": device}
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [where]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "ownerReferences": owners if owner else []},
        "spec": SPEC,
        "status": {"allocation": allocation},
    }


def claiming(name, on, **reference):
    workload = pod(name, on, cpu="100m")
    workload["spec"]["resourceClaims"] = [{"name": "gpu", **reference}]
    return workload


def stays(workload):
    workload["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "true"
    return workload


def two_nodes(*more):
    nodes = [node("big", "m5.2xlarge", pool="web"), node("other", "m5.large", pool="web")]
    busy = stays(pod("busy", "other", cpu="1200m"))
    return [pool("web", types=("m5.2xlarge", "m5.large")), nodes, busy, CLASS, TEMPLATE, *more]


def removed(answer):
    return sorted(source["name"] for move in answer["moves"] for source in move["nodes"])


def bought(answer):
    """New nodes: where no device is free on those that are there."""
    return sum(len(move["new_nodes"]) for move in answer["moves"])


def test_it_moves_where_a_device_is_free(plan):
    web = claiming("web", "big", resourceClaimTemplateName="one")
    held = allocated("web-gpu", "big", "gpu-0", owner="web")

    free = plan(*two_nodes(web, held, devices("big", 1), devices("other", 1)))
    taken = plan(
        *two_nodes(
            web,
            held,
            devices("big", 1),
            devices("other", 1),
            allocated("theirs", "other", "gpu-0", owner="busy"),
        )
    )

    assert (removed(free), bought(free)) == (["big"], 0)
    assert (removed(taken), bought(taken)) == (["big"], 1)


def test_a_template_as_people_write_it_asks_for_one_device(plan):
    """The API server adds mode and count; what is stored without them is refused, as by Kubernetes."""
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    short = {**TEMPLATE, "spec": {"spec": {"devices": {"requests": requests}}}}
    stored = {**short, "metadata": {**short["metadata"], "resourceVersion": "7"}}
    web = claiming("web", "big", resourceClaimTemplateName="one")
    held = allocated("web-gpu", "big", "gpu-0", owner="web")
    cluster = [
        entry for entry in two_nodes(web, devices("big", 1), devices("other", 1)) if entry is not TEMPLATE
    ]

    assert removed(plan(*cluster, short, held)) == ["big"]
    assert removed(plan(*cluster, stored, held)) == []


def test_two_pods_do_not_move_onto_one_device(plan):
    pods = [claiming(name, "big", resourceClaimTemplateName="one") for name in ("one", "two")]
    held = [
        allocated(f"{name}-gpu", "big", f"gpu-{index}", name) for index, name in enumerate(("one", "two"))
    ]

    assert bought(plan(*two_nodes(*pods, *held, devices("big", 2), devices("other", 1)))) == 1
    assert bought(plan(*two_nodes(*pods, *held, devices("big", 2), devices("other", 2)))) == 0


def test_a_claim_with_a_name_of_its_own_keeps_its_node(plan):
    web = claiming("web", "big", resourceClaimName="shared")
    answer = plan(
        *two_nodes(web, allocated("shared", "big", "gpu-0"), devices("big", 1), devices("other", 1))
    )

    assert answer["moves"] == []
    assert {held["node"]: held["why"][0]["code"] for held in answer["held"]}["big"] == "pod_resource_claims"


def test_a_new_node_gives_each_device_once(plan):
    pods = [claiming(name, "big", resourceClaimTemplateName="one") for name in ("one", "two")]
    held = [
        allocated(f"{name}-gpu", "big", f"gpu-{index}", name) for index, name in enumerate(("one", "two"))
    ]
    taken = allocated("theirs", "other", "gpu-0", owner="busy")

    answer = plan(*two_nodes(*pods, *held, taken, devices("big", 2), devices("other", 1)))

    assert bought(answer) != 1  # one machine of the smaller type has one device for the two of them


def test_a_node_that_looks_empty_may_hold_a_claim(plan):
    slices = devices("big", 1), devices("other", 1)

    assert removed(plan(*two_nodes(*slices))) == ["big"]
    assert plan(*two_nodes(*slices, allocated("kept", "big", "gpu-0")))["moves"] == []


def test_a_cheaper_node_is_one_whose_driver_is_known(plan):
    """Nodes of the type published before; of a type that never did nothing is promised."""
    web = claiming("web", "big", resourceClaimTemplateName="one")
    held = allocated("web-gpu", "big", "gpu-0", owner="web")
    full = stays(pod("full", "other", cpu="1900m"))
    nodes = [node("big", "m5.2xlarge", pool="web"), node("other", "m5.large", pool="web")]
    world = [pool("web", types=("m5.2xlarge", "m5.large")), nodes, full, CLASS, TEMPLATE, web, held]

    known = plan(*world, devices("big", 1), devices("other", 1), allocated("t", "other", "gpu-0", "full"))
    unknown = plan(*world, devices("big", 1))

    (move,) = known["moves"]
    assert removed(known) == ["big"] and len(move["new_nodes"]) == 1
    assert unknown["moves"] == []
