"""Room for a binding: from estimators and summaries, with what is promised taken off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from karpool.kube.clock import RealClock
from karpool.model.karmada.binding import WorkloadTemplate
from karpool.model.karmada.member_cluster import MemberCluster, ResourceSummary
from karpool.model.karmada.placement import read_placement
from karpool.model.karmada.replica_requirements import requirements
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, REPLICASETS
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.scheduler.cycle.settings import EstimateMergeRule, SchedulingSettings
from karpool.scheduler.estimates.availability import AvailabilityReader
from karpool.scheduler.estimates.estimate_cache import EstimatorReply, PromiseHandling, displaced
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.metrics import PromiseMetrics, follow_estimators
from karpool.scheduler.promises.promise import Promise, PromiseLifetime, WorkloadRequirements
from karpool.wire import server_protocol
from karpool.wire.requests import ArrivedReplicas
from tests.estimator.pictures import in_room
from tests.estimator.serving import World, eventually, node, pod
from tests.estimator.serving import serving as estimator_serving
from tests.scheduler.estimators import asking
from tests.scheduler.promising import binding, flink, in_flight, targets

WALL = 1_800_000_000.0


class StillClock(RealClock):
    def __init__(self):
        self.at = 100.0

    def monotonic(self):
        return self.at


class StandIn:
    """Answers by cluster: a number, or a whole reply. Keeps what it was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def ask(self, cluster, asked, promises=(), about=""):
        read = server_protocol.read_component_sets if asked.for_sets else server_protocol.read_replicas
        self.asked.append(read(asked.to(cluster.name, promises)))
        answer = self.answers[cluster.name]
        return answer if isinstance(answer, EstimatorReply) else EstimatorReply(answer)


def member(name="m1", cpu=10):
    return MemberCluster(name, summary=ResourceSummary({"cpu": cpu * 1000, "pods": 1000}))


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def ledger():
    return PromiseLedger(PromiseLifetime(300, 900, 30))


def place(ledger, name="other", cpu="1", **to):
    """A decision that was written, and whose pods are not there yet."""
    before = binding(name, cpu=cpu)
    ledger.observe(before, 100.0, WALL)
    ledger.confirm(ledger.promise(before, targets(**to), 100.0), 2)


async def test_the_summary_alone_without_estimators(clock, ledger):
    place(ledger, m1=3)
    found = await AvailabilityReader(SchedulingSettings(), clock, ledger=ledger).gather(
        binding(), [member(), member("m2", 4)]
    )

    assert (found["m1"].replicas, found["m2"].replicas) == (7, 4)
    assert found["m1"].parts[0].note == "after 3 promised"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.sampled_from(("m1", "m2")), st.integers(1, 4)),
        st.tuples(st.just("report"), st.sampled_from(("m1", "m2")), st.integers(0, 12)),
        st.tuples(st.just("ask"), st.sampled_from(("500m", "1", "2")), st.integers(1, 3)),
    ),
    min_size=3,
    max_size=20,
)


@pytest.mark.long
@given(STEPS)
async def test_counts_that_were_kept_are_those_of_a_reader_that_keeps_none(steps):
    ledger = PromiseLedger(PromiseLifetime(300, 900, 30))
    settings, clock = SchedulingSettings(), StillClock()
    keeping = AvailabilityReader(settings, clock, ledger=ledger)
    clusters = {name: member(name) for name in ("m1", "m2")}
    clusters["m3"] = MemberCluster("m3")  # it reports nothing
    for number, (step, what, amount) in enumerate(steps):
        if step == "place":
            place(ledger, f"other-{number}", **{what: amount})
        elif step == "report":
            clusters[what] = member(what, amount)
        else:
            asking_binding = binding(f"web-{number}", cpu=what, on={"m1": amount})
            fresh = AvailabilityReader(settings, clock, ledger=ledger)
            found = await keeping.gather(asking_binding, list(clusters.values()))
            assert found == await fresh.gather(asking_binding, list(clusters.values()))


async def test_promises_of_other_sizes_are_taken_off_as_what_they_are(clock, ledger):
    place(ledger, cpu="2500m", m1=2)
    place(ledger, "another", m1=1)

    found = await AvailabilityReader(SchedulingSettings(), clock, ledger=ledger).gather(
        binding(cpu="2"), [member()]
    )

    assert found["m1"].replicas == 2  # of 10 cores 4 are left


async def test_replicas_of_its_own_that_are_on_their_way_take_room(clock, ledger):
    """It asks for room beside what it has: otherwise the room of these would be handed out twice."""
    place(ledger, "web", m1=4)

    found = await AvailabilityReader(SchedulingSettings(), clock, ledger=ledger).gather(
        binding(on={"m1": 4}), [member()]
    )

    assert found["m1"].replicas == 6


async def test_an_estimator_is_told_what_is_promised(clock, ledger):
    place(ledger, m1=3)
    asker = StandIn(m1=EstimatorReply(9, "", (ArrivedReplicas((0,)),)))

    found = await AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker).gather(
        binding(), [member()]
    )

    (request,) = asker.asked
    (assumed,) = request.assumed
    assert (assumed.namespace, assumed.components[0].replicas) == ("default", 3)
    assert (assumed.workload.kind, assumed.workload.name, assumed.workload.desired) == (
        "Deployment",
        "other",
        (3,),
    )
    assert [part.value for part in found["m1"].parts] == [7, 9]
    assert found["m1"].replicas == 9, "what an autoscaler may add is not clipped"


@pytest.mark.parametrize(
    ("rule", "told", "replicas"),
    [
        (EstimateMergeRule.MIN, 90, 10),
        (EstimateMergeRule.MIN, 4, 4),
        (EstimateMergeRule.ACCURATE_IF_HIGHER, 90, 90),
        (EstimateMergeRule.ACCURATE_IF_HIGHER, 4, 4),
    ],
)
async def test_the_rule_makes_one_number_of_two(clock, rule, told, replicas):
    room = AvailabilityReader(SchedulingSettings(merge=rule), clock, asker=StandIn(m1=told))
    assert (await room.gather(binding(), [member()]))["m1"].replicas == replicas


async def test_one_dead_estimator_leaves_the_others_as_they_are(clock):
    asker = StandIn(
        m1=EstimatorReply(None, "unreachable", (), 50.0), m2=7, m3=EstimatorReply(None, "refused")
    )
    room = AvailabilityReader(SchedulingSettings(), clock, asker=asker)

    found = await room.gather(binding(), [member("m1", 5), member("m2", 5), member("m3", 6)])

    assert {name: each.replicas for name, each in found.items()} == {"m1": 5, "m2": 7, "m3": 6}
    assert found["m1"].parts[1].note == "unreachable"


async def test_a_lost_estimators_last_answer_stands_for_the_hold_down(clock):
    asker = StandIn(m1=50)
    room = AvailabilityReader(SchedulingSettings(), clock, asker=asker, hold_down_seconds=60)
    await room.gather(binding(), [member()])
    asker.answers["m1"] = EstimatorReply(None, "unreachable", (), 100.0)
    clock.at = 130.0

    found = await room.gather(binding(), [member()])
    assert found["m1"].replicas == 50
    assert "its answer of 30 s ago is used" in found["m1"].parts[1].note
    assert room.held() == {"m1"}
    # Not for another question, and not for longer.
    assert (await room.gather(binding(cpu="2"), [member()]))["m1"].replicas == 5
    clock.at = 160.0
    assert (await room.gather(binding(), [member()]))["m1"].replicas == 10
    assert room.held() == frozenset()


async def test_it_does_not_stand_when_more_was_promised_since(clock, ledger):
    asker = StandIn(m1=50)
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker)
    await room.gather(binding(), [member()])
    asker.answers["m1"] = EstimatorReply(None, "unreachable", (), 100.0)
    place(ledger, m1=3)
    clock.at = 102.0

    assert (await room.gather(binding(), [member()]))["m1"].replicas == 7


async def test_an_answer_of_a_moment_ago_is_kept_less_what_was_promised_since(clock, ledger):
    asker = StandIn(m1=50)
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker)

    async def available(cpu="1", **how):
        found = (await room.gather(binding(cpu=cpu), [member()], **how))["m1"]
        return found.replicas, found.parts[1].is_kept

    assert await available() == (50, False)
    place(ledger, m1=3)
    place(ledger, "third", m1=4)
    assert await available() == (43, True)
    assert await available() == (43, True)
    assert len(asker.asked) == 1
    # It is asked when somebody insists, after a moment, and for another question.
    assert await available(fresh=True) == (43, False)
    assert (await available(cpu="2"))[1] is False
    clock.at += 2
    assert await available() == (43, False)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda ledger: place(ledger, "other", cpu="2", m1=1), id="another size was promised"),
        pytest.param(lambda ledger: place(ledger, "web", cpu="3", m1=4), id="what was promised has changed"),
        pytest.param(
            lambda ledger: [place(ledger, f"w{each}", m1=1) for each in range(100)],
            id="more was promised than is remembered",
        ),
        pytest.param(
            lambda ledger: ledger.undo(ledger.promise(binding("web"), (), 100.0), 100.0),
            id="something was taken back, and that was undone",
        ),
    ],
)
async def test_an_answer_is_not_kept_when_its_worth_is_not_known(clock, ledger, change):
    place(ledger, "web", m1=2)
    asker = StandIn(m1=200)
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker)
    await room.gather(binding(), [member()])
    change(ledger)

    assert not (await room.gather(binding(), [member()]))["m1"].parts[1].is_kept


async def test_component_sets_are_counted_as_sets(clock, ledger):
    settings = SchedulingSettings(multiple_pod_templates=True)
    constraint = [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]
    job = flink(placement=read_placement({"spreadConstraints": constraint}))
    place(ledger, m1=3)
    asker = StandIn(m1=EstimatorReply(1, "", (ArrivedReplicas((0,)),)))

    found = await AvailabilityReader(settings, clock, ledger=ledger, asker=asker).gather(job, [member()])

    assert [part.value for part in found["m1"].parts] == [1, 1]  # of 10 cores 7 are left, a set takes 4
    assert [component.name for component in asker.asked[0].components] == ["manager", "worker"]


async def test_a_server_that_verifies_is_told_all_and_another_what_is_in_flight(clock, ledger):
    place(ledger, m1=5)
    asker = StandIn(m1=EstimatorReply(1, "", (ArrivedReplicas((2,), 1),)))
    freed = []
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker, on_freed=freed.append)

    await room.gather(binding(), [member()])
    assert in_flight(ledger) == {"other": 3}
    assert freed == [{"m1"}]
    assert room.protection("m1") is PromiseHandling.VERIFIES
    await room.gather(binding(), [member()], fresh=True)
    asker.answers["m1"] = EstimatorReply(0)
    await room.gather(binding(), [member()], fresh=True)
    assert room.protection("m1") is None
    await room.gather(binding(), [member()], fresh=True)

    told = [each.assumed[0].components[0].replicas for each in asker.asked]
    assert told == [5, 5, 5, 3]


async def test_from_a_server_that_ignores_promises_they_are_taken_off_here(clock, ledger):
    place(ledger, m1=3)
    place(ledger, "large", cpu="2500m", m1=2)
    asker = StandIn(m1=20)
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker)

    found = await room.gather(binding(), [member()])

    # Three of one core, and two that displace at most three each.
    assert found["m1"].parts[1].value == 11
    assert found["m1"].parts[1].note == "20 less 5 promised, which it ignores"
    assert room.protection("m1") is PromiseHandling.IGNORES
    assert [each.assumed[0].components[0].replicas for each in asker.asked] == [2, 1_000_000]
    # It is found out once, and again after a while: the server may have been replaced.
    await room.gather(binding(), [member()], fresh=True)
    assert len(asker.asked) == 3
    clock.at += 600.0
    assert room.protection("m1") is None


async def test_a_go_server_with_protection_takes_them_off_itself(clock, ledger):
    class Protected(StandIn):
        async def ask(self, cluster, asked, promises=(), about=""):
            await super().ask(cluster, asked, promises, about)
            taken = sum(part.replicas for each in self.asked[-1].assumed for part in each.components)
            return EstimatorReply(max(0, 20 - taken))

    place(ledger, m1=3)
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=Protected(m1=0))

    assert (await room.gather(binding(), [member()]))["m1"].replicas == 17
    assert room.protection("m1") is PromiseHandling.DEDUCTS


nodes = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5)
asks = st.tuples(st.integers(1, 4), st.integers(0, 4))


@pytest.mark.long
@given(nodes, asks, st.lists(asks, max_size=4))
def test_no_placement_of_promises_displaces_more_than_is_taken_off(given_nodes, wanted, promised):
    """Against placing them, on any nodes that have room."""
    cluster = snapshot_of(
        [
            NodeRow(f"n{index}", allocatable={"cpu": cpu * 1000, "memory": memory, "pods": 20})
            for index, (cpu, memory) in enumerate(given_nodes)
        ]
    )
    own = needs(wanted)
    groups = [[Group(needs(each).shape, 1)] for each in promised]
    held = [
        (
            Promise(
                binding().key, "m1", WorkloadTemplate(), WorkloadRequirements(("",), (needs(each),)), (1,)
            ),
            (1,),
        )
        for each in promised
    ]

    left = count(in_room(cluster).assume(groups).room, own.shape).total

    assert left >= count(cluster, own.shape).total - displaced(held, [own.shape])


def needs(amounts):
    cpu, memory = amounts
    return requirements({"cpu": str(cpu), "memory": str(memory)})


async def test_a_server_cannot_free_what_it_does_not_know(clock, ledger):
    place(ledger, m1=5)
    asker = StandIn(m1=EstimatorReply(1, "", (ArrivedReplicas((9, 9)), ArrivedReplicas((5,)))))

    await AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker).gather(
        binding(), [member()]
    )

    assert in_flight(ledger) == {"other": 5}


async def test_without_a_ledger_nothing_is_promised(clock):
    asker = StandIn(m1=3)
    room = AvailabilityReader(SchedulingSettings(), clock, asker=asker)
    await room.gather(binding(), [member()])
    assert asker.asked[0].assumed == ()
    assert await room.verify(member) == set()


async def test_verifying_asks_only_where_something_is_promised(clock, ledger):
    place(ledger, m2=2)
    asker = StandIn(m1=0, m2=EstimatorReply(-1, "", (ArrivedReplicas((1,), 0),)))
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=asker)

    assert await room.verify(member) == {"m2"}
    assert [each.cluster for each in asker.asked] == ["m2"]
    assert in_flight(ledger, "m2") == {"other": 1}


async def test_a_real_estimator_deducts_what_is_promised_and_says_what_arrived(ledger):
    world, clock = World(), StillClock()
    await world.add(node("a"), node("b"))
    place(ledger, m1=3)
    gate = {"feature_gates": "SchedulingOvercommitProtection=true", "cluster_name": "m1"}
    async with estimator_serving({"m1": world.transport}, **gate) as estimator:

        async def resolver(cluster):
            return [f"127.0.0.1:{estimator.port}"]

        async with asking({}, resolver=resolver) as clients:
            room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=clients)
            # 8 cores, 3 promised.
            assert (await room.gather(binding(), [member(cpu=0)]))["m1"].replicas == 5
            owner = await world.workload(DEPLOYMENTS, "other")
            by = await world.workload(REPLICASETS, "other-1", owner)
            for number in range(2):
                await world.add(pod(f"other-{number}", node="a", metadata={"ownerReferences": [by]}))
            snapshot = estimator.members["m1"].cluster.room.snapshot
            await eventually(lambda: len(snapshot().bound.node) == 2)
            # 6 cores, 1 promised: the same, at every instant.
            assert (await room.gather(binding(), [member(cpu=0)], fresh=True))["m1"].replicas == 5
            assert in_flight(ledger) == {"other": 1}
            assert room.protection("m1") is PromiseHandling.VERIFIES


def test_metrics_know_every_reason_from_the_start(clock, ledger):
    registry = CollectorRegistry()
    metrics = PromiseMetrics(registry)
    watched = PromiseLedger(PromiseLifetime(300), on_release=metrics.released)
    metrics.follow(watched, lambda: 160.0)
    follow_estimators(registry, lambda: {"m1": 3.0})
    assert (
        'karpool_scheduler_promises_released_total{reason="expired"} 0.0'
        in generate_latest(registry).decode()
    )

    place(watched, m1=3, m2=1)
    text = generate_latest(registry).decode()
    assert 'karpool_scheduler_promised_replicas{cluster="m1"} 3.0' in text
    assert 'karpool_scheduler_promises{cluster="m2"} 1.0' in text
    assert "karpool_scheduler_oldest_promise_seconds 60.0" in text
    assert "karpool_scheduler_unreachable_estimators 1.0" in text

    watched.expire(400.0)
    text = generate_latest(registry).decode()
    assert 'karpool_scheduler_promises_released_total{reason="expired"} 4.0' in text
    assert 'karpool_scheduler_promised_replicas{cluster="m1"}' not in text
