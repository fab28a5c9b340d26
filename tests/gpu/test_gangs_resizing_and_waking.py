from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from karpool.gpu.allocation.resizing import resize
from karpool.gpu.gangs import REST_SECONDS, GangPhase, GangTracker
from karpool.gpu.oversubscription import Oversubscription, hard_limit_percent, virtual_capacity
from karpool.gpu.waking import Standing, must_leave_room, should_wake
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device_reasons import DeviceReason, Refusal
from karpool.model.devices.quota import GpuQuota, NamespaceQuota, available_percent, is_alert, problem_of
from karpool.model.devices.request import Gang
from tests.gpu.devices import GIB, ask, gpu, node, opened

GANG = Gang("team/train", 2, 3, 3, timeout_seconds=60)


def test_members_wait_for_each_other_and_go_together():
    gangs = GangTracker()
    first, second = gangs.permit(GANG, "a", 0.0), gangs.permit(GANG, "b", 10.0)
    last = gangs.permit(GANG, "c", 20.0)

    assert (first.allowed, second.allowed, second.remaining_seconds) == (False, False, 50.0)
    assert last.released == ("a", "b", "c")
    assert gangs.groups["team/train"].phase is GangPhase.SCHEDULING
    assert gangs.permit(GANG, "late", 500.0).released == ("late",)


def test_the_gate_opens_with_enough_members_and_stays_open_for_late_ones():
    gangs = GangTracker()
    assert not gangs.may_enter(GANG, ["a", "b"], 0.0)
    assert gangs.may_enter(GANG, ["a", "b", "c"], 0.0)
    for uid in "abc":
        gangs.permit(GANG, uid, 0.0)

    assert gangs.may_enter(GANG, ["d"], 0.0)


def test_a_gang_that_times_out_gives_up_together_and_rests():
    gangs = GangTracker()
    gangs.permit(GANG, "a", 0.0)
    gangs.permit(GANG, "b", 30.0)

    assert gangs.expire(59.0) == {}
    assert gangs.expire(60.0) == {"team/train": ("a", "b")}
    assert gangs.groups["team/train"].phase is GangPhase.TIMED_OUT
    assert not gangs.may_enter(GANG, ["a", "b", "c"], 60.0 + REST_SECONDS - 1)
    assert gangs.may_enter(GANG, ["a", "b", "c"], 60.0 + REST_SECONDS)


def test_one_member_without_room_ends_the_wait_of_all_but_not_while_members_arrive():
    gangs = GangTracker()
    gangs.permit(GANG, "a", 0.0)

    assert gangs.unschedulable(GANG, ["a", "b"], 1.0) == ()
    assert gangs.unschedulable(GANG, ["a", "b", "c"], 1.0) == ("a",)
    assert gangs.groups["team/train"].phase is GangPhase.FAILED


def test_without_a_timeout_a_gang_waits_for_ever():
    gangs = GangTracker()
    patient = replace(GANG, timeout_seconds=0.0)

    assert gangs.permit(patient, "a", 0.0).remaining_seconds is None
    assert gangs.expire(1e9) == {}


@given(st.lists(st.tuples(st.sampled_from(["permit", "remove", "expire", "fail"]), st.sampled_from("abcde"))))
def test_a_member_is_allowed_only_together_with_enough_others(history):
    gangs, now = GangTracker(), 0.0
    for what, uid in history:
        now += 7
        if what == "permit":
            had_quorum = gangs.groups.get("team/train") and gangs.groups["team/train"].had_quorum
            permit = gangs.permit(GANG, uid, now)
            assert permit.allowed == bool(permit.released)
            assert had_quorum or not permit.allowed or len(permit.released) >= GANG.required_members
        elif what == "remove":
            gangs.remove(uid)
            assert uid not in gangs.waiting
        elif what == "expire":
            gangs.expire(now)
        else:
            gangs.reject("team/train", now)
            assert not gangs.waiting
        assert len(gangs.waiting) < GANG.required_members


def test_members_that_run_are_seen():
    gangs = GangTracker()
    for uid in "abc":
        gangs.permit(GANG, uid, 0.0)
    gangs.running("abc")

    assert gangs.groups["team/train"].phase is GangPhase.RUNNING
    for uid in "abc":
        gangs.remove(uid)
    assert not gangs.groups


def test_reservations_of_waiting_members_are_not_swept():
    allocator, gangs = opened(node("node-0", 1)), GangTracker()
    allocator.try_allocate(ask("a"), 0.0)
    gangs.permit(GANG, "a", 0.0)

    assert allocator.sweep(5000.0, gangs.waiting) == []
    gangs.remove("a")
    assert allocator.sweep(10_000.0, gangs.waiting) == ["a"]


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

    assert found.deltas == (DeviceAmount(20_000, 2 * GIB),)
    assert allocator.free("g") == DeviceAmount(30_000, 10 * GIB)
    assert allocator.quotas.used["n"].limits == DeviceAmount(80_000, 6 * GIB)


def test_growing_beyond_the_device_or_the_quota_changes_nothing():
    allocator = with_worker()
    too_big = resize(allocator.ledger, "u", DeviceShare(110_000, 4 * GIB), DeviceShare(110_000, 4 * GIB))
    over_quota = resize(allocator.ledger, "u", DeviceShare(60_000, 4 * GIB), DeviceShare(95_000, 4 * GIB))

    assert (too_big.code, too_big.remaining) == (DeviceReason.EXCEEDS_DEVICE, DeviceAmount(50_000, 12 * GIB))
    assert over_quota.stable == "quota_exceeded:total.max.tflops.limit"
    assert allocator.free("g") == DeviceAmount(50_000, 12 * GIB)


def test_shrinking_works_where_the_quota_is_full():
    allocator = with_worker()

    assert not isinstance(
        resize(allocator.ledger, "u", DeviceShare(10_000, GIB), DeviceShare(10_000, GIB)), Refusal
    )
    assert allocator.quotas.used["n"].workers == 1


def test_a_percentage_can_be_resized():
    allocator = with_worker()
    resize(allocator.ledger, "u", DeviceShare(percent_milli=60_000), DeviceShare(percent_milli=60_000))

    assert allocator.free("g") == DeviceAmount(40_000, 16 * GIB)


def test_nothing_to_resize():
    assert (
        resize(with_worker().ledger, "other", DeviceShare(), DeviceShare()).code is DeviceReason.NOT_ASSUMED
    )


# Waking


def test_what_wakes_a_waiting_pod():
    used, idle = (
        replace(gpu(), available=DeviceAmount()),
        replace(gpu(), available=DeviceAmount(100_000, 16 * GIB)),
    )

    assert should_wake(ask(), used, idle)
    assert not should_wake(ask(), idle, used)
    assert not should_wake(ask(), idle, idle)
    assert not should_wake(ask(pool="other"), used, idle)
    assert not should_wake(ask(tflops=200), used, idle)
    assert should_wake(ask(), replace(used, phase="Pending"), used)
    assert should_wake(ask(), used, used, nominated_node="node-0")
    assert should_wake(ask(), None, idle)
    assert not should_wake(ask(), idle, None)


@given(st.integers(-5, 5), st.integers(-5, 5), st.sampled_from(["", "g"]), st.sampled_from(["", "g", "h"]))
def test_two_pods_never_both_leave_room_unless_they_are_equals_of_one_gang(low, high, one, other):
    first, second = Standing(low, one), Standing(high, other)
    both = must_leave_room(first, second) and must_leave_room(second, first)

    assert both == (low == high and one == other != "")


# Totals and quota figures


def test_without_rules_virtual_is_physical():
    total = DeviceAmount(100_000, GIB)

    assert virtual_capacity(total, GIB, GIB, None) == total
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


def test_quotas_that_cannot_be_meant():
    assert problem_of(GpuQuota("n", total=NamespaceQuota(max_workers=-1))) == "max_workers_negative"
    assert (
        problem_of(GpuQuota("n", total=NamespaceQuota(DeviceAmount(2000, 0), DeviceAmount(1000, 0))))
        == "limits_tflops_below_requests"
    )
    assert problem_of(GpuQuota("n")) is None
