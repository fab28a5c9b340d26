"""A pod that cannot be read holds its node: nothing is free there until it can be read, or is gone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod


def node(name):
    return {
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }


def pod(name, on="", cpu="1", **spec):
    spec |= {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    return {
        "kind": "Pod",
        "metadata": {"namespace": "team", "name": name},
        "spec": spec | ({"nodeName": on} if on else {}),
    }


def broken(name, on="", **spec):
    """One whose bytes do not decode."""
    return pod(name, on, **spec) | {"status": {"conditions": "none"}}


def loaded(*objects):
    cluster = Cluster(Aspect.ROOM)
    cluster.load(objects, 0.0)
    return cluster


def unreadable(raw):
    key = ObjectKey("team", raw["metadata"]["name"])
    return ObjectChange("UNREADABLE", key, None, raw=msgspec.json.encode(raw), reason="is odd")


def free(cluster, name):
    room = cluster.room.snapshot()
    row = room.find(name)
    return int(room.free("cpu")[row]), int(room.slots[row])


ENDS_SOMETIME = pod("bad", "a")
ENDS_SOMETIME["metadata"]["deletionTimestamp"] = "yesterday"


@pytest.mark.parametrize(
    "bad",
    [broken("bad", "a"), pod("bad", "a", cpu="NaN"), ENDS_SOMETIME],
    ids=["bytes", "quantity", "deletionTimestamp"],
)
def test_its_node_has_no_room_and_no_slot(bad):
    cluster = loaded(node("a"), node("b"), bad)
    assert free(cluster, "a") == (0, 0)
    assert free(cluster, "b") == (4000, 10)
    assert cluster.room.blocked == {"a": 1}
    assert cluster.room.complete
    assert [problem.name for problem in cluster.problems] == ["team/bad"]


def test_a_node_that_comes_after_its_pod_is_held_too():
    assert free(loaded(broken("bad", "a"), node("a")), "a") == (0, 0)


def test_what_was_known_stays_charged_and_the_row_is_blocked_as_well():
    cluster = loaded(node("a"), pod("p", "a"))
    cluster.apply(kinds.PODS, [unreadable(broken("p", "a"))], 0.0)
    assert free(cluster, "a") == (0, 0)
    assert len(cluster.room.snapshot().pods_on(0)) == 1
    cluster.room.upsert_pod(decode(pod("p", "a"), Pod))
    assert free(cluster, "a") == (3000, 9)
    assert not cluster.room.blocked


def test_it_stops_to_hold_when_it_is_gone_or_has_ended():
    for end in (
        ObjectChange("DELETED", ObjectKey("team", "bad"), None),
        unreadable(broken("bad", "a") | {"status": {"phase": "Failed", "conditions": 1}}),
    ):
        cluster = loaded(node("a"), broken("bad", "a"), broken("other", "a"))
        cluster.apply(kinds.PODS, [end], 0.0)
        assert cluster.room.blocked == {"a": 1}
        cluster.room.remove_pod("team", "other")
        assert free(cluster, "a") == (4000, 10)


def test_a_pod_whose_node_cannot_be_told_makes_the_picture_incomplete():
    cluster = loaded(node("a"))
    cluster.apply(kinds.PODS, [unreadable(pod("bad") | {"spec": "none"})], 0.0)
    assert not cluster.room.complete
    assert free(cluster, "a") == (4000, 10)
    cluster.room.remove_pod("team", "bad")
    assert cluster.room.complete


def test_a_pending_pod_that_cannot_be_read_holds_nothing():
    cluster = loaded(node("a"), broken("bad"))
    assert cluster.room.complete
    assert not cluster.room.blocked


def test_the_counter_is_never_cut():
    cluster = loaded(node("a"), *(broken(f"p{number}", "a") for number in range(1500)))
    assert cluster.room.blocked == {"a": 1500}
    assert cluster.problems.dropped == 500


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "break", "drop", "node", "no node"]), st.integers(0, 3), st.integers(0, 2)
    ),
    max_size=30,
)


@given(STEPS)
def test_any_order_of_events_equals_the_end(steps):
    cluster, nodes, pods = loaded(), {}, {}
    for action, number, place in steps:
        name, on = f"p{number}", f"n{place}"
        if action == "node":
            nodes[on] = node(on)
            cluster.load([nodes[on]], 0.0)
        elif action == "no node":
            nodes.pop(on, None)
            cluster.room.remove_node(on)
        elif action == "drop":
            pods.pop(name, None)
            cluster.room.remove_pod("team", name)
        elif action == "put":
            pods[name] = pod(name, on)
            cluster.load([pods[name]], 0.0)
        elif name not in pods or pods[name]["spec"]["nodeName"] == on:
            pods[name] = broken(name, on)
            cluster.room.remove_pod("team", name)
            cluster.load([pods[name]], 0.0)
    again = loaded(*nodes.values(), *pods.values())
    assert cluster.room.blocked == again.room.blocked
    assert {name: free(cluster, name) for name in nodes} == {name: free(again, name) for name in nodes}
