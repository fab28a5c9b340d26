"""Whatever order events come in, the state is that of a fresh one told only the outcome."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.nodes import node_store
from karpool.cluster.pods import pod_store
from karpool.model.kubernetes.node import zone_key
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.node_table import NodeRow
from tests.cluster.views import described, ordered, pending
from tests.packing.cases import allocatables, label_keys, label_values, names, shapes, taints

pod_keys = st.sampled_from([f"default/p{number}" for number in range(8)])
labels = st.dictionaries(label_keys, label_values, max_size=3)


class ZoneTree:
    """kube-scheduler's node tree: zones in order of appearance, nodes in order of arrival."""

    def __init__(self):
        self.zones = {}
        self.zone_of = {}

    def put(self, name, labels):
        zone = zone_key(labels)
        if self.zone_of.get(name) == zone:
            return
        self.remove(name)
        self.zones.setdefault(zone, []).append(name)
        self.zone_of[name] = zone

    def remove(self, name):
        zone = self.zone_of.pop(name, None)
        if zone is not None:
            self.zones[zone].remove(name)
            if not self.zones[zone]:
                del self.zones[zone]

    def listed(self):
        turns = max(map(len, self.zones.values()), default=0)
        return [zone[turn] for turn in range(turns) for zone in self.zones.values() if turn < len(zone)]


class Events(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        # Small limits, so that dropping what is unused happens here, too.
        self.slack = node_store._SLACK, pod_store._SLACK
        node_store._SLACK = pod_store._SLACK = 0
        self.state = ClusterRoom()
        self.tree = ZoneTree()
        self.nodes = {}
        self.pods = {}
        self.namespaces = {}
        self.taken = []

    def teardown(self):
        self.equals_a_rebuilt_state()
        self.snapshots_never_change()
        node_store._SLACK, pod_store._SLACK = self.slack

    @rule(name=st.sampled_from(names), labels=labels, taint=st.lists(taints, max_size=1), room=allocatables())
    def put_node(self, name, labels, taint, room):
        self.nodes[name] = NodeRow(name, labels, tuple(taint), room)
        self.tree.put(name, labels)
        self.state.put_node(self.nodes[name])

    @rule(name=st.sampled_from(names))
    def remove_node(self, name):
        self.nodes.pop(name, None)
        self.tree.remove(name)
        self.state.remove_node(name)

    @rule(key=pod_keys, shape=shapes, node=st.sampled_from(["", *names]))
    def put_pod(self, key, shape, node):
        self.pods[key] = (shape, node)
        self.state.put_pod(key, shape, node)

    @rule(key=pod_keys)
    def remove_pod(self, key):
        self.pods.pop(key, None)
        self.state.remove_pod(*key.split("/"))

    @rule(name=st.sampled_from(["default", "other"]), team=label_values)
    def put_namespace(self, name, team):
        self.namespaces[name] = {"team": team}
        self.state.upsert_namespace(name, {"team": team})

    @rule()
    def take_snapshot(self):
        snapshot = self.state.snapshot()
        self.taken.append((snapshot, described(snapshot), ordered(snapshot), pending(snapshot)))
        self.taken = self.taken[-3:]

    @precondition(lambda self: self.taken)
    @rule()
    def snapshots_never_change(self):
        for snapshot, then, order, waiting in self.taken:
            assert described(snapshot) == then
            assert ordered(snapshot) == order
            assert pending(snapshot) == waiting

    @rule()
    def equals_a_rebuilt_state(self):
        """Not after every event: a look in between would hide what only several at once leave stale."""
        fresh = ClusterRoom()
        for node in self.nodes.values():
            fresh.put_node(node)
        for key, (shape, node) in self.pods.items():
            fresh.put_pod(key, shape, node)
        snapshot = self.state.snapshot()

        assert described(snapshot) == described(fresh.snapshot())
        assert pending(snapshot) == pending(fresh.snapshot())
        assert ordered(snapshot) == self.tree.listed()
        assert snapshot.namespaces == self.namespaces

    @rule()
    def nothing_new_means_the_same_snapshot(self):
        before = self.state.snapshot()
        for node in self.nodes.values():
            self.state.put_node(node)
        for key, (shape, node) in self.pods.items():
            self.state.put_pod(key, shape, node)
        assert self.state.snapshot() is before


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_snapshot_keeps_the_pods_of_a_node_that_took_another_row():
    """A node goes, the last one takes its row, and then its pods go."""
    state, shape = ClusterRoom(), PodShape()
    for name in ("first", "last"):
        state.put_node(NodeRow(name, {}, (), {"pods": 5}))
        state.put_pod(f"default/on-{name}", shape, name)
    before = state.snapshot()
    then = described(before)
    state.remove_node("first")
    state.remove_pod("default", "on-last")
    assert described(before) == then
    assert described(state.snapshot())["last"]["pods"] == {}
