"""Requests as the bytes that schedulers of each release send, and answers as the bytes they read."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.wire import server_protocol as wire
from karpool.wire.proto import estimator_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]

# A request for 500m CPU in namespace "web", on nodes with a=3 in zone us-west, tolerating one taint.
AFFINITY = "0a150a130a047a6f6e651202496e1a0775732d77657374"
TOLERATION = "0a046b6579311205457175616c1a0676616c756531220a4e6f5363686564756c65"
SELECTOR = "12060a0161120133"
CPU = "0a0363707512060a043530306d"


def field(number: int, inner: str) -> str:
    """A length-delimited field, in hex."""
    size = len(inner) // 2
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return (bytes((number << 3 | 2,)) + length).hex() + inner


TYPED_CLAIM = field(1, AFFINITY) + SELECTOR + field(3, TOLERATION)
BYTES_CLAIM = SELECTOR + field(4, AFFINITY) + field(5, TOLERATION)
BOTH_CLAIM = TYPED_CLAIM + field(4, AFFINITY) + field(5, TOLERATION)
NAMESPACE, NO_CLASS = field(3, "776562"), field(4, "")

GENERATIONS = {
    "1.17": field(1, TYPED_CLAIM) + field(2, CPU) + NAMESPACE + NO_CLASS,
    "1.18": field(1, BOTH_CLAIM) + field(2, CPU) + NAMESPACE + field(5, CPU),
    "1.19": field(1, BYTES_CLAIM) + NAMESPACE + field(5, CPU),
}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_asks_the_same(generation):
    data = bytes.fromhex(field(1, "66616b65") + field(2, GENERATIONS[generation]))

    request = wire.read_replicas(data)

    shape = request.shape
    assert request.cluster == "fake"
    assert request.requirements.namespace == "web"
    assert shape.requests == (("cpu", 500),)
    assert shape.node_selector == (("a", "3"),)
    assert [(toleration.key, toleration.value, toleration.effect) for toleration in shape.tolerations] == [
        ("key1", "value1", "NoSchedule")
    ]
    assert [dict(term.labels)["zone"].values for term in shape.node_terms] == [{"us-west"}]
    assert request == wire.read_replicas(bytes.fromhex(field(1, "66616b65") + field(2, GENERATIONS["1.19"])))


@pytest.mark.parametrize(
    ("number", "generation"), [pytest.param(2, "typed", id="1.17"), pytest.param(4, "bytes", id="1.19")]
)
def test_components_number_their_requests_differently(number, generation):
    component = field(1, "61") + field(2, field(3, "6869") + field(number, CPU)) + "1803"
    assumed = field(1, "6e73") + field(2, component)
    data = bytes.fromhex(field(1, "63") + field(2, component) + field(3, "6e73") + field(4, assumed))

    request = wire.read_component_sets(data)

    (part,) = request.components
    assert (part.name, part.replicas) == ("a", 3)
    assert part.requirements.shape == PodShape(requests=(("cpu", 500),))
    assert part.requirements.priority_class_name == "hi"
    assert [(each.namespace, each.components) for each in request.assumed] == [("ns", (part,))]


def test_assumed_workloads_are_field_three_of_a_replicas_request():
    component = field(1, "61") + "1802"
    data = bytes.fromhex(field(1, "63") + field(3, field(1, "6e73") + field(2, component)))

    (assumed,) = wire.read_replicas(data).assumed

    assert (assumed.namespace, assumed.components[0].replicas, assumed.workload) == ("ns", 2, None)


def test_a_workload_reference_is_ours_and_optional():
    message = pb.MaxAvailableReplicasRequest(
        assumed_workloads=[pb.AssumedWorkload(workload=pb.WorkloadReference(kind="Job", name="x"))]
    )
    data = message.SerializeToString()

    assert wire.read_replicas(data).assumed[0].workload.name == "x"
    assert bytes.fromhex("c23e") in data  # field 1000, which other peers skip


def test_absent_and_empty_requirements_differ():
    assert wire.read_replicas(bytes.fromhex("0a0163")).requirements is None
    assert wire.read_replicas(bytes.fromhex("0a01631200")).requirements is not None


def test_what_is_serialised_counts_where_it_differs_from_what_is_typed():
    """Newer schedulers fill in both for the sake of old servers; what they mean is in the bytes."""
    east = "0a150a130a047a6f6e651202496e1a0765752d65617374"
    other = "0a046b6579321205457175616c1a0676616c756531220a4e6f5363686564756c65"
    four = "0a0363707512030a0134"
    claim = TYPED_CLAIM + field(4, east) + field(5, other)
    shape = wire.read_replicas(
        bytes.fromhex(field(2, field(1, claim) + field(2, CPU) + field(5, four)))
    ).shape

    assert [dict(term.labels)["zone"].values for term in shape.node_terms] == [{"eu-east"}]
    assert [toleration.key for toleration in shape.tolerations] == ["key2"]
    assert shape.requests == (("cpu", 4000),)


def test_an_affinity_without_terms_matches_nothing_typed_and_everything_serialised():
    typed = wire.read_replicas(bytes.fromhex(field(2, field(1, field(1, "")))))
    serialised = wire.read_replicas(bytes.fromhex(field(2, field(1, field(4, "")))))

    assert typed.shape.node_terms == ()
    assert serialised.shape.node_terms is None


def test_of_two_entries_for_one_resource_the_last_counts():
    again = "0a0363707512030a0139"
    request = wire.read_replicas(bytes.fromhex(field(2, field(5, CPU) + field(5, again))))

    assert request.shape.requests == (("cpu", 9000),)


def test_unknown_fields_are_passed_over():
    request = wire.read_replicas(bytes.fromhex(field(1, "63") + "fa3f0568656c6c6f" + "f83f2a"))

    assert request.cluster == "c"


def test_an_empty_quantity_is_an_error_and_an_absent_one_is_zero():
    empty = field(2, field(5, field(1, "637075") + field(2, "0a00")))
    absent = field(2, field(5, field(1, "637075") + field(2, "")))

    with pytest.raises(Invalid, match=r"replicaRequirements\.resourceRequest\.cpu"):
        wire.read_replicas(bytes.fromhex(empty))
    assert wire.read_replicas(bytes.fromhex(absent)).shape.requests == ()


def test_a_typo_in_a_resource_that_no_node_counts_is_an_error_too():
    entry = field(1, b"storage".hex()) + field(2, "0a046f6f7073")
    with pytest.raises(Invalid, match="storage"):
        wire.read_replicas(bytes.fromhex(field(2, field(5, entry))))


def test_negative_replicas_are_refused():
    message = pb.MaxAvailableComponentSetsRequest(components=[pb.Component(name="a", replicas=-1)])

    with pytest.raises(Invalid, match=r"components\[0\].replicas"):
        wire.read_component_sets(message.SerializeToString())


@pytest.mark.parametrize(
    ("amount", "sent"), [(0, ""), (12, "080c"), (-1, "08ffffffffffffffffff01"), (2**31 - 1, "08ffffffff07")]
)
def test_answers_are_the_bytes_that_go_writes(amount, sent):
    assert wire.write_replicas(amount).hex() == sent
    assert wire.write_component_sets(amount).hex() == sent
    assert wire.write_unschedulable(amount).hex() == sent


@given(st.integers())
def test_answers_saturate(amount):
    read = pb.MaxAvailableReplicasResponse.FromString(wire.write_replicas(amount)).max_replicas

    assert read == max(-(2**31), min(2**31 - 1, amount))


def test_the_checked_in_modules_are_what_the_schema_gives(tmp_path):
    script = ROOT / "tools/build_wire_protocol.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*"))

    assert len(made) == 2 * len(list((ROOT / "src/karpool/wire/proto").glob("*.proto")))
    for path in made:
        assert (tmp_path / path).read_text() == (ROOT / "src" / path).read_text(), path


@pytest.mark.parametrize("sent_as", ["typed", "serialised"])
def test_negative_amounts_are_refused_with_their_path(sent_as):
    amount = pb.Quantity(string="-500m")
    needs = (
        {"resource_request": {"cpu": amount}}
        if sent_as == "typed"
        else {"resource_request_bytes": {"cpu": amount.SerializeToString()}}
    )
    replicas = pb.MaxAvailableReplicasRequest(replica_requirements=pb.ReplicaRequirements(**needs))
    with pytest.raises(Invalid, match=r"^replicaRequirements\.resourceRequest\.cpu: '-500m'"):
        wire.read_replicas(replicas.SerializeToString())
    one = pb.Component(replicas=1, replica_requirements=pb.ComponentReplicaRequirements(**needs))
    sets = pb.MaxAvailableComponentSetsRequest(components=[pb.Component(replicas=1), one])
    with pytest.raises(
        Invalid, match=r"^components\[1\]\.replicaRequirements\.resourceRequest\.cpu: '-500m'"
    ):
        wire.read_component_sets(sets.SerializeToString())
