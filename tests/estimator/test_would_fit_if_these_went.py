"""Who would have to go so that a pod fits: as few as every subset tried on a fresh cluster says."""

from itertools import chain, combinations
from random import Random

import pytest

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.estimator import departures
from karpool.estimator.departures import Departures, find_departures
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.packing.counting.count import fits

ASPECTS = Aspect.ROOM | Aspect.DEVICES | Aspect.DRA | Aspect.BUDGETS
DRIVER = "gpu.example.com"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
EXACTLY = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
SPEC = {"devices": {"requests": [{"name": "r", "exactly": EXACTLY}]}}


def node(name, gpus=2):
    offers = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "tensor-fusion.ai/gpupool": "shared"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": offers, "capacity": offers},
    }


def gpu(on, index):
    amount = {"tflops": "100", "vram": "80Gi"}
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPU",
        "metadata": {"name": f"{on}-{index}", "labels": {"tensor-fusion.ai/gpupool": "shared"}},
        "status": {
            "phase": "Running",
            "capacity": amount,
            "available": amount,
            "gpuModel": "A100",
            "usedBy": "tensor-fusion",
            "nodeSelector": {"kubernetes.io/hostname": on},
        },
    }


def device_slice(on, count):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{on}-gpus"},
        "spec": {
            "driver": DRIVER,
            "nodeName": on,
            "pool": {"name": on, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{index}"} for index in range(count)],
        },
    }


CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "team"},
    "spec": {"spec": SPEC},
}


def budget(name, labels, allowed, policy="IfHealthyBudget"):
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": labels},
            "unhealthyPodEvictionPolicy": policy,
        },
        "status": {"disruptionsAllowed": allowed},
    }


def of_app(workload, app):
    workload["metadata"]["labels"] = {"app": app}
    return workload


def pod(name, on="", cpu="1", vram="", device="", priority=0, owned=True, **annotations):
    asks = {"tensor-fusion.ai/gpupool": "shared", "tensor-fusion.ai/vram-request": vram} if vram else {}
    asks |= {"tensor-fusion.ai/gpu-ids": device} if vram and device else {}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}] if device and not vram else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "annotations": asks | {key.replace("_", "-"): value for key, value in annotations.items()},
            "ownerReferences": [OWNER] if owned else [],
        },
        "spec": {
            "nodeName": on,
            "priority": priority,
            "resourceClaims": claims,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": "Running" if on else "Pending", "startTime": "2026-01-01T00:00:00Z"},
    }


def allocated(owner, on, device):
    result = {"request": "r", "driver": DRIVER, "pool": on, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{owner}-gpu",
            "namespace": "team",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner, "controller": True}
            ],
        },
        "spec": SPEC,
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": owner, "uid": owner}],
        },
    }


def loaded(objects):
    cluster = Cluster(ASPECTS, keeps=lambda pod: True)
    cluster.load(objects, 0.0)
    return cluster


def asked(objects, waiting):
    cluster = loaded(objects)
    wish = decode(waiting, Pod)
    return find_departures(cluster, cluster.kept_pods, shape_of(wish), wish.spec.priority or 0, 1e9), cluster


def without(objects, names):
    """A cluster that never had these pods, nor their claims."""
    claims = {f"{name}-gpu" for name in names}
    gone = {"Pod": set(names), "ResourceClaim": claims}
    return [obj for obj in objects if obj["metadata"]["name"] not in gone.get(obj["kind"], ())]


def fewest(objects, waiting, may_go):
    """How many, by trying every subset; None where none does."""
    shape = shape_of(decode(waiting, Pod))
    for names in chain.from_iterable(combinations(may_go, size) for size in range(len(may_go) + 1)):
        room = loaded(without(objects, names)).snapshot(0.0).room
        if (fits(room, shape) > 0).any():
            return len(names)
    return None


def world(seed):
    random = Random(seed)
    names = [f"n{number}" for number in range(2)]
    objects = [CLASS, TEMPLATE, *map(node, names)]
    objects += [gpu(name, index) for name in names for index in range(2)]
    objects += [device_slice(name, 2) for name in names]
    may_go, left = [], {(name, index): 80 for name in names for index in range(2)}
    for number in range(random.randrange(3, 8)):
        on, name, owned = random.choice(names), f"p{number}", random.random() < 0.7
        priority = random.choice((-10, 0, 10))
        index, vram = random.randrange(2), random.choice((10, 30, 50))
        free_device = f"gpu-{number % 2}"
        taken = {obj["metadata"]["name"] for obj in objects}
        if random.random() < 0.4 and left[on, index] >= vram:
            left[on, index] -= vram
            objects.append(pod(name, on, "500m", f"{vram}Gi", f"{on}-{index}", priority, owned))
        elif random.random() < 0.4 and f"{on}-{free_device}" not in taken:
            objects += [pod(name, on, "500m", "", free_device, priority, owned)]
            objects += [allocated(name, on, free_device)]
            objects.append(
                {"apiVersion": "v1", "kind": "Marker", "metadata": {"name": f"{on}-{free_device}"}}
            )
        else:
            objects.append(pod(name, on, random.choice(("1", "2")), "", "", priority, owned))
        if owned or priority < 5:
            may_go.append(name)
    cpu = random.choice(("1", "6", "7500m"))
    kind = random.randrange(3)
    waiting = pod("w", "", cpu, random.choice(("40Gi", "80Gi")) if kind == 0 else "", "", 5)
    if kind == 1:
        waiting["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    return objects, waiting, may_go


@pytest.mark.parametrize("seed", range(60))
def test_as_few_go_as_every_subset_says(seed):
    objects, waiting, may_go = world(seed)
    least = fewest(objects, waiting, may_go)

    answer, cluster = asked(objects, waiting)

    if least == 0:
        assert answer is None
        return
    assert answer is not None
    assert (len(answer.pods) if answer.node else None) == least
    assert not answer.is_cut
    named = [gone.pod.removeprefix("team/") for gone in answer.pods]
    assert set(named) <= set(may_go)
    if least:
        room = loaded(without(objects, named)).snapshot(0.0).room
        assert fits(room, shape_of(decode(waiting, Pod)))[room.find(answer.node)] > 0
    # The question changed nothing.
    before = loaded(objects).snapshot(0.0).room
    after = cluster.snapshot(0.0).room
    assert before.free("cpu").tolist() == after.free("cpu").tolist()
    shape = shape_of(decode(waiting, Pod))
    assert fits(before, shape).tolist() == fits(after, shape).tolist()


@pytest.mark.parametrize(
    ("holder", "goes"),
    [
        ({"priority": 0}, True),
        ({"priority": 7, "owned": True}, True),  # its owner brings it back
        ({"priority": 7, "owned": False}, False),
        ({"priority": 7, "karpenter.sh/do_not_disrupt": "true"}, False),
        ({"priority": 0, "karpenter.sh/do_not_disrupt": "true"}, True),  # as preemption has it
    ],
)
def test_who_may_go(holder, goes):
    settings = {"owned": False, **holder} if "karpenter.sh/do_not_disrupt" not in holder else holder
    objects = [node("n0"), pod("holder", "n0", "8", **settings)]

    answer, _ = asked(objects, pod("w", "", "8", priority=5))

    assert answer is not None
    assert [gone.pod for gone in answer.pods] == (["team/holder"] if goes else [])


def test_pods_of_daemons_and_of_the_node_itself_stay():
    daemon = pod("daemon", "n0", "8", priority=-10)
    daemon["metadata"]["ownerReferences"] = [{**OWNER, "kind": "DaemonSet"}]
    mirror = pod("mirror", "n1", "8", priority=-10, owned=False)
    mirror["metadata"]["ownerReferences"] = [{**OWNER, "apiVersion": "v1", "kind": "Node"}]

    answer, _ = asked([node("n0"), node("n1"), daemon, mirror], pod("w", "", "8", priority=5))

    assert answer == Departures()


def test_a_node_that_does_not_take_the_pod_anyway_is_not_named():
    tainted = node("n0")
    tainted["spec"] = {"taints": [{"key": "own", "effect": "NoSchedule"}]}

    answer, _ = asked([tainted, pod("a", "n0", "8")], pod("w", "", "8"))

    assert answer == Departures()


def test_a_search_that_was_cut_says_so_and_still_names_who_would_do(monkeypatch):
    monkeypatch.setattr(departures, "TRIES_MAX", 20)
    objects = [node("n0"), *(pod(f"p{number}", "n0", "500m") for number in range(16))]

    answer, _ = asked(objects, pod("w", "", "3", priority=5))

    assert answer is not None and answer.node == "n0"
    assert answer.is_cut
    assert len(answer.pods) >= 6
    names = [gone.pod.removeprefix("team/") for gone in answer.pods]
    assert (
        fits(loaded(without(objects, names)).snapshot(0.0).room, shape_of(decode(pod("w", "", "3"), Pod))) > 0
    ).any()


def test_a_named_claim_is_given_back_when_all_who_reserved_it_go():
    held = allocated("shared", "n0", "gpu-0")
    held["metadata"] = {"name": "shared", "namespace": "team"}
    users = [pod(name, "n0", "1", priority=-1) for name in ("one", "two")]
    for user in users:
        user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "shared"}]
    held["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": name} for name in ("one", "two")
    ]
    waiting = pod("w", "", "1")
    waiting["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]

    answer, _ = asked([CLASS, TEMPLATE, node("n0"), device_slice("n0", 1), held, *users], waiting)

    assert answer is not None
    assert [gone.pod for gone in answer.pods] == ["team/one", "team/two"]


def going(answer):
    return [gone.pod.removeprefix("team/") for gone in answer.pods]


def test_a_larger_set_that_budgets_allow_is_named_before_a_smaller_one_that_they_forbid():
    objects = [
        node("n0"),
        of_app(pod("held", "n0", "4"), "db"),
        pod("a", "n0", "2", owned=True),
        pod("b", "n0", "2", owned=True),
        budget("db", {"app": "db"}, 0),
    ]

    answer, _ = asked(objects, pod("w", "", "4", priority=5))

    assert going(answer) == ["a", "b"]
    assert answer.forbidden_by == ""


def test_where_only_a_budget_is_in_the_way_it_is_named():
    objects = [node("n0"), of_app(pod("held", "n0", "8"), "db"), budget("db", {"app": "db"}, 0)]

    answer, _ = asked(objects, pod("w", "", "8", priority=5))

    assert going(answer) == ["held"]
    assert answer.forbidden_by == "team/held: disruption budget db allows no disruption"


def test_one_may_go_of_a_budget_and_two_may_not():
    pods = [of_app(pod(f"p{number}", "n0", "4"), "db") for number in range(2)]
    objects = [node("n0"), *pods, budget("db", {"app": "db"}, 1)]

    small, _ = asked(objects, pod("w", "", "4", priority=5))
    large, _ = asked(objects, pod("w", "", "8", priority=5))

    assert (going(small), small.forbidden_by) == (["p0"], "")
    assert (going(large), large.forbidden_by) == (["p0", "p1"], "disruption budget db lets 1 go at once")


def test_a_pod_that_is_not_ready_goes_where_its_budget_says_so():
    held = of_app(pod("held", "n0", "8"), "db")
    held["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    always, healthy = (
        asked([node("n0"), held, budget("db", {"app": "db"}, 0, policy)], pod("w", "", "8", priority=5))[0]
        for policy in ("AlwaysAllow", "IfHealthyBudget")
    )

    assert always.forbidden_by == ""
    assert "allows no disruption" in healthy.forbidden_by


def test_many_pods_of_one_budget_are_looked_through_in_no_time():
    """Sets that the budget forbids are not even counted out: there are 2**40 of them."""
    pods = [of_app(pod(f"p{number}", "n0", "200m"), "db") for number in range(40)]

    answer, _ = asked([node("n0"), *pods, budget("db", {"app": "db"}, 1)], pod("w", "", "1", priority=5))

    assert answer.node == "n0"
    assert answer.forbidden_by == "disruption budget db lets 1 go at once"


@pytest.mark.parametrize("seed", range(40))
def test_as_few_go_as_every_subset_within_the_budgets_says(seed):
    random = Random(seed)
    pods = [
        of_app(pod(f"p{number}", "n0", random.choice(("1", "2"))), random.choice(("db", "web", "free")))
        for number in range(5)
    ]
    allowed = {"db": random.randrange(3), "web": random.randrange(3), "free": 5}
    budgets = [budget(app, {"app": app}, allowed[app]) for app in ("db", "web")]
    objects, waiting = [node("n0"), *pods, *budgets], pod("w", "", random.choice(("4", "6", "8")), priority=5)
    apps = {workload["metadata"]["name"]: workload["metadata"]["labels"]["app"] for workload in pods}
    shape = shape_of(decode(waiting, Pod))
    within = [
        len(names)
        for names in chain.from_iterable(combinations(apps, size) for size in range(6))
        if all([apps[name] for name in names].count(app) <= most for app, most in allowed.items())
        and (fits(loaded(without(objects, names)).snapshot(0.0).room, shape) > 0).any()
    ]

    answer, _ = asked(objects, waiting)

    if answer is None:
        assert min(within) == 0
    elif within:
        assert (len(answer.pods), answer.forbidden_by) == (min(within), "")
    else:
        assert answer.forbidden_by or not answer.pods
