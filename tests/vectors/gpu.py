"""Vectors of the GPU allocator: filters, placement, requests, quota, gangs, waking."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from karpool.gpu import device_filters
from karpool.gpu.allocation.allocator import Allocator, AllocatorSettings
from karpool.gpu.allocation.ledger import DeviceLedger
from karpool.gpu.allocation.open_nodes import OpenNodes, by_nodes
from karpool.gpu.allocation.preemption import FreedDevices, free_without
from karpool.gpu.controller.allocator_state import AllocatorState, GpuNodeFacts, GpuWorker, View
from karpool.gpu.controller.wake_ups import should_wake
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.gpu.scale_up.demand import GpuDemand, WaitingWorker, key_of
from karpool.gpu.scale_up.input import GpuNodeView, ScaleUpInput
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scale_up.step import plan_step
from karpool.gpu.scale_up.triage import must_leave_room
from karpool.gpu.scoring_columns import ScoringColumns
from karpool.gpu.strategies import strategy as placement
from karpool.model import quantity
from karpool.model.devices import isolation, oversubscription, partitions, quota, tensor_fusion
from karpool.model.devices.amounts import DeviceAmount, DeviceShare, parse_amount
from karpool.model.devices.device import RUNNING, Device, DevicePartition
from karpool.model.devices.device_reasons import stable_code
from karpool.model.devices.gpu_models import find_model
from karpool.model.devices.partitions import PartitionCatalogue, PartitionHost, PartitionTemplate
from karpool.model.devices.request import Gang, GpuRequest
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod_shape import PodShape, WeightedNodeTerm
from karpool.model.requirements import NodeSelector, NodeSelectorTerm, node_terms_of
from karpool.packing.tables.device_kinds import LOCKS, DeviceKinds
from karpool.packing.tables.device_table import new_devices
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from tests.vectors.registry import Case, includes, kind

Given = Mapping[str, Any]
GANG_TIMEOUT = 60.0


# From a case to our values, and back


def show(amount: DeviceAmount) -> dict[str, str]:
    """As the cases write amounts."""
    return {
        "tflops": quantity.format_milli(amount.tflops_milli),
        "vram": quantity.format_value(amount.vram_bytes),
    }


def share(given: Given | None) -> DeviceShare:
    raw = given or {}
    absolute = parse_amount({key: raw.get(key) for key in ("tflops", "vram")})
    percent = quantity.milli_value(str(raw.get("compute_percent") or 0))
    return DeviceShare(absolute.tflops_milli, absolute.vram_bytes, percent)


def amount(given: Given | None) -> DeviceAmount | None:
    return None if given is None else parse_amount(given)


def device(given: Given) -> Device:
    return Device(
        name=given.get("name", "gpu"),
        node=given.get("node", ""),
        owner=given.get("owner", ""),
        pool=given.get("pool", ""),
        phase=given.get("phase", ""),
        vendor=given.get("vendor", "NVIDIA"),
        model=given.get("model", ""),
        index=given.get("index"),
        capacity=amount(given.get("capacity")),
        available=amount(given.get("available")),
        used_by=given.get("used_by", ""),
        isolation_mode=given.get("isolation_mode", ""),
        isolation_policy=given.get("isolation_policy", ""),
        active_isolation_mode=given.get("active_isolation_mode", ""),
        isolation_conflict=given.get("isolation_conflict", False),
        capabilities=given.get("capabilities"),
        partitions={
            uid: DevicePartition(each.get("template", ""))
            for uid, each in (given.get("partitions") or {}).items()
        },
        missing_since=given.get("missing_since", ""),
    )


def worker(given: Given, **more: Any) -> GpuRequest:
    """A request as the cases write it: amounts beside or under `request` and `limit`."""
    wanted = given.get("request", given)
    return GpuRequest(
        uid=more.pop("uid", given.get("uid", "u")),
        request=share(wanted),
        limit=share(given.get("limit")),
        count=given.get("count", 1),
        isolation=given.get("isolation", more.pop("isolation", "soft")),
        **more,
    )


def charge(given: Given) -> quota.QuotaCharge:
    return quota.QuotaCharge(
        parse_amount(given.get("request")), parse_amount(given.get("limit")), given.get("count", 1)
    )


def usage(given: Given | None) -> quota.QuotaUsage:
    found = given or {}
    return quota.QuotaUsage(
        parse_amount(found.get("requests")), parse_amount(found.get("limits")), found.get("workers", 0)
    )


def quota_of(given: Given | None, namespace: str = "") -> quota.GpuQuota | None:
    if not given:
        return None
    single, total = given.get("single"), given.get("total")
    return quota.GpuQuota(
        namespace,
        None
        if single is None
        else quota.WorkloadQuota(
            parse_amount(single.get("max_requests")),
            parse_amount(single.get("max_limits")),
            single.get("max_gpu_count", 0),
        ),
        None
        if total is None
        else quota.NamespaceQuota(
            amount(total.get("requests")),
            amount(total.get("limits")),
            total.get("max_workers", quota.WORKERS_MAX),
            total.get("alert_threshold_percent", quota.ALERT_THRESHOLD_PERCENT),
        ),
    )


def template(name: str, given: Given) -> PartitionTemplate:
    return PartitionTemplate(
        id=name,
        name=given.get("name", ""),
        memory_gib=given.get("memory_gb", 0),
        compute_percent=given.get("compute_percent", 0.0),
        max_partition=given.get("max_partition", 0),
        placement=tuple(given.get("placement", ())),
        slots=given.get("slots", 0),
        shared=given.get("sharing") == "shared",
        max_per_group=given.get("max_per_group", 0),
        extended=given.get("ext", {}),
    )


def catalogue(given: Given) -> PartitionCatalogue:
    return PartitionCatalogue(
        {
            model: {name: template(name, each) for name, each in known.items()}
            for model, known in (given.get("templates") or {}).items()
        },
        given.get("max_partitions") or {},
    )


def same_amounts(expected: Any, actual: Any) -> bool:
    """Quantities are compared as numbers: 4096Mi is 4Gi."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and same_amounts(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, str) and isinstance(actual, str) and expected[:1].isdigit():
        return quantity.milli_value(expected) == quantity.milli_value(actual)
    return includes(expected, actual)


# Filters


def same_names(expected: Given, actual: Given) -> bool:
    if "error" in expected or "error" in actual:
        return expected.get("error") == actual.get("error")
    names, found = expected["names"], actual["names"]
    return bool(names == found if expected.get("order") == "exact" else sorted(names) == sorted(found))


@kind("filter", same=same_names)
def answer_filter(case: Case) -> Given:
    given = case["input"]
    devices = (device(each) for each in given["gpus"])
    table = ScoringColumns(structs.replace(one, node=one.node or one.owner) for one in devices)
    for each in given["gpus"]:
        row = table.find(each["name"])
        table.has_available[row] = "available" in each
    for name, labels in (given.get("nodes") or {}).items():
        table.put_labels(name, labels)
    found = device_filters.run_filters(
        table, table.all_rows(), [one_filter(table, each) for each in given["filters"]]
    )
    if found.refusal is not None:
        return {"error": stable_code(found.refusal)}
    return {"names": [table.device(int(row)).name for row in found.rows]}


def one_filter(table: ScoringColumns, given: Given) -> tuple[str, device_filters.Filter]:
    known: dict[str, tuple[str, device_filters.Filter]] = {
        "phase": ("phase", partial(phase_filter, allowed=given.get("allowed", [RUNNING]))),
        "index": ("index", partial(device_filters.by_index, indices=given.get("indices") or ())),
        "isolation_mode": (
            "isolation",
            partial(device_filters.by_isolation_mode, mode=given.get("mode", "")),
        ),
        "whole_gpu": ("whole", whole_filter(given)),
        "partition_template": ("partition", partition_filter(given)),
        "resource": ("resource", partial(device_filters.by_amounts, share=share(given))),
        "model": ("model", partial(device_filters.by_model, model=given.get("model", ""))),
        "vendor": ("vendor", partial(device_filters.by_vendor, vendor=given.get("vendor", ""))),
        "node_affinity": (
            "node affinity",
            affinity_filter(table, given),
        ),
        "same_node": ("same node", partial(device_filters.by_same_node, count=given.get("count", 0))),
    }
    asked_type = str(given["type"])
    is_whole = "whole" in asked_type or asked_type.startswith("shared")
    return known["whole_gpu" if is_whole else asked_type]


def affinity_filter(table: ScoringColumns, given: Given) -> device_filters.Filter:
    required = given.get("required")
    shape = PodShape(
        node_terms=None if required is None else terms(required),
        preferred_nodes=tuple(
            WeightedNodeTerm(each["weight"], term)
            for each in given.get("preferred") or ()
            for term in terms([each["preference"]])
        ),
    )
    room = snapshot_of(
        [NodeRow(name, labels, allocatable={"pods": 110}) for name, labels in table.node_labels.items()]
    )
    return partial(by_nodes, nodes=OpenNodes(table, room, {}).choice(shape))


def phase_filter(
    table: ScoringColumns, rows: device_filters.Rows, *, allowed: list[str]
) -> device_filters.Rows:
    """Ours knows one phase that is good; the cases may name others."""
    if allowed == [RUNNING]:
        return device_filters.by_phase(table, rows)
    keep = [table.device(int(row)).phase in allowed and table.device(int(row)).is_ours for row in rows]
    return rows[np.array(keep, dtype=bool)]


def used_filter(
    name: str, request: GpuRequest, offered: PartitionCatalogue | None = None
) -> device_filters.Filter:
    """As production uses it for such a request; where it does not, nothing is dropped."""
    used = dict(device_filters.device_filters(request, isolation.DYNAMIC, offered))
    return used.get(name, lambda table, rows: rows)


def whole_filter(given: Given) -> device_filters.Filter:
    mode = given.get("isolation", given.get("mode", isolation.SHARED))
    return used_filter("whole GPU", GpuRequest("", isolation=mode))


def partition_filter(given: Given) -> device_filters.Filter:
    mode = given.get("isolation", isolation.PARTITIONED)
    request = GpuRequest("", isolation=mode, template=given.get("template", ""))
    return used_filter("partition", request, catalogue(given))


def terms(given: list[Given]) -> tuple[Any, ...]:
    selectors = [
        decode({"matchExpressions": each.get("match_expressions")}, NodeSelectorTerm) for each in given
    ]
    return node_terms_of(NodeSelector(node_selector_terms=selectors)) or ()


@kind("isolation_compatible")
def answer_compatible(case: Case) -> bool:
    given = case["input"]
    one = device(given["gpu"])
    return isolation.is_compatible(
        given["policy"],
        given.get("requested", ""),
        device_policy=one.isolation_policy,
        device_mode=one.isolation_mode,
        lock=one.active_isolation_mode,
        conflict=one.isolation_conflict,
    )


@kind("filter_with_preempt", same=same_amounts)
def answer_preempt(case: Case) -> Given:
    given = case["input"]
    devices = [device(each) for each in given["gpus"]]
    ledger = DeviceLedger(ScoringColumns(devices), policy=given["policy"])
    for number, victim in enumerate(given["victims"]):
        running = worker(victim, uid=f"victim-{number}", isolation="")
        ledger.restore(running, victim["gpus"])
    asked = replace(worker(given["request"]), count=given.get("count", 1))
    found = free_without(devices, list(ledger.committed.values()), asked, given["policy"])
    if isinstance(found, FreedDevices):
        return {
            "names": list(found.devices),
            "available": {name: show(each) for name, each in found.available.items()},
        }
    return {"error": stable_code(found)}


# Placement


def strategy(given: Given, **more: Any) -> placement.LoadStrategy:
    weights = given.get("weights") or {}
    return placement.by_load(given["mode"], weights.get("vram", 0.7), weights.get("tflops", 0.3), **more)


@kind("score")
def answer_score(case: Case) -> int:
    given = case["input"]
    table = ScoringColumns([device(given["gpu"])])
    return int(strategy(given).scores(table, table.all_rows(), for_node=given["for_node"])[0])


@kind("node_score")
def answer_node_score(case: Case) -> int:
    given = case["input"]
    table = ScoringColumns(
        structs.replace(device({"phase": RUNNING, **each}), name=f"gpu-{number}", node="n")
        for number, each in enumerate(given["gpus"])
    )
    code = table.node_code("n")
    return 0 if code is None else int(strategy(given).node_scores(table, np.array([code]))[0])


@kind("select")
def answer_select(case: Case) -> Given:
    given = case["input"]
    table = ScoringColumns(device({"phase": RUNNING, **each}) for each in given["node_gpus"])
    names = given.get("candidates", [each["name"] for each in given["node_gpus"]])
    if not names:
        return {"error": "no_candidates"}
    rows = np.array([table.find(name) for name in names], dtype=np.int64)
    asked = GpuRequest(uid="u", count=given["count"])
    chosen = strategy(given, by_sum=True).choose(table, rows, asked)
    if not chosen:
        return {"error": "not_enough_gpus"}
    return {"names": [table.device(row).name for row in chosen]}


@kind("allocate")
def answer_allocate(case: Case) -> Given:
    given = case["input"]
    asked = replace(worker(given), pool=given["pool"], model=given.get("model", ""))
    allocator = Allocator(
        AllocatorSettings(policy=given.get("policy", "Static")), (device(each) for each in given["gpus"])
    )
    allocator.open()
    found = allocator.try_allocate(asked)
    if isinstance(found, Infeasible):
        return {"error": stable_code(found)}
    chosen = [allocator.table.device(allocator.table.find(name) or 0) for name in found.devices]
    return {
        "ok": True,
        "count": len(chosen),
        "same_node": len({each.node for each in chosen}) == 1,
        "model": chosen[0].model,
        "names": list(found.devices),
    }


@kind("prefilter_nodes")
def answer_prefilter(case: Case) -> Given:
    given = case["input"]
    table = ScoringColumns(device(each) for each in given["gpus"])
    asked = replace(worker(given), pool=given["pool"], model=given.get("model", ""))
    chain = device_filters.device_filters(asked, given.get("policy", "Static"))
    found = device_filters.run_filters(table, table.rows_of_pool(given["pool"]), chain)
    nodes = sorted({table.device(int(row)).node for row in found.rows})
    return {"status": "Success" if nodes else "Unschedulable", "nodes": nodes}


@kind("reserve_for_nominated")
def answer_nominated(case: Case) -> bool:
    current, nominated = (
        WaitingWorker(
            GpuRequest(
                uid=name,
                priority=case["input"][name]["priority"],
                gang=Gang(group, 2, 2, 2) if (group := case["input"][name].get("gang", "")) else None,
            ),
            0.0,
        )
        for name in ("current", "nominated")
    )
    return must_leave_room(current, nominated)


@kind("hard_sm_percent")
def answer_hard_percent(case: Case) -> int:
    given = case["input"]
    return oversubscription.hard_limit_percent(
        quantity.milli_value(given["limit_tflops"]), quantity.milli_value(given["capacity_tflops"])
    )


@kind("queue_hint")
def answer_hint(case: Case) -> str:
    given = case["input"]
    pod = given["pod"]
    old, new = (given[name] and device(given[name]) for name in ("old", "new"))
    asked = replace(worker(pod), pool=pod.get("pool", ""))
    nominated = pod.get("nominated_node") or pod.get("nominated_node_name") or pod.get("nominated") or ""
    wakes = pod.get("worker", True) and should_wake(asked, old, new, nominated)
    return "queue" if wakes else "skip"


# Requests


@kind("compose_request", same=same_amounts)
def answer_compose(case: Case) -> Given:
    given = case["input"]
    asked, problems = tensor_fusion.read_request(given["annotations"])
    refused = [problem.code for problem in problems if problem.code != "bad_request"]
    if refused:
        return {"error": str(refused[0])}
    return {
        "pool": asked.pool,
        "count": asked.count,
        "qos": asked.qos,
        "isolation": asked.isolation,
        "model": asked.model,
        "vendor": asked.vendor,
        "template": asked.template,
        "indices": list(asked.indices),
        "request": shown_share(asked.request),
        "limit": shown_share(asked.limit),
    }


def shown_share(given: DeviceShare) -> Given:
    absolute = show(DeviceAmount(given.tflops_milli, given.vram_bytes))
    return {**absolute, "compute_percent": quantity.format_milli(given.percent_milli)}


@kind("gang_config")
def answer_gang(case: Case) -> Given:
    given = case["input"]
    names = {"namespace": given["namespace"], "workload": given.get("workload_label", "")}
    gang = tensor_fusion.read_request(given["annotations"], **names)[0].gang
    if gang is None:
        return {"enabled": False}
    return {
        "enabled": True,
        "min": gang.min_members,
        "desired": gang.desired_members,
        "required": gang.required_members,
        "group": gang.group,
        "timeout_s": gang.timeout_seconds,
    }


def gang_members(required: int, uids: list[str]) -> list[WaitingWorker]:
    """Each of them needs a device of its own."""
    gang = Gang("default/test-workload", required, required, required, timeout_seconds=GANG_TIMEOUT)
    share = DeviceShare(1000, 2**30)
    return [
        WaitingWorker(GpuRequest(uid=uid, pool="p", request=share, gang=gang), float(arrival))
        for arrival, uid in enumerate(uids)
    ]


def whole_device(name: str, node: str) -> Device:
    amount = DeviceAmount(1000, 2**30)
    return Device(name, node=node, owner=node, pool="p", phase=RUNNING, capacity=amount, available=amount)


@kind("gang_permit")
def answer_permit(case: Case) -> Given:
    """Members arrive one by one where there is a device for each; who is served goes on."""
    arrivals, required = case["input"]["arrivals"], case["input"]["required"]
    node = GpuNodeFacts("n", True, devices=tuple(whole_device(f"gpu-{uid}", "n") for uid in arrivals))
    state, workers = AllocatorState(ScaleUpSettings()), {}
    results, released = [], []
    for item in gang_members(required, arrivals):
        workers[item.uid] = GpuWorker(item)
        served, _ = state.refresh(View(0.0, tuple(workers.values()), nodes=(node,)), lambda item: ())
        for member, allocation in served.served:
            state.allocator.commit(member.uid)
            workers[member.uid] = GpuWorker(member, "n", allocation.devices)
            released.append(member.uid)
        results.append("allow" if item.uid in released else "wait")
    return {"results": results, "released": released}


@kind("gang_strict_reject")
def answer_reject(case: Case) -> Given:
    """The nodes of those that wait are ready; the next one fails when the time of the gang is over."""
    waiting, required = list(case["input"].get("waiting") or ()), case["input"]["required"]
    members = gang_members(
        required, [*waiting, *(f"missing-{number}" for number in range(len(waiting), required))]
    )
    key = key_of(members[0])
    units = [
        ScaleUpUnit(number, 1, 0, 0, "c", ScaleUpState.READY, since=0.0, started=0.0, node=f"node-{uid}")
        for number, uid in enumerate(waiting)
    ]
    units.append(ScaleUpUnit(len(units), 1, 0, 0, "c", ScaleUpState.PENDING, since=0.0, started=0.0))
    record = ScaleUpRecord(key, ScaleUpState.PENDING, 0.0, 0.0, uid="r", epoch=1, units=tuple(units))
    world = ScaleUpInput(
        now=GANG_TIMEOUT,
        demand={key.name: GpuDemand(key, tuple(members), ())},
        records={key.name: record},
        nodes={
            f"node-{uid}": GpuNodeView(f"node-{uid}", True, devices=(whole_device(uid, f"node-{uid}"),))
            for uid in waiting
        },
        refused={(key.name, 1, len(waiting)): "no"},
    )
    plan = plan_step(world, ScaleUpSettings())
    after = next(stored for stored in plan.store if stored.name == key.name)
    return {
        "groups": [members[0].gang] if waiting else [],
        "rejected": [uid for uid, unit in zip(waiting, after.units, strict=False) if unit.ended],
        "backed_off": after.next_attempt > GANG_TIMEOUT and not plan.holds,
    }


# Quota


@kind("quota_check")
def answer_quota(case: Case) -> Given:
    given = case["input"]
    found = quota_of(given["quota"])
    if found is None:
        return {"ok": True}
    before = given.get("pre_scheduled")
    refused = None
    if given["scope"] in ("single", "all"):
        refused = quota.check_single(found, charge(given["request"]))
    if refused is None and given["scope"] in ("total", "all"):
        refused = quota.check_total(
            found,
            charge(given["request"]),
            usage(given.get("usage")) + usage(given.get("assumed")),
            released=usage(given.get("release")),
            pre_scheduled=None if before is None else usage(before),
        )
    if refused is None:
        return {"ok": True}
    return {"ok": False, "resource": refused.about, "unresolvable": not refused.resolvable}


def shown_usage(found: quota.QuotaUsage) -> Given:
    return {"requests": show(found.requests), "limits": show(found.limits), "workers": found.workers}


@kind("quota_usage", same=same_amounts)
def answer_usage(case: Case) -> Given:
    given = case["input"]
    found = usage(given["usage"])
    for step in given["steps"]:
        if step["op"] == "rebuild":
            found = quota.UNUSED
            for each in step["requests"]:
                found = found.allocated(charge(each))
        elif step["op"] == "allocate":
            found = found.allocated(charge(step["request"]))
        elif step["op"] == "deallocate":
            found = found.deallocated(charge(step["request"]))
        else:
            raise ValueError(f"unknown step {step['op']}")
    return shown_usage(found)


@kind("quota_validate")
def answer_validate(case: Case) -> Given:
    found = quota_of(case["input"]["quota"])
    problem = None if found is None else quota.problem_of(found)
    return {"ok": problem is None, "error": problem}


@kind("available_percent", same=lambda expected, actual: float(expected) == float(actual))
def answer_percent(case: Case) -> str:
    given = case["input"]
    return quota.available_percent(quantity.value(given["total"]), quantity.value(given["used"]))


@kind("quota_alert")
def answer_alert(case: Case) -> bool:
    given = case["input"]
    return quota.is_alert(str(given["available_percent"]), given["threshold"])


# Partitions


@kind("template_identifier")
def answer_identifier(case: Case) -> bool:
    given = case["input"]
    return PartitionTemplate(given["id"], given["name"]).answers_to(given["requested"])


@kind("partition_match")
def answer_match(case: Case) -> Given:
    given = case["input"]
    capacity = parse_amount(given["capacity"])
    known = catalogue({"templates": given["templates"]})
    wanted = share(given["request"]).on(capacity)
    found = known.match(given["model"], capacity, wanted, given.get("template", ""))
    if isinstance(found, Infeasible):
        return {"error": stable_code(found)}
    return {"template": found.id, "can_allocate": True}


@kind("partition_usage", same=same_amounts)
def answer_partition_usage(case: Case) -> Given:
    given = case["input"]
    return show(template("t", given["template"]).cost(quantity.milli_value(given["capacity_tflops"])))


@kind("partition_check")
def answer_partition_check(case: Case) -> Given:
    given = case["input"]
    known = {name: template(name, each) for name, each in given["templates"].items()}
    host = PartitionHost(
        given["vendor"],
        parse_amount(given["capacity"]),
        parse_amount(given["available"]),
        [DevicePartition(name) for name in given["partitions"]],
        given["max_partitions"],
    )
    found = partitions.place_partition(known[given["template"]], host, known)
    return (
        {"error": stable_code(found)} if isinstance(found, Infeasible) else {"ok": True, "start": found.start}
    )


@kind("mig_create")
def answer_mig(case: Case) -> Given:
    given = case["input"]
    model = find_model(given["model"])
    assert model is not None
    known = partitions.templates_of(model)
    enough = DeviceAmount(10**9, 2**50)
    held = [DevicePartition(each["profile"], start=each["start"]) for each in given["instances"]]
    found = partitions.place_partition(
        known[given["create"]], PartitionHost("NVIDIA", enough, enough, held), known
    )
    if isinstance(found, Infeasible):
        return {"refused": True}
    return {"start": found.start, "size": known[given["create"]].slots}


@kind("ascend_group")
def answer_group(case: Case) -> Given:
    given = case["input"]
    known = {name: template(name, each) for name, each in given["templates"].items()}
    enough = DeviceAmount(10**9, 2**50)
    host = PartitionHost(
        given["vendor"],
        enough,
        enough,
        [DevicePartition(each["template"], group=each["group"]) for each in given["partitions"]],
        given["max_partitions"],
        given["max_groups"],
        given["totals"],
    )
    found = partitions.place_partition(known[given["template"]], host, known)
    return {"error": stable_code(found)} if isinstance(found, Infeasible) else {"group": found.group}


# Devices that are still to come


@kind("prepare_node", same=same_amounts)
def answer_prepare(case: Case) -> Given:
    template_gpu = device(case["input"]["template_gpu"])
    fresh = new_devices(DeviceKinds(), [(0, template_gpu, "")])
    return {
        "active_isolation_mode": LOCKS[fresh.lock[0]],
        "isolation_conflict": bool(fresh.closed[0]),
        "available": show(fresh.left(0)),
        "node_equals_new_node": fresh.by_node(0).tolist() == [0],
    }


@kind("reserve_inflight", same=same_amounts)
def answer_inflight(case: Case) -> Given:
    given = case["input"]
    allocator = Allocator(AllocatorSettings(policy=given["policy"]))
    for each in given["inflight"]:
        allocator.put_device(structs.replace(device(each), pool="p", node="coming", phase=RUNNING))
    allocator.open()
    results = []
    for number, step in enumerate(given["steps"]):
        asked = replace(worker(step, uid=f"u{number}"), pool="p")
        results.append(not isinstance(allocator.try_allocate(asked), Infeasible))
    table = allocator.table
    modes = [table.lock_of(int(row)) for row in table.all_rows()]
    locked = [int(table.free_tflops[row]) for row, mode in zip(table.all_rows(), modes, strict=True) if mode]
    return {
        "results": results,
        "locks": {mode: modes.count(mode) for mode in set(modes)},
        "available_on_locked": quantity.format_milli(locked[0]) if locked else "",
    }
