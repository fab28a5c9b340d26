"""Random histories of the ledger, checked against sums over what it says it holds."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from karpool.gpu.allocation.allocator import Allocator, AllocatorSettings
from karpool.gpu.allocation.resizing import resize
from karpool.gpu.controller.allocator_state import AllocatorState, GpuNodeFacts, GpuWorker, View
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.model.devices.amounts import NOTHING, DeviceAmount, DeviceShare
from karpool.model.devices.device_reasons import DeviceReason, stable_code
from karpool.model.devices.quota import GpuQuota, NamespaceQuota, QuotaUsage, used_by
from karpool.model.devices.request import DeviceDemand
from karpool.model.infeasible import Infeasible
from karpool.packing.tables.device_kinds import kind_of
from tests.gpu.devices import GIB, POOL, ask, gpu, node, opened

UIDS = st.sampled_from([f"pod-{number}" for number in range(6)])
DEVICES = [f"node-{number // 2}-{number % 2}" for number in range(4)]
SHARES = st.builds(
    DeviceShare,
    st.sampled_from([0, 30_000, 60_000, 100_000]),
    st.sampled_from([0, 4 * GIB, 10 * GIB, 16 * GIB]),
)
QUOTA = GpuQuota("n", total=NamespaceQuota(DeviceAmount(250_000, 40 * GIB), None, 4))


class LedgerLife(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(["Static", "Dynamic"]), with_quota=st.booleans())
    def start(self, policy, with_quota):
        self.policy = policy
        self.devices = {
            each.name: structs.replace(each, isolation_policy=policy)
            for name in ("node-0", "node-1")
            for each in node(name, 2)
        }
        self.now = 0.0
        self.allocator = Allocator(
            AllocatorSettings(policy=policy, workers_per_node=3), self.devices.values()
        )
        for name in ("node-0", "node-1"):
            self.allocator.put_node(name, {}, cpu_milli=8000, memory_bytes=64 * GIB)
        if with_quota:
            self.allocator.put_quota(QUOTA)
        self.allocator.open()
        self.ledger, self.table = self.allocator.ledger, self.allocator.table

    def request(self, uid, share, mode, count):
        return replace(
            ask(uid),
            namespace="n",
            request=share,
            limit=share,
            isolation=mode,
            count=count,
            cpu_milli=500,
            memory_bytes=GIB,
        )

    @rule(uid=UIDS, share=SHARES, mode=st.sampled_from(["soft", "hard", "shared"]), count=st.integers(1, 2))
    def allocate(self, uid, share, mode, count):
        before = self.books()
        found = self.allocator.try_allocate(self.request(uid, share, mode, count), self.now)
        if isinstance(found, Infeasible):
            assert self.books() == before
        else:
            assert len(found.devices) == count
            assert uid in self.ledger.assumed

    @rule(uid=UIDS, share=SHARES, devices=st.lists(st.sampled_from([*DEVICES, "none"]), max_size=2))
    def hold(self, uid, share, devices):
        before = self.books()
        request = self.request(uid, share, "soft", max(1, len(devices)))
        found = self.allocator.hold(request, devices, self.now, self.now + 60)
        if isinstance(found, Infeasible):
            assert self.books() == before

    @rule(uid=UIDS)
    def commit(self, uid):
        had = uid in self.ledger.assumed or uid in self.ledger.committed
        found = self.allocator.commit(uid)
        assert uid not in self.ledger.assumed
        assert (uid in self.ledger.committed) == (not isinstance(found, Infeasible))
        if not had:
            assert found.reason is DeviceReason.NOT_ASSUMED
        again = self.books()
        self.allocator.commit(uid)
        assert self.books() == again

    @rule(uid=UIDS, way=st.sampled_from(["forget", "rollback", "unreserve", "release"]))
    def give_back(self, uid, way):
        committed = uid in self.ledger.committed
        getattr(self.ledger, way)(uid)
        after = self.books()
        getattr(self.ledger, way)(uid)
        assert self.books() == after
        assert (uid in self.ledger.committed) == (committed and way == "forget")

    @rule(seconds=st.sampled_from([1, 61, 1900]), waiting=st.sets(UIDS, max_size=2))
    def sweep(self, seconds, waiting):
        self.now += seconds
        kept = waiting & set(self.ledger.assumed)
        self.allocator.sweep(self.now, waiting)
        assert kept <= set(self.ledger.assumed)
        assert all(self.now - entry.since <= 1800 for entry in self.ledger.assumed.values())

    @rule(uid=UIDS, share=SHARES, dry=st.booleans())
    def resize(self, uid, share, dry):
        before = self.books()
        found = resize(self.ledger, uid, share, share, dry_run=dry)
        if isinstance(found, Infeasible) or dry:
            assert self.books() == before

    @rule(name=st.sampled_from(DEVICES))
    def device_goes(self, name):
        self.allocator.remove_device(name)
        self.devices.pop(name, None)

    @rule(name=st.sampled_from(DEVICES))
    def device_comes(self, name):
        known = gpu(name, name.rsplit("-", 1)[0], isolation_policy=self.policy)
        self.devices[name] = known
        self.allocator.put_device(known)

    @precondition(lambda self: not self.ledger.assumed)
    @rule()
    def restart(self):
        """A new process reads the pods and knows the same."""
        fresh = Allocator(self.allocator.settings, self.devices.values())
        for name in ("node-0", "node-1"):
            fresh.put_node(name, {}, cpu_milli=8000, memory_bytes=64 * GIB)
        for quota in self.allocator.quotas.quotas.values():
            fresh.put_quota(quota)
        entries = self.ledger.committed.values()
        for entry in entries:
            fresh.restore(entry.request, entry.allocation.devices, entry.node or "node-0")
        fresh.open()
        assert {name: fresh.available(name) for name in self.devices} == {
            name: self.allocator.available(name) for name in self.devices
        }
        self.allocator, self.ledger, self.table = fresh, fresh.ledger, fresh.table

    def books(self):
        """Everything that a refusal must leave alone."""
        return (
            dict(self.ledger.assumed),
            dict(self.ledger.committed),
            {name: (self.allocator.available(name), self.allocator.free(name)) for name in self.devices},
            dict(self.allocator.quotas.used),
            {name: use for name, use in self.allocator.quotas.assumed.items() if use != QuotaUsage()},
            self.table.lock.tolist(),
        )

    @invariant()
    def amounts_add_up(self):
        for name, device in self.devices.items():
            row = self.table.find(name)
            held = self.ledger.holders(name)
            committed = sum_of(taken.amount for uid, taken in held.items() if uid in self.ledger.committed)
            reserved = sum_of(taken.amount for uid, taken in held.items() if uid in self.ledger.assumed)
            assert self.table.available(row) == device.capacity - committed
            assert self.table.free(row) == device.capacity - committed - reserved
            assert self.table.free(row).covers(NOTHING)
            assert self.table.holders[row] == len(held)

    @invariant()
    def nobody_is_in_both_books(self):
        assert not self.ledger.assumed.keys() & self.ledger.committed.keys()

    @invariant()
    def quota_counts_what_is_held(self):
        for book, counted in (
            (self.ledger.committed, self.allocator.quotas.used),
            (self.ledger.assumed, self.allocator.quotas.assumed),
        ):
            total = QuotaUsage()
            for entry in book.values():
                total = total + used_by(entry.charge)
            assert counted.get("n", QuotaUsage()) == total

    @invariant()
    def quota_is_kept(self):
        if "n" in self.allocator.quotas.quotas:
            taken = self.allocator.quotas.taken("n")
            assert QUOTA.total.requests.covers(taken.requests)
            assert taken.workers <= QUOTA.total.max_workers

    @invariant()
    def nodes_know_their_workers(self):
        for name in ("node-0", "node-1"):
            workers = sum(1 for entry in self.ledger.entries() if entry.node == name)
            code = self.table.node_code(name)
            assert self.table.workers[code] == workers
            assert self.table.cpu_room[code] == 8000 - 500 * workers
            assert workers <= 3

    @invariant()
    def a_whole_device_is_shared_with_nobody(self):
        for name in self.devices:
            held = [
                (self.ledger.committed.get(uid) or self.ledger.assumed[uid]).request.isolation
                for uid in self.ledger.holders(name)
            ]
            assert "shared" not in held or len(held) == 1

    @invariant()
    def a_lock_is_the_mode_of_all_that_is_there(self):
        if self.policy != "Dynamic":
            return
        for name in self.devices:
            row = self.table.find(name)
            modes = {
                (self.ledger.committed.get(uid) or self.ledger.assumed[uid]).request.isolation
                for uid in self.ledger.holders(name)
            }
            assert len(modes) <= 1
            assert self.table.lock_of(row) == next(iter(modes), "")


def sum_of(amounts):
    total = NOTHING
    for amount in amounts:
        total = total + amount
    return total


LedgerLife.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestLedgerLife = pytest.mark.long(LedgerLife.TestCase)


def test_a_released_pod_is_not_allocated_again():
    allocator = opened(node("node-0", 1))
    allocator.try_allocate(ask("u"))
    allocator.release("u")

    assert allocator.try_allocate(ask("u")).reason is DeviceReason.ALREADY_ALLOCATED


def test_a_dropped_pod_may_ask_again():
    allocator = opened(node("node-0", 1))
    allocator.try_allocate(ask("u"))
    allocator.commit("u")
    allocator.drop("u")

    assert allocator.try_allocate(ask("u")).devices == ("node-0-0",)


def test_a_commit_on_a_device_that_shrank_is_refused_and_leaves_nothing():
    allocator = opened([gpu("g")])
    allocator.try_allocate(ask("u", tflops=80))
    allocator.put_device(gpu("g", tflops=50))

    refused = allocator.commit("u")

    assert refused.reason is DeviceReason.INSUFFICIENT_TFLOPS
    assert allocator.free("g") == DeviceAmount(50_000, 16 * GIB)
    assert not allocator.ledger.assumed


def test_a_device_that_is_reset_and_comes_back_keeps_what_was_taken():
    allocator = opened([gpu("g")])
    allocator.try_allocate(ask("u", tflops=80))
    allocator.commit("u")
    allocator.put_device(gpu("g", tflops=0, vram=0))
    allocator.put_device(gpu("g"))

    assert allocator.available("g") == DeviceAmount(20_000, 15 * GIB)


def test_a_percentage_is_charged_as_what_it_is_on_the_device():
    allocator = opened([gpu("g", tflops=71)])
    allocator.put_quota(GpuQuota("n", total=NamespaceQuota(DeviceAmount(22_000, 16 * GIB))))
    request = replace(ask(), namespace="n", request=DeviceShare(percent_milli=33_000))

    assert stable_code(allocator.try_allocate(request)) == "quota_exceeded:total.max.tflops.request"


def test_released_uids_are_not_kept_for_ever():
    allocator = opened([gpu("g")])
    for number in range(10_050):
        allocator.release(f"pod-{number}")

    assert allocator.ledger.refused_uid("pod-0") is None
    assert allocator.ledger.refused_uid("pod-10049") is not None


def running(uid, tflops=10, **more):
    return GpuWorker(WaitingWorker(replace(ask(uid, tflops), **more), 0.0), "node-0", ("g",))


def host(*devices):
    return GpuNodeFacts("node-0", ready=True, devices=devices, cpu_milli=8000, memory_bytes=64 * GIB)


def started(workers, *devices, **settings):
    """A process that has just looked for the first time."""
    state = AllocatorState(ScaleUpSettings(), AllocatorSettings(**settings))
    state.refresh(View(0.0, tuple(workers), nodes=(host(*devices),)), lambda item: ())
    return state


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_two_modes_on_one_device_make_it_unusable_until_it_is_drained(mode):
    workers = [running("a", isolation="soft"), running("b", isolation="hard")]
    allocator = started(workers, gpu("g", isolation_policy="Dynamic"), policy="Dynamic").allocator

    assert isinstance(allocator.try_allocate(replace(ask("c"), isolation=mode)), Infeasible)
    allocator.release("a")
    assert isinstance(allocator.try_allocate(replace(ask("d"), isolation=mode)), Infeasible)
    allocator.release("b")
    assert not isinstance(allocator.try_allocate(replace(ask("e"), isolation=mode)), Infeasible)


def test_pods_that_do_not_count_are_not_restored():
    allocator = started(
        [
            replace(running("unbound"), node=""),
            replace(running("without"), devices=()),
            replace(running("released"), leaving=True, released=True),
            replace(running("in-its-grace-period", tflops=20), leaving=True),
            running("running", tflops=30),
        ],
        gpu("g"),
    ).allocator

    assert allocator.available("g") == DeviceAmount(50_000, 14 * GIB)
    assert sorted(allocator.ledger.committed) == ["in-its-grace-period", "running"]


def test_a_running_pod_whose_amounts_are_changed_gets_them_where_they_fit():
    state = started([running("a", tflops=30), running("b", tflops=30)], gpu("g"))

    def look(*workers):
        state.refresh(View(1.0, workers, nodes=(host(gpu("g")),)), lambda item: ())
        return state.allocator.available("g").tflops_milli

    assert look(running("a", tflops=60), running("b", tflops=30)) == 10_000
    assert not state.refused_resizes
    assert look(running("a", tflops=80), running("b", tflops=30)) == 10_000
    assert state.refused_resizes["a"].reason is DeviceReason.EXCEEDS_DEVICE
    assert look(running("a", tflops=10), running("b", tflops=30)) == 60_000
    assert not state.refused_resizes


def test_room_of_a_nominated_pod_is_left_to_it():
    nominated = GpuWorker(
        WaitingWorker(replace(ask("vip", tflops=60), priority=10), 0.0), nominated_node="node-0"
    )
    small, large = (GpuWorker(WaitingWorker(ask(uid, tflops), 0.0)) for uid, tflops in (("s", 30), ("l", 50)))
    equal = GpuWorker(WaitingWorker(replace(ask("equal", tflops=50), priority=10), 0.0))

    def served(*workers):
        state = AllocatorState(ScaleUpSettings())
        view = View(0.0, (nominated, *workers), nodes=(host(gpu("g")),))
        found, _ = state.refresh(view, lambda item: ())
        assert sorted(state.allocator.ledger.assumed) == sorted(item.uid for item, _ in found.served)
        return [item.uid for item, _ in found.served]

    assert served(small) == ["s"]
    assert served(large) == []
    assert served(equal) == ["equal"]


def test_nothing_is_given_out_before_recovery():
    allocator = Allocator(devices=[gpu("g")])

    assert allocator.try_allocate(ask()).reason is DeviceReason.NOT_RECOVERED
    assert allocator.hold(ask(), ["g"], 0.0).reason is DeviceReason.NOT_RECOVERED


def test_a_device_of_a_running_pod_may_come_later():
    allocator = started([running("u", tflops=40)]).allocator
    allocator.put_device(gpu("g"))

    assert allocator.available("g") == DeviceAmount(60_000, 15 * GIB)
    assert allocator.table.workers[allocator.table.node_code("node-0")] == 1
    assert allocator.devices_of(POOL)[0].name == "g"


def test_a_device_that_shrank_under_its_pods_has_nothing_left_until_they_hold_less_than_there_is():
    allocator = opened([gpu("g")])
    for uid, tflops in (("a", 40), ("b", 30)):
        allocator.try_allocate(ask(uid, tflops=tflops, vram=4))
        allocator.commit(uid)
    allocator.put_device(gpu("g", tflops=50))

    assert allocator.available("g") == allocator.table.available(0) == DeviceAmount(0, 8 * GIB)
    assert isinstance(allocator.try_allocate(ask("c", tflops=0, vram=1)), Infeasible)
    allocator.release("b")
    assert allocator.available("g") == DeviceAmount(10_000, 12 * GIB)


def test_who_has_a_whole_device_has_all_of_it_when_it_grows():
    allocator = opened([gpu("g")])
    allocator.try_allocate(ask("a", isolation="shared"))
    allocator.commit("a")
    allocator.put_device(gpu("g", tflops=200, vram=32))

    assert allocator.available("g") == DeviceAmount()
    allocator.release("a")
    assert allocator.available("g") == DeviceAmount(200_000, 32 * GIB)


@pytest.mark.parametrize("tflops, vram", [(101, 1), (1, 17)])
def test_a_whole_device_must_have_what_is_asked_for(tflops, vram):
    allocator = opened([gpu("g")])
    too_much = ask("a", tflops=tflops, vram=vram, isolation="shared")

    assert allocator.find(too_much).reason is DeviceReason.NO_GPU_AFTER_FILTER
    assert isinstance(allocator.ledger.assume(too_much, ["g"], 0.0), Infeasible)
    demand = DeviceDemand(share=too_much.request, isolation="shared")
    assert not kind_of(gpu("g")).admits(demand)
    assert kind_of(gpu("g")).admits(replace(demand, share=ask(tflops=100, vram=16).request))


def test_a_device_without_figures_is_not_known_to_be_idle():
    unknown = structs.replace(gpu("g"), capacity=None, available=DeviceAmount(100_000, 16 * GIB))
    allocator = opened([unknown])

    assert isinstance(allocator.find(ask("a", isolation="shared")), Infeasible)
    assert allocator.find(ask("a")) == ("g",)


def test_a_worker_may_shrink_on_a_device_that_is_overdrawn():
    allocator = opened([gpu("g")])
    for uid in ("a", "b"):
        allocator.try_allocate(ask(uid, tflops=50, vram=4))
        allocator.commit(uid)
    allocator.put_device(gpu("g", tflops=60))
    less, more = DeviceShare(45_000, 4 * GIB), DeviceShare(46_000, 4 * GIB)

    assert not isinstance(resize(allocator.ledger, "a", less, less), Infeasible)
    assert isinstance(resize(allocator.ledger, "a", more, more), Infeasible)
