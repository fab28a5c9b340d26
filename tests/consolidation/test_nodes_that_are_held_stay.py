"""Nodes that look empty and are not, or whose pods cannot be read, are no candidates, and say why."""

from karpool.cluster import kinds
from karpool.cluster.changes import ObjectChange
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import INSTANCE_TYPE
from tests.consolidation.built import NOW, BuiltCluster, catalogue, usual_types


def two_nodes():
    cluster = BuiltCluster()
    cluster.pool()
    cluster.node("empty")
    cluster.node("busy")
    cluster.pod("web", "busy", cpu=3500)
    return cluster


def reasons(cluster):
    plan = plan_consolidation(cluster.view(), now=NOW)
    return [move.names for move in plan.moves], {held.node: held.why[0].reason for held in plan.held}


def unreadable(cluster, raw):
    change = ObjectChange("UNREADABLE", ObjectKey("team", "odd"), None, raw=raw, reason="is odd")
    cluster.cluster.apply(kinds.PODS, [change], NOW)


def test_an_empty_node_goes():
    assert reasons(two_nodes())[0] == [("empty",)]


def test_one_that_a_scale_up_waits_for_stays():
    cluster = two_nodes()
    cluster.tell(
        kinds.SCALE_UPS, "team", "s", {"metadata": {"name": "s"}, "status": {"units": [{"node": "empty"}]}}
    )
    moves, held = reasons(cluster)
    assert not moves
    assert held["empty"] == "reserved"


def test_one_with_a_pod_that_cannot_be_read_stays_and_receives_nothing():
    cluster = two_nodes()
    unreadable(cluster, b'{"spec": {"nodeName": "empty"}, "status": "none"}')
    moves, held = reasons(cluster)
    assert not moves
    assert held["empty"] == "pod_unreadable"


def test_nothing_moves_while_the_node_of_a_pod_cannot_be_told():
    cluster = two_nodes()
    unreadable(cluster, b'{"spec": "none"}')
    assert not reasons(cluster)[0]
    cluster.gone(kinds.PODS, "team", "odd")
    assert reasons(cluster)[0] == [("empty",)]


def test_nodes_of_a_pool_for_which_no_type_is_known_stay():
    """As upstream, which passes over such a pool: an empty node of it is not taken away either."""
    cluster = BuiltCluster(catalogue())
    cluster.types = usual_types()
    cluster.pool()
    cluster.node("empty", labels={INSTANCE_TYPE: None})
    moves, held = reasons(cluster)
    assert not moves
    assert held["empty"] == "nodepool_not_found"
