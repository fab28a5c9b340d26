"""Vectors of the GPU ledger: reservations, recovery, resizing, totals."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from karpool.gpu.allocation.ledger import DeviceLedger
from karpool.gpu.allocation.resizing import resize
from karpool.gpu.controller.allocator_state import AllocatorState, GpuNodeFacts, GpuWorker, View
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scoring_columns import ScoringColumns
from karpool.model import quantity
from karpool.model.devices import isolation
from karpool.model.devices.amounts import NOTHING, DeviceAmount, parse_amount
from karpool.model.devices.device import Device
from karpool.model.devices.device_reasons import DeviceReason, stable_code
from karpool.model.devices.oversubscription import Oversubscription, node_totals, virtual_capacity
from karpool.model.devices.quota import GpuQuotas
from karpool.model.devices.request import GpuRequest
from karpool.model.infeasible import Infeasible
from tests.vectors.gpu import charge, device, quota_of, same_amounts, share, show, shown_usage, worker
from tests.vectors.registry import Case, kind

Given = Mapping[str, Any]
NAMESPACE = "n"


def ledger_of(given: Given) -> DeviceLedger:
    quotas = GpuQuotas()
    found = quota_of(given.get("quota"), NAMESPACE)
    if found is not None:
        quotas.put(found)
    return DeviceLedger(ScoringColumns(device(each) for each in given["gpus"]), quotas)


@kind("scenario", same=same_amounts)
def answer_scenario(case: Case) -> Given:
    given = case["input"]
    ledger = ledger_of(given)
    last: object = None
    for step in given["steps"]:
        last = one_step(ledger, step)
    shown = {each.name: show(ledger.table.available(row)) for row, each in enumerate(ledger.table)}
    return {
        "committed": sorted(ledger.committed),
        "assumed": sorted(ledger.assumed),
        "available": shown,
        "usage": shown_usage(ledger.quotas.used.get(NAMESPACE, shown_zero())),
        "last": "error" if isinstance(last, Infeasible) else "ok",
    }


def shown_zero() -> Any:
    return GpuQuotas().taken("")


def one_step(ledger: DeviceLedger, step: Given) -> object:
    uid = step.get("uid", "u")
    match step["op"]:
        case "assume":
            asked = replace(worker(step["request"], uid=uid), namespace=NAMESPACE)
            return ledger.assume(asked, step["gpus"], 0.0)
        case "check_quota":
            return ledger.quotas.check(NAMESPACE, charge(step["request"]))
        case "commit":
            return ledger.commit(uid)
        case "forget":
            return ledger.forget(uid)
        case "rollback":
            return ledger.rollback(uid)
        case "unreserve":
            return ledger.unreserve(uid)
        case "release" | "dealloc" | "deallocate":
            return ledger.release(uid)
    raise ValueError(f"unknown step {step['op']}")


@kind("sweep_assumed")
def answer_sweep(case: Case) -> Given:
    given = case["input"]
    ledger = DeviceLedger(ScoringColumns([Device("g", capacity=DeviceAmount(1000, 1000))]))
    now = 1e6
    since = now - given["age_s"] if given["has_timestamp"] else None
    ledger.assume(GpuRequest(uid="u"), ["g"], since)
    if given["committed"]:
        ledger.committed["u"] = ledger.assumed["u"]
    waiting = ["u"] if given["gang_waiting"] else []
    swept = ledger.sweep(now, waiting, given["ttl_s"])
    return {"swept": len(swept), "kept": "u" in ledger.assumed}


@kind("clamp_available", same=same_amounts)
def answer_clamp(case: Case) -> Given:
    given = case["input"]
    return show(parse_amount(given["available"]).at_most(parse_amount(given["capacity"])))


def restored(given: Given, capacity: Given) -> DeviceLedger:
    """A device and what the ledger says of it."""
    entries = given["ledger"]
    requests = [(worker({**each["request"], **each}, uid=each["pod"]), each["gpus"]) for each in entries]
    total = parse_amount(capacity)
    left = parse_amount(given["old_available"]) if "old_available" in given else None
    for request, names in requests if left is not None else ():
        left += request.request.on(total) if given["gpu"] in names else NOTHING
    ledger = DeviceLedger(ScoringColumns([Device(given["gpu"], capacity=total, available=left)]))
    for request, names in requests:
        ledger.restore(request, names)
    return ledger


@kind("recompute_available", same=same_amounts)
def answer_recompute(case: Case) -> Given:
    return show(restored(case["input"], case["input"]["capacity"]).table.available(0))


@kind("capacity_update", same=same_amounts)
def answer_capacity(case: Case) -> Given:
    given = case["input"]
    ledger = restored(given, given["old_capacity"])
    ledger.capacity_changed(given["gpu"], parse_amount(given["new_capacity"]))
    return {"capacity": show(ledger.table.capacity(0)), "available": show(ledger.table.available(0))}


@kind("rebuild_from_pods", same=same_amounts)
def answer_rebuild(case: Case) -> Given:
    given = case["input"]
    devices = tuple(device(each) for each in given["gpus"])
    workers = tuple(
        GpuWorker(
            WaitingWorker(
                GpuRequest(
                    uid=each["uid"],
                    request=share(each["request"]),
                    isolation=each.get("isolation") or each["request"].get("isolation", isolation.SOFT),
                ),
                0.0,
            ),
            each.get("node", ""),
            tuple(name for name in each.get("gpu_ids", "").split(",") if name),
            leaving=each.get("deleting", False),
            released=each.get("deleting", False) and not each.get("has_finalizer", False),
        )
        for each in given["pods"]
    )
    state = AllocatorState(ScaleUpSettings())
    state.refresh(View(0.0, workers, nodes=(GpuNodeFacts("node-a", devices=devices),)), lambda item: ())
    available = state.allocator.available
    return {each["name"]: show(available(each["name"]) or NOTHING) for each in given["gpus"]}


@kind("apply_twice", same=same_amounts)
def answer_twice(case: Case) -> Given:
    given = case["input"]
    ledger = DeviceLedger(ScoringColumns([device(given["gpu"])]))
    name = given["gpu"]["name"]
    ledger.assume(worker(given["request"], uid="a"), [name], 0.0)
    ledger.commit("a")
    first = show(ledger.table.available(0))
    second = ledger.assume(worker(given["request"], uid="b"), [name], 0.0)
    if not isinstance(second, Infeasible):
        ledger.commit("b")
    ledger.release("a")
    return {
        "after_first": first,
        "second": "error" if isinstance(second, Infeasible) else "ok",
        "after_release": show(ledger.table.available(0)),
    }


@kind("dynamic_lock")
def answer_lock(case: Case) -> Given:
    given = case["input"]
    ledger = DeviceLedger(ScoringColumns([device(given["gpu"])]), policy=given["policy"])
    locks, wrong = [], []
    for step in given["steps"]:
        if step["op"] == "assume":
            asked = GpuRequest(
                uid=step["uid"], isolation=step["isolation"], request=share(step.get("request"))
            )
            found = ledger.assume(asked, [given["gpu"]["name"]], 0.0)
            error = stable_code(found) if isinstance(found, Infeasible) else None
            if error != step.get("expect_error"):
                wrong.append(f"{step}: {error}")
        else:
            one_step(ledger, step)
        locks.append(ledger.table.lock_of(0))
    return {"lock_after": locks} if not wrong else {"wrong": wrong}


@kind("recover_modes", same=lambda expected, actual: expected == actual)
def answer_modes(case: Case) -> Given:
    found = isolation.recover_modes(
        (each["gpu_ids"].split(","), each.get("isolation", "")) for each in case["input"]["pods"]
    )
    return {"modes": dict(found.modes), "conflicts": sorted(found.conflicts)}


@kind("node_capacity", same=same_amounts)
def answer_totals(case: Case) -> Given:
    total, available = node_totals(device(each) for each in case["input"]["gpus"])
    return {"total": show(total), "available": show(available)}


@kind("virtual_capacity", same=same_amounts)
def answer_virtual(case: Case) -> Given:
    given = case["input"]
    rules = given.get("oversubscription")
    if not rules:  # no block, no virtual capacity beside the physical one
        rules = {"tflops_oversell_ratio": 100, "vram_expand_to_host_mem": 0, "vram_expand_to_host_disk": 0}
    found = virtual_capacity(
        parse_amount(given["total"]),
        quantity.value(given["ram_bytes"]),
        quantity.value(given["disk_bytes"]),
        Oversubscription(
            rules.get("tflops_oversell_ratio", 500),
            rules.get("vram_expand_to_host_mem", 50),
            rules.get("vram_expand_to_host_disk", 70),
        ),
    )
    return show(found)


@kind("adjust_allocation", same=same_amounts)
def answer_adjust(case: Case) -> Given:
    given = case["input"]
    ledger = ledger_of(given)
    allocated = given["allocated"]
    names = allocated["gpu_names"]
    asked = replace(worker(allocated, uid="u"), namespace=NAMESPACE, count=len(names))
    if isinstance(ledger.assume(asked, names, 0.0), Infeasible):
        ledger.restore(asked, names)  # it runs, whatever a quota says by now
    ledger.commit("u")
    before = ledger.committed["u"].charge
    found = resize(
        ledger,
        "u",
        share(given["new_request"]),
        share(given.get("new_limit", allocated.get("limit"))),
        dry_run=given.get("dry_run", False),
    )
    after = shown_usage(ledger.quotas.used[NAMESPACE])
    shown = {each.name: show(ledger.table.available(row)) for row, each in enumerate(ledger.table)}
    if isinstance(found, Infeasible):
        told = {"error": stable_code(found), "usage_after": after, "available": shown}
        if found.reason is not DeviceReason.EXCEEDS_DEVICE:
            return told
        short = next((name for name in names if name in found.detail), names[0])
        return {**told, "remaining": show(ledger.table.free(ledger.table.find(short)))}
    return {
        "ok": True,
        "usage_after": after,
        "available": shown,
        "available_after": shown,
        "delta_request": show(found.request_delta),
        "delta_limit": show(found.limit_delta),
        "delta": {"request": show(found.request_delta), "limit": show(found.limit_delta)},
        "before": show(before.request),
    }
