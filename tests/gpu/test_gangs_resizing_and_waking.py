from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from karpool.gpu.allocation.resizing import resize
from karpool.gpu.controller.wake_ups import should_wake
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.triage import must_leave_room
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device_reasons import DeviceReason, stable_code
from karpool.model.devices.oversubscription import Oversubscription, hard_limit_percent, virtual_capacity
from karpool.model.devices.quota import (
    GpuQuota,
    NamespaceQuota,
    QuotaUsage,
    available_percent,
    is_alert,
    problem_of,
    quota_room,
)
from karpool.model.devices.request import Gang
from karpool.model.infeasible import Infeasible
from tests.gpu.devices import GIB, ask, gpu, opened

# Resizing


def with_worker(**more):
    allocator = opened([gpu("g")])
    allocator.put_quota(
        GpuQuota("n", total=NamespaceQuota(DeviceAmount(80_000, 16 * GIB), DeviceAmount(90_000, 16 * GIB), 1))
    )
    share = DeviceShare(50_000, 4 * GIB)
    allocator.try_allocate(replace(ask("u"), namespace="n", request=share, limit=share, **more))
    allocator.commit("u")
    return allocator


def test_growing_takes_the_difference():
    allocator = with_worker()
    found = resize(allocator.ledger, "u", DeviceShare(70_000, 6 * GIB), DeviceShare(80_000, 6 * GIB))

    assert found.request_delta == DeviceAmount(20_000, 2 * GIB)
    assert allocator.free("g") == DeviceAmount(30_000, 10 * GIB)
    assert allocator.quotas.used["n"].limits == DeviceAmount(80_000, 6 * GIB)


def test_growing_beyond_the_device_or_the_quota_changes_nothing():
    allocator = with_worker()
    too_big = resize(allocator.ledger, "u", DeviceShare(110_000, 4 * GIB), DeviceShare(110_000, 4 * GIB))
    over_quota = resize(allocator.ledger, "u", DeviceShare(60_000, 4 * GIB), DeviceShare(95_000, 4 * GIB))

    assert too_big.reason is DeviceReason.EXCEEDS_DEVICE
    assert stable_code(over_quota) == "quota_exceeded:total.max.tflops.limit"
    assert allocator.free("g") == DeviceAmount(50_000, 12 * GIB)


def test_shrinking_works_where_the_quota_is_full():
    allocator = with_worker()

    assert not isinstance(
        resize(allocator.ledger, "u", DeviceShare(10_000, GIB), DeviceShare(10_000, GIB)), Infeasible
    )
    assert allocator.quotas.used["n"].workers == 1


def test_a_percentage_can_be_resized():
    allocator = with_worker()
    resize(allocator.ledger, "u", DeviceShare(percent_milli=60_000), DeviceShare(percent_milli=60_000))

    assert allocator.free("g") == DeviceAmount(40_000, 16 * GIB)


def test_nothing_to_resize():
    assert (
        resize(with_worker().ledger, "other", DeviceShare(), DeviceShare()).reason is DeviceReason.NOT_ASSUMED
    )


# Waking


def test_what_wakes_a_waiting_pod():
    used, idle = (
        structs.replace(gpu(), available=DeviceAmount()),
        structs.replace(gpu(), available=DeviceAmount(100_000, 16 * GIB)),
    )

    assert should_wake(ask(), used, idle)
    assert not should_wake(ask(), idle, used)
    assert not should_wake(ask(), idle, idle)
    assert not should_wake(ask(pool="other"), used, idle)
    assert not should_wake(ask(tflops=200), used, idle)
    assert should_wake(ask(), structs.replace(used, phase="Pending"), used)
    assert should_wake(ask(), used, used, nominated_node="node-0")
    assert should_wake(ask(), None, idle)
    assert not should_wake(ask(), idle, None)


def waiting(uid, priority, group=""):
    gang = Gang(group, 2, 2, 2) if group else None
    return WaitingWorker(replace(ask(uid), priority=priority, gang=gang), 0.0)


@given(st.integers(-5, 5), st.integers(-5, 5), st.sampled_from(["", "g"]), st.sampled_from(["", "g", "h"]))
def test_two_pods_never_both_leave_room_unless_they_are_equals_of_one_gang(low, high, one, other):
    first, second = waiting("first", low, one), waiting("second", high, other)
    both = must_leave_room(first, second) and must_leave_room(second, first)

    assert both == (low == high and one == other != "")


# Totals and quota figures


def test_host_memory_and_disk_count_for_limits():
    total = DeviceAmount(100_000, GIB)

    assert virtual_capacity(total, 2 * GIB, 10 * GIB, Oversubscription()) == DeviceAmount(500_000, 9 * GIB)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_hard_limit_is_a_percentage_that_covers_it(limit, capacity):
    percent = hard_limit_percent(limit, capacity)

    assert 1 <= percent <= 100
    assert percent == 100 or percent * capacity >= limit * 100


def test_quota_figures_people_see():
    assert available_percent(300, 100) == "66.67"
    assert available_percent(100, 200) == "0.00"
    assert is_alert("", 95)
    assert is_alert("4.99", 95)
    assert not is_alert("5", 95)


def test_what_is_left_of_a_quota():
    quota = GpuQuota("n", total=NamespaceQuota(DeviceAmount(100_000, 10 * GIB), max_workers=10))
    used = QuotaUsage(DeviceAmount(50_000, 10 * GIB), workers=1)

    assert [(room.resource, room.available_percent, room.is_alert) for room in quota_room(quota, used)] == [
        ("total.max.tflops.request", "50.00", False),
        ("total.max.vram.request", "0.00", True),
        ("total.max.workers.limit", "90.00", False),
    ]
    assert quota_room(GpuQuota("n"), used) == ()


def test_quotas_that_cannot_be_meant():
    assert problem_of(GpuQuota("n", total=NamespaceQuota(max_workers=-1))) == "max_workers_negative"
    assert (
        problem_of(GpuQuota("n", total=NamespaceQuota(DeviceAmount(2000, 0), DeviceAmount(1000, 0))))
        == "limits_tflops_below_requests"
    )
    assert problem_of(GpuQuota("n")) is None
