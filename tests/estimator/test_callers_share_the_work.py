"""Whoever asks much, or large questions, keeps nobody waiting; what is too large is refused unread."""

import asyncio
import threading

import grpc
import pytest

from karpool.estimator.serving.fair_turns import FairTurns, TooManyQuestions, cost_of
from karpool.model.karmada.replica_requirements import ReplicaNodeClaim, requirements
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.wire import server_protocol
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ReplicasRequest
from karpool.wire.server_protocol import MessageTooLarge
from tests.estimator.serving import World, asks, node, serving


class Work:
    """Questions that say when they are served, and what had been done by then."""

    def __init__(self, turns):
        self.turns, self.done, self.order = turns, 0, []

    async def question(self, caller, units):
        async with self.turns.turn(caller) as meter:
            meter.charge(units)
            self.order.append(caller)
            self.done += units


async def test_an_honest_caller_waits_for_one_question_of_thirty_hostile_ones():
    work, names = Work(FairTurns()), [f"hostile-{number}" for number in range(30)]
    hostile = [asyncio.create_task(work.question(name, 1000)) for _ in range(10) for name in names]
    await asyncio.gather(*hostile[:35])
    for _ in range(20):
        before = work.done
        await work.question("honest", 1)
        assert work.done - before <= 1000 + 1
    await asyncio.gather(*hostile)


async def test_work_is_shared_by_cost_and_not_by_number():
    work = Work(FairTurns())
    tasks = [asyncio.create_task(work.question("large", 100)) for _ in range(20)]
    tasks += [asyncio.create_task(work.question("small", 10)) for _ in range(200)]
    await asyncio.gather(*tasks)
    first = work.order[:110]
    assert 8 <= first.count("large") <= 12


async def test_who_was_away_is_owed_nothing():
    work = Work(FairTurns())
    for _ in range(50):
        await work.question("busy", 100)
    tasks = [asyncio.create_task(work.question(name, 100)) for _ in range(10) for name in ("new", "busy")]
    await asyncio.gather(*tasks)
    assert 4 <= work.order[50:60].count("busy") <= 6


async def test_a_caller_that_goes_while_it_waits_leaves_the_line():
    turns = FairTurns()
    async with turns.turn("first"):
        waiting = asyncio.create_task(Work(turns).question("second", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5), turns.turn("third"):
        pass


async def test_one_caller_may_have_so_many_waiting():
    turns = FairTurns(waiting_max=2)
    async with turns.turn("first"):
        tasks = [asyncio.create_task(Work(turns).question("second", 1)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyQuestions):
            await Work(turns).question("second", 1)
        other = asyncio.create_task(Work(turns).question("third", 1))
    await asyncio.gather(*tasks, other)


def selector(terms, values):
    condition = pb.NodeSelectorRequirement(key="a", operator="In", values=map(str, range(values)))
    return pb.NodeSelector(
        node_selector_terms=[pb.NodeSelectorTerm(match_expressions=[condition]) for _ in range(terms)]
    )


def large(terms=9_990, values=18):
    needs = pb.ReplicaRequirements(
        node_claim=pb.NodeClaim(node_affinity_bytes=selector(terms, values).SerializeToString())
    )
    return pb.MaxAvailableReplicasRequest(cluster="member1", replica_requirements=needs)


@pytest.mark.parametrize("sizes", [(9_990, 18), (1_000, 1), (400, 100)])
def test_a_template_that_costs_too_much_is_refused_before_it_is_read(sizes, monkeypatch):
    read = []
    monkeypatch.setattr(
        server_protocol.RequestReader, "_condition", lambda reader, message: read.append(message)
    )
    with pytest.raises(MessageTooLarge, match=r"^replicaRequirements\.nodeClaim\.nodeAffinity: more than"):
        server_protocol.read_replicas(large(*sizes).SerializeToString())
    assert not read


def test_what_people_write_is_read():
    assert server_protocol.read_replicas(large(100, 20).SerializeToString()).requirements is not None


def test_a_question_costs_its_conditions_at_every_node():
    term = NodeSelectorTerm(match_expressions=[])
    plain = ReplicasRequest("m", requirements({"cpu": "1"}))
    claim = ReplicaNodeClaim({"a": "b"}, NodeSelector(node_selector_terms=[term] * 5))
    picky = ReplicasRequest("m", requirements({"cpu": "1"}, claim))
    assert cost_of(plain, 1000) == 2 * 1000
    assert cost_of(picky, 1000) > cost_of(plain, 1000)
    assert cost_of(picky, 2000) == 2 * cost_of(picky, 1000)


async def test_the_status_names_the_field_and_others_are_answered():
    world = World()
    await world.add(node("a"))
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await estimator.replicas(large())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "replicaRequirements.nodeClaim.nodeAffinity" in refused.value.details()
        assert await estimator.replicas(asks()) == 4


async def test_a_small_question_does_not_wait_until_a_large_one_is_read(monkeypatch):
    world, may_go_on, begun = World(), threading.Event(), threading.Event()
    await world.add(node("a"))
    reads = server_protocol.read_replicas

    def slowly(data):
        if len(data) > 4096:
            begun.set()
            assert may_go_on.wait(60)
        return reads(data)

    monkeypatch.setattr(server_protocol, "read_replicas", slowly)
    async with serving(world.transport) as estimator:
        waiting = asyncio.create_task(estimator.replicas(large(100, 20)))
        assert await asyncio.to_thread(begun.wait, 60)
        assert await estimator.replicas(asks()) == 4
        assert not waiting.done()
        may_go_on.set()
        assert await waiting == 0
