"""Nodes that look empty and are not, or whose pods cannot be read, are no candidates, and say why."""

import pytest

from karpool.cluster import kinds
from karpool.cluster.changes import ObjectChange
from karpool.consolidation.execution.validation import validate_all
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import PlanSettings
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


class TestCapacityBuffers:
    """One pod of 1 CPU is kept room for; `busy` has half a CPU left."""

    def with_buffer(self, kind=kinds.CAPACITY_BUFFERS, **spec):
        cluster = two_nodes()
        container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
        template = {"metadata": {"name": "t"}, "template": {"spec": {"containers": [container]}}}
        cluster.tell(kinds.POD_TEMPLATES, "team", "t", template)
        raw = {"metadata": {"name": "b"}, "spec": {"podTemplateRef": {"name": "t"}, "replicas": 1, **spec}}
        cluster.tell(kind, "team", "b", raw)
        return cluster

    def test_a_node_that_carries_a_virtual_pod_stays_until_the_buffer_goes(self):
        for kind in (kinds.CAPACITY_BUFFERS, kinds.CAPACITY_BUFFERS_BETA):
            cluster = self.with_buffer(kind)
            moves, held = reasons(cluster)
            assert not moves
            assert held["empty"] == "buffer_pods"
            cluster.gone(kind, "team", "b")
            assert reasons(cluster)[0] == [("empty",)]

    def test_served_in_both_versions_it_is_one_buffer(self):
        cluster = self.with_buffer(kinds.CAPACITY_BUFFERS)
        raw = {"metadata": {"name": "b"}, "spec": {"podTemplateRef": {"name": "t"}, "replicas": 1}}
        cluster.tell(kinds.CAPACITY_BUFFERS_BETA, "team", "b", raw)
        assert len(cluster.cluster.snapshot().buffers.shapes) == 1
        cluster.gone(kinds.CAPACITY_BUFFERS, "team", "b")
        assert reasons(cluster)[1]["empty"] == "buffer_pods"

    def test_with_room_on_a_node_that_stays_the_empty_one_goes(self):
        cluster = self.with_buffer()
        cluster.pod("web", "busy", cpu=500)
        assert reasons(cluster)[0] == [("empty",)]

    def test_pods_of_a_move_do_not_take_the_room_of_a_buffer(self):
        """Together they fill one node to the last: there is room for one of both."""
        for replicas, kinds_of_moves in ((0, ["delete"]), (1, [])):
            cluster = self.with_buffer(replicas=replicas)
            cluster.pod("web", "busy", cpu=2500)
            cluster.pod("guest", "empty", cpu=1500)
            plan = plan_consolidation(cluster.view(), PlanSettings(replace=False), NOW)
            assert [move.kind for move in plan.moves] == kinds_of_moves

    def test_other_strategies_keep_no_room(self):
        assert reasons(self.with_buffer(provisioningStrategy="example.com/standby"))[0] == [("empty",)]

    def test_what_a_buffer_without_its_template_needs_cannot_be_told(self):
        cluster = self.with_buffer(podTemplateRef={"name": "gone"})
        assert reasons(cluster)[1]["empty"] == "buffer_unreadable"
        said = "spec.podTemplateRef.name: 'gone': PodTemplate team/gone does not exist; create it"
        assert said in " ".join(map(str, cluster.cluster.snapshot().problems))

    def test_unless_its_controller_has_said_that_it_keeps_no_room(self):
        refused = [{"type": "ReadyForProvisioning", "status": "False", "reason": "PodTemplateNotFound"}]
        cluster = self.with_buffer()
        spec = {"podTemplateRef": {"name": "gone"}, "replicas": 1}
        raw = {"metadata": {"name": "b"}, "spec": spec, "status": {"conditions": refused}}
        cluster.tell(kinds.CAPACITY_BUFFERS, "team", "b", raw)
        assert reasons(cluster)[0] == [("empty",)]
        assert "its controller reserves nothing for it" in " ".join(cluster.cluster.snapshot().problems)

    @pytest.mark.parametrize(
        "spec",
        [
            {"replicas": -1},
            {"scalableRef": {"kind": "Deployment", "name": "w"}},
            {"replicas": 10**6},
            {"podTemplateRef": None, "scalableRef": {"kind": "Rollout", "name": "w"}},
        ],
    )
    def test_where_a_buffer_that_cannot_be_understood_may_keep_room_nothing_goes(self, spec):
        """Pods of its namespace run in the default pool; the other pool is none of its business."""
        cluster = self.with_buffer(**spec)
        cluster.pool("other")
        cluster.node("spare", pool="other")
        moves, held = reasons(cluster)
        assert moves == [("spare",)]
        assert held["empty"] == "buffer_unreadable"
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert plan.stopped is None
        assert "CapacityBuffer team/b" in " ".join(plan.problems)

    def test_without_pods_of_its_namespace_it_may_keep_room_anywhere(self):
        cluster = self.with_buffer()
        raw = {"metadata": {"name": "b"}, "spec": {"replicas": -1}}
        cluster.tell(kinds.CAPACITY_BUFFERS, "elsewhere", "b", raw)
        moves, held = reasons(cluster)
        assert not moves
        assert held["empty"] == "buffer_unreadable"

    def test_a_replica_set_is_read_like_any_workload(self):
        cluster = self.with_buffer(podTemplateRef=None, scalableRef={"kind": "ReplicaSet", "name": "w"})
        container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
        raw = {"metadata": {"name": "w"}, "spec": {"template": {"spec": {"containers": [container]}}}}
        cluster.tell(kinds.REPLICA_SETS, "team", "w", raw)
        assert reasons(cluster)[1]["empty"] == "buffer_pods"

    def test_what_its_controller_worked_out_counts_where_the_workload_is_not_read(self):
        cluster = self.with_buffer()
        raw = {
            "metadata": {"name": "b"},
            "spec": {"scalableRef": {"kind": "Rollout", "name": "w"}, "percentage": 10},
            "status": {"podTemplateRef": {"name": "t"}, "replicas": 1},
        }
        cluster.tell(kinds.CAPACITY_BUFFERS, "team", "b", raw)
        assert reasons(cluster)[1]["empty"] == "buffer_pods"

    def test_a_move_is_refused_when_a_buffer_came_meanwhile(self):
        cluster = two_nodes()
        (move,) = plan_consolidation(cluster.view(), now=NOW).moves
        later = self.with_buffer()
        found = validate_all((move,), later.view(), now=NOW)[move.id]
        assert [why.reason for why in found] == ["buffer_pods"]
