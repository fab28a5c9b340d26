"""`karpool plan --free-devices`: shares that could move so that whole devices are free; nobody moves them."""

import json
from random import Random

import pytest
import yaml

from karpool.cli.main import run
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.consolidation.planning import device_freeing
from tests.cli.test_plans_know_shares_of_devices import gpu_node, sizes  # noqa: F401
from tests.consolidation.cluster_objects import flat, pod, pool

TYPES = ("g5.xlarge", "g5.2xlarge")
MEMORY = 24  # GiB of an A10G


def share(name, device, vram=6, cpu="100m", **more):
    annotations = {
        "tensor-fusion.ai/gpupool": "gpu",
        "tensor-fusion.ai/vram-request": f"{vram}Gi",
        "tensor-fusion.ai/gpu-ids": device,
        **more.pop("annotations", {}),
    }
    return pod(name, device.rpartition("-gpu-")[0], cpu=cpu, annotations=annotations, **more)


def bare(workload):
    workload["metadata"]["ownerReferences"] = []
    return workload


def budget(labels, allowed):
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "held", "namespace": "team"},
        "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.fixture
def freed(tmp_path, capsys):
    def command(*objects, output="json"):
        path = tmp_path / "prod.yaml"
        path.write_text(yaml.safe_dump_all(flat(pool("gpu", types=TYPES), *objects)))
        assert run(["plan", "--free-devices", "--snapshot", str(path), "-o", output], "karpool") == 0
        shown = capsys.readouterr().out
        return json.loads(shown)["freedDevices"] if output == "json" else shown

    return command


def moves(answer):
    return {
        device["device"]: [(move["pod"], move["toDevice"]) for move in device["moves"]]
        for device in answer["freed"]
    }


def reasons(answer):
    return {device["device"]: device["why"] for device in answer["kept"]}


def test_a_share_has_room_on_a_device_that_another_shares(freed):
    answer = freed(gpu_node("a"), gpu_node("b"), share("one", "a-gpu-0"), share("two", "b-gpu-0", vram=8))

    assert moves(answer) == {"a-gpu-0": [("team/one", "b-gpu-0")]}
    assert reasons(answer) == {"b-gpu-0": "it receives shares of others"}
    assert answer["notLookedAt"] == 0


def test_nothing_goes_onto_an_empty_device(freed):
    """That would free one device and take another."""
    answer = freed(gpu_node("a"), gpu_node("empty"), share("one", "a-gpu-0"))

    assert moves(answer) == {}
    assert reasons(answer) == {"a-gpu-0": "team/one has room on no device that others share"}


def test_what_does_not_fit_beside_the_others_stays(freed):
    answer = freed(
        gpu_node("a"), gpu_node("b"), share("one", "a-gpu-0", vram=14), share("two", "b-gpu-0", vram=14)
    )

    assert moves(answer) == {}


def test_the_node_must_take_the_pod_too(freed):
    """3,920m of a g5.xlarge are for pods."""
    answer = freed(
        gpu_node("a"), gpu_node("b"), share("one", "a-gpu-0", cpu="2"), share("two", "b-gpu-0", cpu="3")
    )

    assert moves(answer) == {}


def test_two_devices_of_one_node_become_one(freed):
    """The pod leaves the room that it takes on its node."""
    answer = freed(
        gpu_node("a", "g5.2xlarge", gpus=2), share("one", "a-gpu-0", cpu="4"), share("two", "a-gpu-1", vram=8)
    )

    assert moves(answer) == {"a-gpu-0": [("team/one", "a-gpu-1")]}


def test_bare_pods_keep_their_device(freed):
    pods = bare(share("one", "a-gpu-0")), bare(share("two", "b-gpu-0", vram=8))

    answer = freed(gpu_node("a"), gpu_node("b"), *pods)

    assert moves(answer) == {}
    assert reasons(answer)["a-gpu-0"] == "team/one has no owner that would create it again"


def test_pods_that_ask_to_be_left_alone_are(freed):
    wish = {"karpenter.sh/do-not-disrupt": "true"}
    pods = share("one", "a-gpu-0", annotations=wish), share("two", "b-gpu-0", vram=8, annotations=wish)

    answer = freed(gpu_node("a"), gpu_node("b"), *pods)

    assert moves(answer) == {}
    assert reasons(answer)["a-gpu-0"] == "team/one must not be disrupted"


def test_budgets_hold(freed):
    objects = (
        gpu_node("a"),
        gpu_node("b"),
        gpu_node("c"),
        *(share(name, f"{on}-gpu-0", labels={"app": "held"}) for name, on in (("one", "a"), ("two", "b"))),
        share("three", "c-gpu-0", vram=8),
    )

    one_at_a_time = freed(*objects, budget({"app": "held"}, 1))
    nobody = freed(*objects, budget({"app": "held"}, 0))

    assert len(moves(one_at_a_time)) == 1
    assert "lets 1 go at once" in reasons(one_at_a_time)["b-gpu-0"]
    assert "three" in str(moves(nobody)) and "one" not in str(moves(nobody))
    assert any("allows no disruption" in why for why in reasons(nobody).values())


def test_the_tables_say_it_and_a_bound_is_said(freed, monkeypatch):
    objects = gpu_node("a"), gpu_node("b"), share("one", "a-gpu-0"), share("two", "b-gpu-0", vram=8)

    shown = freed(*objects, output="table")
    monkeypatch.setattr(device_freeing, "DEVICES_MAX", 1)
    cut = freed(*objects, output="table")

    assert "1 device could be free if shares moved; `apply` moves none" in shown
    assert "SHARES THAT COULD MOVE" in shown
    assert "Not considered: 1 device with more holders" in cut


@pytest.mark.long
@pytest.mark.parametrize(
    ("output", "row"),
    [("markdown", "| a | a-gpu-0 | team/one | b | b-gpu-0 |"), ("html", ">a-gpu-0</td>")],
)
def test_reports_to_hand_around_show_it(freed, output, row):
    objects = gpu_node("a"), gpu_node("b"), share("one", "a-gpu-0"), share("two", "b-gpu-0", vram=8)

    shown = freed(*objects, output=output)

    assert "1 device could be free if shares moved" in shown
    assert "kubectl cordon" in shown
    assert row in shown
    assert "it receives shares of others" in shown


def test_devices_that_claims_share_are_named_with_why_they_stay(freed):
    """A driver with consumable capacity; kube-scheduler chooses the device of the new claim."""
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    slices = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "a-gpus"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
            "devices": [device, {**device, "name": "gpu-1"}, {"name": "whole"}],
        },
    }
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {**result, "shareID": "s1", "consumedCapacity": {"memory": "10Gi"}},
                        {**result, "device": "whole"},
                    ]
                }
            }
        },
    }

    answer = freed(gpu_node("a"), slices, claim)

    assert reasons(answer) == {
        "gpu-0": "resource claims share it, and kube-scheduler chooses the devices of claims"
    }


def test_a_saved_plan_with_it_is_read_back(freed, tmp_path, capsys):
    objects = gpu_node("a"), gpu_node("b"), share("one", "a-gpu-0"), share("two", "b-gpu-0", vram=8)
    freed(*objects)
    world, saved = str(tmp_path / "prod.yaml"), tmp_path / "plan.json"
    run(["plan", "--free-devices", "--snapshot", world, "-o", "json"], "karpool")
    saved.write_text(capsys.readouterr().out)

    assert run(["plan", "diff", str(saved), str(saved)], "karpool") == 0


@pytest.mark.parametrize("seed", range(25))
def test_what_is_proposed_would_work(freed, seed):
    """Carried out in the manifests, no device is overdrawn, what is freed is empty and what was empty is."""
    random = Random(seed)
    devices = [f"{node}-gpu-{index}" for node in "abc" for index in range(2)]
    left, pods = dict.fromkeys(devices, MEMORY), []
    for number in range(random.randrange(3, 9)):
        device, vram = random.choice(devices[:5]), random.choice((2, 5, 8, 12))
        if left[device] >= vram:
            left[device] -= vram
            pods.append(share(f"p{number}", device, vram, random.choice(("100m", "1", "3"))))
    nodes = [gpu_node(name, "g5.2xlarge", gpus=2) for name in "abc"]

    answer = freed(*nodes, *pods)

    targets = {move["pod"]: move for device in answer["freed"] for move in device["moves"]}
    for obj in pods:
        if move := targets.pop(f"team/{obj['metadata']['name']}", None):
            obj["spec"]["nodeName"] = move["toNode"]
            obj["metadata"]["annotations"]["tensor-fusion.ai/gpu-ids"] = move["toDevice"]
    assert not targets
    after = Cluster(Aspect.ROOM | Aspect.DEVICES)
    after.load(flat(*nodes, *pods), 0.0)
    snapshot = after.snapshot(0.0)
    uses = {use.device.name: use for shared in snapshot.devices.values() for use in shared}
    assert all(use.left.vram_bytes >= 0 for use in uses.values())
    assert (snapshot.room.free("cpu") >= 0).all()
    assert all(not uses[device["device"]].holders for device in answer["freed"])
    assert all(not uses[name].holders for name in devices if left[name] == MEMORY)
