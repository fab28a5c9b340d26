import pytest

from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import UNSCHEDULABLE, Taint, Toleration
from karpool.packing.fit_reasons import FitReason, explain_nodes, show_count
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, snapshot_of

GIB = 1024**3
GPU = Taint(key="gpu", value="true", effect="NoSchedule")
ROOM = {"cpu": 4000, "memory": 8 * GIB, "pods": 10}


def nodes(*rows):
    return snapshot_of([NodeRow(f"n{number}", *row) for number, row in enumerate(rows)])


def texts(snapshot, shape, **options):
    return [show_count(refusal) for refusal in explain_nodes(snapshot, shape, **options)]


def wanting(operator_set, key=ZONE):
    return PodShape(node_terms=(NodeTerm(((key, operator_set),)),))


IN_A_B = ValueSet(frozenset("ab"))


@pytest.mark.parametrize(
    ("row", "shape", "text"),
    [
        pytest.param(({}, (GPU,), ROOM), PodShape(), "untolerated taint gpu=true:NoSchedule", id="taint"),
        pytest.param(({}, (UNSCHEDULABLE,), ROOM), PodShape(), "cordoned", id="cordoned"),
        pytest.param(
            ({}, (), ROOM),
            PodShape((("cpu", 5000),)),
            "insufficient cpu (largest free 4, asked 5)",
            id="cpu",
        ),
        pytest.param(
            ({}, (), ROOM),
            PodShape((("nvidia.com/gpu", 1),)),
            "insufficient nvidia.com/gpu (largest free 0, asked 1)",
            id="resource that nobody has",
        ),
        pytest.param(({}, (), {"cpu": 1}), PodShape(), "no free pod slot", id="slots"),
        pytest.param(
            ({ZONE: "c"}, (), ROOM),
            wanting(IN_A_B),
            f"no node has label {ZONE} in (a, b)",
            id="label nobody has",
        ),
        pytest.param(
            ({ZONE: "a"}, (), ROOM),
            wanting(ValueSet(frozenset("a"), complement=True)),
            f"no node has label {ZONE} outside (a)",
            id="NotIn",
        ),
        pytest.param(
            ({}, (), ROOM), wanting(ValueSet(complement=True)), f"no node has label {ZONE}", id="Exists"
        ),
        pytest.param(
            ({ZONE: "a"}, (), ROOM),
            wanting(ValueSet()),
            f"no node is without label {ZONE}",
            id="DoesNotExist",
        ),
        pytest.param(
            ({"size": "2"}, (), ROOM),
            wanting(ValueSet(complement=True, at_least=3), "size"),
            "no node has label size >= 3",
            id="Gt",
        ),
        pytest.param(
            ({}, (), ROOM), PodShape(node_terms=()), "the node affinity has no usable term", id="no term"
        ),
        pytest.param(
            ({}, (), ROOM),
            PodShape(node_terms=(NodeTerm(fields=(("metadata.name", ValueSet(frozenset(("other",)))),)),)),
            "metadata.name is not in (other)",
            id="name",
        ),
        pytest.param(
            ({}, (), ROOM), PodShape(volume_terms=((),)), "a volume claim of the pod is not ready", id="claim"
        ),
    ],
)
def test_reason(row, shape, text):
    assert texts(nodes(row), shape) == [f"1 node: {text}"]


def test_nodes_are_counted_per_cause():
    snapshot = nodes(*[({}, (GPU,), ROOM)] * 3, *[({}, (), {**ROOM, "cpu": 1500})] * 2, ({}, (), ROOM))

    assert texts(snapshot, PodShape((("cpu", 4000),))) == [
        "3 nodes: untolerated taint gpu=true:NoSchedule",
        "2 nodes: insufficient cpu (largest free 1500m, asked 4)",
    ]


def test_a_label_that_some_nodes_have_is_not_said_to_be_nowhere():
    snapshot = nodes(({ZONE: "a"}, (), ROOM), ({ZONE: "c"}, (), ROOM))

    assert texts(snapshot, wanting(IN_A_B)) == [f"1 node: label {ZONE} is not in (a, b)"]


def test_the_first_check_counts_unless_all_are_asked_for():
    snapshot = nodes(({}, (GPU,), {**ROOM, "cpu": 1}))
    shape = PodShape((("cpu", 2),))

    assert [refusal.reason for refusal in explain_nodes(snapshot, shape)] == ["TaintToleration"]
    assert [refusal.reason for refusal in explain_nodes(snapshot, shape, all_causes=True)] == [
        "TaintToleration",
        "NodeResourcesFit",
    ]


def test_room_that_pods_hold_could_be_had_and_room_that_is_not_there_could_not():
    full = nodes(({}, (), ROOM)).minus([PodPlacement(0, PodShape((("cpu", 4000),)))])

    (held,) = explain_nodes(full, PodShape((("cpu", 1000),)))
    (missing,) = explain_nodes(full, PodShape((("cpu", 9000),)))

    assert held.resolvable
    assert not missing.resolvable


def test_a_taken_host_port_is_named():
    web = PodShape(host_ports=frozenset((("0.0.0.0", "TCP", 80),)))
    snapshot = nodes(({}, (), ROOM)).minus([PodPlacement(0, web)])

    assert explain_nodes(snapshot, web) == [
        Infeasible(FitReason.NODE_PORTS, "host port 80/TCP is taken", count=1, resolvable=True)
    ]


def test_a_node_that_takes_the_pod_has_no_reason():
    tolerant = PodShape((("cpu", 4000),), tolerations=(Toleration(key="gpu", operator="Exists"),))

    assert explain_nodes(nodes(({}, (GPU,), ROOM)), tolerant) == []
