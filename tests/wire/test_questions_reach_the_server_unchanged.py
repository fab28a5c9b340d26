"""What a scheduler asks is what the server reads, whatever generation the server is of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, requirements
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.model.taints import Toleration
from karpool.wire import client_protocol, server_protocol
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ArrivedReplicas, AssumedOwner, AssumedWorkload, WorkloadReference
from karpool.wire.server_protocol import MalformedMessage

names = st.text("abcdefghij-", min_size=1, max_size=12)
quantities = st.sampled_from(["0", "100m", "1", "2.5", "1Gi", "500M", "1e3"])
tolerations = st.builds(
    lambda key, operator, seconds: Toleration(key=key, operator=operator, toleration_seconds=seconds),
    names,
    st.sampled_from(["Exists", "Equal", ""]),
    st.none() | st.integers(-(2**63), 2**63 - 1),
)
conditions = st.builds(
    lambda key, values: SelectorRequirement(key=key, operator="In", values=values),
    names,
    st.lists(names, min_size=1, max_size=3),
)
terms = st.builds(
    lambda found: NodeSelectorTerm(match_expressions=found, match_fields=[]),
    st.lists(conditions, min_size=1, max_size=3),
)
claims = st.builds(
    lambda selector, affinity, tolerated: ReplicaNodeClaim(selector, affinity, tuple(tolerated)),
    st.dictionaries(names, names, max_size=3),
    st.none() | st.builds(lambda found: NodeSelector(node_selector_terms=found), st.lists(terms, max_size=2)),
    st.lists(tolerations, max_size=2),
)
resources = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), quantities)
wanted = st.builds(requirements, resources, st.none() | claims, names, names)
# Components have no namespace of their own.
parts = st.builds(requirements, resources, st.none() | claims, st.just(""), names)
components = st.builds(Component, names, st.integers(0, 2**31 - 1), st.none() | parts)
workloads = st.builds(
    AssumedOwner, names, names, names, st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
)
assumed = st.builds(
    AssumedWorkload, names, st.lists(components, max_size=3).map(tuple), st.none() | workloads
)
promises = st.lists(assumed, max_size=3)


@settings(max_examples=60)
@given(names, st.none() | wanted, promises)
def test_replicas(cluster, needs, given_promises):
    data = client_protocol.ask_replicas(needs).to(
        cluster, map(client_protocol.encode_assumed, given_promises)
    )

    read = server_protocol.read_replicas(data)

    assert (read.cluster, read.requirements, list(read.assumed)) == (cluster, needs, given_promises)


@settings(max_examples=60)
@given(names, st.lists(components, max_size=3), names, promises)
def test_component_sets(cluster, set_of, namespace, given_promises):
    data = client_protocol.ask_component_sets(set_of, namespace).to(
        cluster, map(client_protocol.encode_assumed, given_promises)
    )

    read = server_protocol.read_component_sets(data)

    assert (read.cluster, list(read.components), read.namespace) == (cluster, set_of, namespace)
    assert list(read.assumed) == given_promises


def test_old_servers_find_the_typed_fields():
    tolerated = (Toleration(key="gpu", operator="Exists"),)
    affinity = NodeSelector(
        node_selector_terms=[
            NodeSelectorTerm(match_expressions=[SelectorRequirement(key="zone", operator="In", values=["a"])])
        ]
    )
    needs = requirements({"cpu": "500m"}, ReplicaNodeClaim({"disk": "ssd"}, affinity, tolerated), "team")
    message = pb.MaxAvailableReplicasRequest.FromString(client_protocol.ask_replicas(needs).to("m1"))

    found = message.replica_requirements
    assert found.resource_request["cpu"].string == "500m"
    assert found.resource_request_bytes["cpu"] == bytes.fromhex("0a04") + b"500m"
    assert found.node_claim.node_affinity.SerializeToString() == found.node_claim.node_affinity_bytes
    assert found.node_claim.tolerations[0].SerializeToString() == found.node_claim.tolerations_bytes[0]


def test_unschedulable():
    reference = WorkloadReference("apps/v1", "Deployment", "default", "web")
    read = server_protocol.read_unschedulable(client_protocol.write_unschedulable("m1", reference, 5 * 10**9))

    assert (read.cluster, read.resource, read.threshold_ns) == ("m1", reference, 5 * 10**9)
    assert client_protocol.read_unschedulable(server_protocol.write_unschedulable(7)) == 7


@given(
    st.integers(-(2**40), 2**40),
    st.lists(
        st.builds(ArrivedReplicas, st.lists(st.integers(0, 9)).map(tuple), st.integers(0, 9)), max_size=3
    ),
)
def test_answers_come_back(value, arrived):
    for asked, write in (
        (client_protocol.ask_replicas(None), server_protocol.write_replicas),
        (client_protocol.ask_component_sets(()), server_protocol.write_component_sets),
    ):
        answer = asked.read(write(value, arrived))
        assert answer.value == max(-(2**31), min(2**31 - 1, value))
        assert list(answer.arrived) == arrived


@given(st.binary(max_size=40))
def test_any_bytes_are_an_answer_or_malformed(data):
    try:
        answer = client_protocol.ask_replicas(None).read(data)
    except MalformedMessage:
        return
    assert -(2**31) <= answer.value < 2**31


def test_the_bytes_of_a_whole_request_are_those_of_the_message():
    message = pb.MaxAvailableReplicasRequest(cluster="m" * 300, wants_parts=True)
    assert client_protocol.ask_replicas(None).to("m" * 300) == message.SerializeToString()
    with pytest.raises(MalformedMessage):
        client_protocol.read_unschedulable(b"\xff")
