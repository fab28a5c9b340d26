"""Hostile bytes: the right status, in bounded time, and the next caller is not affected."""

from contextlib import suppress
from random import Random

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.wire import server_protocol as wire
from karpool.wire.proto import estimator_pb2 as pb
from tests.estimator.serving import World, asks, node, serving

MALFORMED = 1000
READERS = (wire.read_replicas, wire.read_component_sets, wire.read_unschedulable)
REFUSALS = (wire.MalformedMessage, wire.MessageTooLarge, Invalid)
STATUSES = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def rich() -> bytes:
    """A request with every field."""
    quantity = pb.Quantity(string="500m")
    term = pb.NodeSelectorTerm(
        match_expressions=[pb.NodeSelectorRequirement(key="zone", operator="In", values=["a", "b"])],
        match_fields=[pb.NodeSelectorRequirement(key="metadata.name", operator="In", values=["n"])],
    )
    selector = pb.NodeSelector(node_selector_terms=[term])
    toleration = pb.Toleration(
        key="k", operator="Equal", value="v", effect="NoSchedule", toleration_seconds=5
    )
    claim = pb.NodeClaim(
        node_affinity=selector,
        node_selector={"a": "b"},
        tolerations=[toleration],
        node_affinity_bytes=selector.SerializeToString(),
        tolerations_bytes=[toleration.SerializeToString()],
    )
    amounts = {"cpu": quantity, "nvidia.com/gpu": pb.Quantity(string="1")}
    serialised = {name: each.SerializeToString() for name, each in amounts.items()}
    component = pb.Component(
        name="c",
        replicas=3,
        replica_requirements=pb.ComponentReplicaRequirements(
            node_claim=claim, resource_request=amounts, resource_request_bytes=serialised
        ),
    )
    return pb.MaxAvailableReplicasRequest(
        cluster="member1",
        replica_requirements=pb.ReplicaRequirements(
            node_claim=claim, resource_request=amounts, resource_request_bytes=serialised, namespace="n"
        ),
        assumed_workloads=[
            pb.AssumedWorkload(
                namespace="n", components=[component], workload=pb.WorkloadReference(kind="Job", name="j")
            )
        ],
    ).SerializeToString()


RICH = rich()


def mutated(random: Random) -> bytes:
    data = bytearray(RICH)
    for _ in range(random.randint(1, 8)):
        where = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                data[where] = random.randrange(256)
            case 1:
                del data[where : where + random.randint(1, 9)]
            case 2:
                data[where:where] = random.randbytes(random.randint(1, 9))
            case _:
                data[where:where] = data[where : where + random.randint(1, 40)]
        if not data:
            break
    return bytes(data)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.sampled_from(READERS))
def test_any_bytes_are_read_or_refused(data, read):
    with suppress(*REFUSALS):
        read(data)


@pytest.mark.long
@settings(max_examples=300)
@given(st.randoms(use_true_random=False), st.sampled_from(READERS))
def test_any_damage_is_read_or_refused(random, read):
    with suppress(*REFUSALS):
        read(mutated(random))


@pytest.mark.long
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            pb.MaxAvailableComponentSetsRequest(components=[pb.Component(replicas=1)] * 250_000),
            id="components",
        ),
        pytest.param(
            pb.MaxAvailableReplicasRequest(
                replica_requirements=pb.ReplicaRequirements(
                    node_claim=pb.NodeClaim(node_selector={f"k{n}": "" for n in range(20_001)})
                )
            ),
            id="selectors",
        ),
        pytest.param(
            pb.MaxAvailableReplicasRequest(
                replica_requirements=pb.ReplicaRequirements(
                    node_claim=pb.NodeClaim(tolerations=[pb.Toleration(key="k")] * 20_001)
                )
            ),
            id="tolerations",
        ),
        pytest.param(
            pb.MaxAvailableComponentSetsRequest(
                components=[
                    pb.Component(
                        replicas=1,
                        replica_requirements=pb.ComponentReplicaRequirements(
                            resource_request={"cpu": pb.Quantity(string=str(n))}
                        ),
                    )
                    for n in range(1, 4_100)
                ]
            ),
            id="shapes",
        ),
    ],
)
def test_more_work_than_an_honest_client_asks_for_is_refused(message):
    read = wire.read_replicas if "Replicas" in message.DESCRIPTOR.name else wire.read_component_sets

    with pytest.raises(wire.MessageTooLarge):
        read(message.SerializeToString())


@pytest.mark.long
async def test_a_thousand_malformed_requests_leave_the_server_as_it_was():
    world = World()
    await world.add(node("a"))
    random = Random(11)
    methods = ("MaxAvailableReplicas", "MaxAvailableComponentSets", "GetUnschedulableReplicas")
    seen = set()
    async with serving(world.transport, feature_gates="AllAlpha=true") as estimator:
        for number in range(MALFORMED):
            method = methods[number % 3]
            data = mutated(random) if number % 4 else random.randbytes(random.randint(1, 200))
            try:
                await estimator.raw(method, data)
            except grpc.RpcError as error:
                seen.add(error.code())
        assert await estimator.replicas(asks()) == 4

    assert seen <= STATUSES
    assert grpc.StatusCode.INTERNAL in seen
    assert grpc.StatusCode.UNKNOWN in seen
