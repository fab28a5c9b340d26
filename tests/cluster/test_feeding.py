"""Objects as the API sends them, good and bad, in any order."""

import pytest

from karpool.cluster import kinds, problems
from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.nodes.room_store import RESOURCE_LIMIT
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod


def node(name, cpu="4", pods="10", labels=None, **spec):
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}},
    }


def pod(name, on="", cpu="1", phase="Running", **spec):
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": on, "containers": containers, **spec},
        "status": {"phase": phase},
    }


def claim(name, volume="", **spec):
    spec |= {"volumeName": volume}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
        "status": {"phase": "Bound" if volume else "Pending"},
    }


def volume(name, zone):
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
    }


def mounting(claim_name):
    return [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]


def loaded(*objects, aspects=Aspect.VOLUMES):
    state = Cluster(aspects)
    state.load(objects, 0.0)
    return state


def free(state, name):
    snapshot = state.room.snapshot()
    row = snapshot.find(name)
    return int(snapshot.free("cpu")[row]), int(snapshot.slots[row])


def test_a_pod_that_comes_before_its_node_is_counted_when_the_node_comes():
    state = loaded(pod("p", on="n"))
    assert state.room.snapshot().n == 0

    state.load([node("n")], 0.0)

    assert free(state, "n") == (3000, 9)


def test_pods_of_a_node_that_goes_and_comes_back_are_counted_again():
    state = loaded(node("n"), node("m"), pod("p", on="n"))

    state.room.remove_node("n")
    assert state.room.snapshot().names == ("m",)
    state.load([node("n")], 0.0)

    assert free(state, "n") == (3000, 9)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_frees_its_room(phase):
    state = loaded(node("n"), pod("p", on="n"))

    ended = decode(pod("p", on="n", phase=phase), Pod)
    state.apply(kinds.PODS, [ObjectChange("MODIFIED", ObjectKey("default", "p"), ended)], 0.0)

    assert free(state, "n") == (4000, 10)


def test_a_terminating_pod_holds_its_room_until_it_is_gone():
    leaving = pod("p", on="n")
    leaving["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z"
    state = loaded(node("n"), leaving)
    assert free(state, "n") == (3000, 9)

    state.room.remove_pod("default", "p")

    assert free(state, "n") == (4000, 10)


def test_a_node_that_names_no_pods_has_no_slot():
    bare = node("n")
    del bare["status"]["allocatable"]["pods"]

    assert free(loaded(bare), "n") == (4000, 0)


def test_an_overcommitted_node_has_nothing_left_and_not_less():
    state = loaded(node("n"), pod("p", on="n", cpu="3"), pod("q", on="n", cpu="3"))
    assert free(state, "n")[0] == 0

    state.room.remove_pod("default", "p")

    assert free(state, "n")[0] == 1000


def test_requests_beyond_any_integer_can_be_taken_back():
    state = loaded(node("n"), pod("p", on="n", cpu="1e30"), pod("q", on="n", cpu="1e30"), pod("r", on="n"))
    assert free(state, "n") == (0, 7)

    state.room.remove_pod("default", "p")
    state.room.remove_pod("default", "q")

    assert free(state, "n") == (3000, 9)


def test_a_heartbeat_changes_nothing():
    state = loaded(node("n"))
    before = state.room.snapshot()
    beating = node("n")
    beating["status"]["conditions"] = [{"type": "Ready", "status": "True"}]

    state.load([beating], 0.0)

    assert state.room.snapshot() is before


def test_pod_events_keep_the_node_table():
    state = loaded(node("n"))
    nodes = state.room.snapshot().nodes

    state.load([pod("p", on="n")], 0.0)

    assert state.room.snapshot().nodes is nodes


def test_a_cordoned_node_is_a_tainted_one():
    state = loaded(node("n", unschedulable=True))

    (taints,) = state.room.snapshot().taint_sets

    assert [str(taint) for taint in taints] == ["node.kubernetes.io/unschedulable:NoSchedule"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(node("bad", cpu="4x"), "Node bad: status.allocatable.cpu: '4x'", id="quantity"),
        pytest.param(
            node("bad", labels={"a": "b" * 64}), "Node bad: metadata.labels.a.value", id="label too long"
        ),
        pytest.param(node(""), "Node: metadata.name: ''", id="no name"),
        pytest.param(pod("bad", cpu="1..2"), "Pod default/bad: spec.containers[0]", id="request"),
        pytest.param(pod("bad", containers=7), "Pod default/bad: spec.containers: 7", id="wrong type"),
        pytest.param(
            pod("bad", topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "z"}]),
            "maxSkew: 0",
            id="skew",
        ),
        pytest.param({"metadata": {"name": "x"}}, "object x: kind", id="no kind"),
        pytest.param("text", "object number 2: kind: 'text'", id="no object"),
    ],
)
def test_a_bad_object_is_reported_and_the_others_are_used(bad, words):
    state = loaded()

    (problem,) = state.load([node("n"), bad, pod("p", on="n")], 0.0)

    assert words in str(problem)
    assert free(state, "n") == (3000, 9)


def test_a_problem_is_forgotten_when_the_object_is_fixed_or_gone():
    state = loaded(node("n", cpu="x"), node("m", cpu="x"))
    assert len(state.problems) == 2

    state.load([node("n")], 0.0)
    state.room.remove_node("m")

    assert len(state.problems) == 0


def test_what_was_known_stays_when_an_update_is_bad():
    state = loaded(node("n"), pod("p", on="n"))

    state.load([pod("p", on="n", cpu="lots")], 0.0)

    assert free(state, "n") == (0, 0)  # what it takes now is not known
    assert len(state.room.snapshot().pods_on(0)) == 1
    assert len(state.problems) == 1


def test_problems_are_bounded():
    state = loaded(*(node(f"n{number}", cpu="x") for number in range(problems.LIMIT + 5)))

    assert len(state.problems) == problems.LIMIT
    assert state.problems.dropped == 5


def test_resources_beyond_the_limit_are_reported_and_the_node_is_used():
    state = loaded(node("n"))
    crowded = node("m")
    crowded["status"]["allocatable"] |= {f"example.com/r{number}": "1" for number in range(RESOURCE_LIMIT)}

    (problem,) = state.load([crowded], 0.0)

    assert "is not followed" in str(problem)
    assert free(state, "m") == (4000, 10)


def test_lists_of_objects_are_opened():
    both = [
        {"kind": "NodeList", "items": [{**node("n"), "kind": None}]},
        {"kind": "List", "items": [pod("p", on="n")]},
        {"kind": "PodList", "items": None},
    ]
    del both[0]["items"][0]["kind"]

    assert free(loaded(*both), "n") == (3000, 9)


def test_changes_of_a_kind_are_applied():
    state = loaded(node("n"))
    key, decoded = ObjectKey("default", "p"), decode(pod("p", on="n"), Pod)

    state.apply(kinds.PODS, [ObjectChange("ADDED", key, decoded)], 0.0)
    assert free(state, "n") == (3000, 9)
    state.apply(kinds.PODS, [ObjectChange("DELETED", key, None)], 0.0)

    assert free(state, "n") == (4000, 10)


def shape_of(state, key="default/p"):
    snapshot = state.room.snapshot()
    return snapshot.shapes[snapshot.pending[key]]


def test_a_pod_follows_its_volume_once_claim_and_volume_are_known():
    state = loaded(pod("p", volumes=mounting("data")))
    assert shape_of(state).volume_terms == ((),)

    state.load([claim("data", "pv"), volume("pv", "a")], 0.0)
    there = shape_of(state).volume_terms
    state.load([volume("pv", "b")], 0.0)

    assert there not in (((),), ())
    assert shape_of(state).volume_terms not in (there, ((),))


def test_a_claim_that_goes_makes_the_pod_wait_again():
    state = loaded(claim("data", "pv"), volume("pv", "a"), pod("p", volumes=mounting("data")))
    assert shape_of(state).volume_terms != ((),)

    state.apply(kinds.CLAIMS, [ObjectChange("DELETED", ObjectKey("default", "data"), None)], 0.0)

    assert shape_of(state).volume_terms == ((),)


def test_a_bound_pod_keeps_its_room_when_its_volume_changes():
    state = loaded(
        node("n"), claim("data", "pv"), volume("pv", "a"), pod("p", on="n", volumes=mounting("data"))
    )
    assert free(state, "n") == (3000, 9)

    state.load([volume("pv", "b")], 0.0)

    assert free(state, "n") == (3000, 9)


def test_a_class_matters_to_claims_that_wait():
    waiting = claim("data", storageClassName="local")
    state = loaded(waiting, pod("p", volumes=mounting("data")))
    assert shape_of(state).volume_terms == ((),)

    state.load(
        [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": "local"},
                "provisioner": "example.com/disk",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        ],
        0.0,
    )

    assert shape_of(state).volume_terms == ()


def test_without_volumes_nobody_waits_for_claims():
    state = loaded(pod("p", volumes=mounting("data")), aspects=Aspect.ROOM)

    assert shape_of(state).volume_terms == ()
