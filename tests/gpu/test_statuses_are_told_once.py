"""What is left of our agent's devices is written where an object says something else, and nowhere else."""

from types import SimpleNamespace
from typing import Any

from msgspec import structs

from karpool.gpu.controller.told_status import running_apps, statuses
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import apps_in_short
from tests.gpu.devices import GIB, ask, gpu, opened

USED = DeviceAmount(90_000, 15 * GIB)


def seen(*devices: Any) -> Any:
    uses = tuple(SimpleNamespace(device=device, described=True) for device in devices)
    return SimpleNamespace(
        snapshot=SimpleNamespace(devices={"node-0": uses}), quota_keys={}, quota_objects={}
    )


def test_what_the_ledger_says_is_told_until_the_object_says_it() -> None:
    device = gpu("g", is_of_agent=True)
    allocator = opened([device])
    allocator.restore(ask("a"), ["g"])

    def written(*devices: Any) -> list[Any]:
        return list(statuses(seen(*devices), allocator))

    left, apps = written(device)
    assert (left.key.name, left.status) == ("g", {"available": {"tflops": "90", "vram": str(15 * GIB)}})
    (app,) = apps.status["runningApps"]
    assert (app["count"], [pod["uid"] for pod in app["pods"]]) == (1, ["a"])
    kept = {"qos": "high", **dict(sorted(app.items(), reverse=True))}  # as a server may give it back
    told = structs.replace(device, available=USED, running_apps=apps_in_short([kept]))
    assert written(told) == []
    assert written(structs.replace(told, running_apps=apps_in_short(["none", {"pods": 7}]))) == [apps]
    assert written(structs.replace(device, is_of_agent=False)) == []  # TensorFusion's own operator tells it


def test_who_only_reserved_a_share_does_not_use_it_and_pods_of_a_workload_are_one_app() -> None:
    allocator = opened([gpu("g", is_of_agent=True)])
    for uid in ("b", "a"):
        allocator.restore(ask(uid, name=uid, namespace="team", workload="infer"), ["g"])
    allocator.try_allocate(ask("c"), 0.0)

    (app,) = running_apps(allocator.ledger, "g")

    assert (app["namespace"], app["name"], app["count"]) == ("team", "infer", 2)
    assert [pod["name"] for pod in app["pods"]] == ["a", "b"]
