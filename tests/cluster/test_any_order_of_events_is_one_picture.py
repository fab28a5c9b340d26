"""Whatever the order of events, a snapshot equals that of a cluster that loads the final objects."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect, NotWatched
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.nodes.state_node import NodeStage
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from tests.cluster.views import described, pending

NOW = 1_000_000.0
EVERYTHING = ~Aspect(0)


def named(kind, name, **fields):
    namespace = {"namespace": "team"} if kind.resource.namespaced else {}
    meta = {"name": name, **namespace, **fields.pop("metadata", {})}
    return {"kind": kind.resource.kind, "apiVersion": kind.resource.api_version, "metadata": meta, **fields}


def node(number, provider=0, *, owner=None, initialized=True, pool="default", cpu="4"):
    labels = {"karpenter.sh/nodepool": pool, "node.kubernetes.io/instance-type": "m5.xlarge"}
    if initialized:
        labels["karpenter.sh/initialized"] = "true"
    owners = [{"kind": "NodeClaim", "name": f"c{owner}"}] if owner is not None else []
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    return named(
        kinds.NODES,
        f"n{number}",
        metadata={"labels": labels, "ownerReferences": owners},
        spec={"providerID": f"aws://{provider}"} if provider else {},
        status={"allocatable": amounts, "capacity": amounts},
    )


def claim(number, provider=0, *, node_name="", deleting=False):
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    return named(
        kinds.NODECLAIMS,
        f"c{number}",
        metadata={
            "labels": {"karpenter.sh/nodepool": "default"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **going,
        },
        status={
            "providerID": f"aws://{provider}" if provider else "",
            "nodeName": node_name,
            "capacity": {"cpu": "4"},
        },
    )


def pod(number, on, *, cpu="1", labels=None):
    request = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return named(
        kinds.PODS,
        f"p{number}",
        metadata={"labels": labels or {}},
        spec={"containers": [request], **({"nodeName": f"n{on}"} if on is not None else {})},
    )


def pool(limit):
    template = {
        "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "k0"}}
    }
    return named(kinds.NODEPOOLS, "default", spec={"template": template, "limits": {"cpu": limit}})


def node_class(zones):
    return named(kinds.NODE_CLASS_KINDS[0], "k0", status={"subnets": [{"zone": zone} for zone in zones]})


def budget(allowed):
    return named(
        kinds.BUDGETS,
        "b",
        spec={"selector": {"matchLabels": {"app": "x"}}, "maxUnavailable": 1},
        status={"disruptionsAllowed": allowed},
    )


def scale_up(number, claimed, held, ended=""):
    unit = {"claim": f"c{claimed}", "node": held, "ended": ended}
    return named(kinds.SCALE_UPS, f"s{number}", status={"units": [unit]})


def buffer(number, replicas):
    return named(
        kinds.CAPACITY_BUFFERS,
        f"b{number}",
        spec={"podTemplateRef": {"name": "t"}, "replicas": replicas},
    )


def template(cpu):
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {**named(kinds.POD_TEMPLATES, "t"), "template": {"spec": {"containers": [container]}}}


def overlay(number, weight):
    return named(kinds.NODE_OVERLAYS, f"o{number}", spec={"price": "0.5", "weight": weight or None})


SMALL = st.integers(0, 2)
OBJECTS = st.one_of(
    st.tuples(
        st.just(kinds.NODES),
        st.builds(
            node,
            SMALL,
            SMALL,
            owner=st.none() | SMALL,
            initialized=st.booleans(),
            cpu=st.sampled_from(["4", "8", "many"]),
        ),
    ),
    st.tuples(
        st.just(kinds.NODECLAIMS),
        st.builds(claim, SMALL, SMALL, node_name=st.sampled_from(["", "n0", "n1"]), deleting=st.booleans()),
    ),
    st.tuples(
        st.just(kinds.PODS),
        st.builds(
            pod,
            SMALL,
            st.none() | SMALL,
            cpu=st.sampled_from(["1", "2"]),
            labels=st.sampled_from([{}, {"app": "x"}]),
        ),
    ),
    st.tuples(st.just(kinds.NODEPOOLS), st.builds(pool, st.sampled_from(["10", "20", "-3"]))),
    st.tuples(
        st.just(kinds.NODE_CLASS_KINDS[0]), st.builds(node_class, st.lists(st.sampled_from(["a", "b"])))
    ),
    st.tuples(st.just(kinds.BUDGETS), st.builds(budget, st.integers(0, 1))),
    st.tuples(st.just(kinds.SCALE_UPS), st.builds(scale_up, SMALL, SMALL, st.sampled_from(["", "n0"]))),
    st.tuples(st.just(kinds.CAPACITY_BUFFERS), st.builds(buffer, SMALL, st.integers(-1, 3))),
    st.tuples(st.just(kinds.POD_TEMPLATES), st.builds(template, SMALL)),
    st.tuples(st.just(kinds.NODE_OVERLAYS), st.builds(overlay, SMALL, st.integers(0, 2))),
)
LIVES = st.lists(st.tuples(OBJECTS, st.booleans()), max_size=25)


def change(kind, raw, gone):
    key = ObjectKey(raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
    if gone:
        return key, ObjectChange("DELETED", key, None)
    return key, ObjectChange("ADDED", key, raw if kind.struct is dict else decode(raw, kind.struct))


def shown(snapshot):
    """Field by field, rows aside: these follow the order of arrival."""
    table = snapshot.pods
    return {
        "room": described(snapshot.room),
        "waiting": pending(snapshot.room),
        "nodes": {
            joined.name: (
                joined.claim,
                joined.stage,
                joined.price_per_hour,
                joined.blocked,
                bool(joined.reserved),
            )
            for joined in snapshot.nodes
        },
        "claims": [joined.name for joined in snapshot.claims_without_node],
        "usage": snapshot.usage,
        "pools": snapshot.pools,
        "broken": snapshot.broken_pools,
        "budgets": snapshot.budgets,
        "pods": sorted(
            (table.keys[row], float(table.costs[row]), int(table.flags[row]), int(table.budget[row]))
            for row in range(len(table.keys))
        ),
        "buffers": snapshot.buffers,
        "problems": Counter(snapshot.problems),
        "complete": snapshot.complete,
    }


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(LIVES)
def test_any_order_of_events_equals_the_load_of_the_final_objects(life):
    cluster, final, taken = Cluster(EVERYTHING), {}, []
    for (kind, raw), gone in life:
        key, told = change(kind, raw, gone)
        cluster.apply(kind, [told], NOW)
        if gone:
            final.pop((kind.resource, key), None)
        else:
            final[kind.resource, key] = raw
        if "many" in msgspec.json.encode(raw).decode() and not gone:
            # A node that was known stays as it was; the end is then not all there is to know.
            cluster.apply(kind, [ObjectChange("DELETED", key, None)], NOW)
            cluster.apply(kind, [told], NOW)
        taken.append((cluster.snapshot(), shown(cluster.snapshot())))
    again = Cluster(EVERYTHING)
    again.load(final.values(), NOW)
    assert shown(cluster.snapshot()) == shown(again.snapshot())
    for snapshot, before in taken:
        assert shown(snapshot) == before  # what was handed out does not change any more


def built(*objects, aspects=EVERYTHING):
    cluster = Cluster(aspects)
    cluster.load(objects, NOW)
    return cluster


def stages(cluster):
    snapshot = cluster.snapshot()
    joined = {one.name: (one.claim.name if one.claim else None, one.stage) for one in snapshot.nodes}
    return joined, [one.name for one in snapshot.claims_without_node]


@pytest.mark.parametrize(
    ("own", "claimed"),
    [
        (node(0, 1), claim(0, 1)),
        (node(0), claim(0, node_name="n0")),
        (node(0, owner=0), claim(0)),
    ],
    ids=["provider id", "status.nodeName", "owner reference"],
)
def test_a_node_finds_its_claim(own, claimed):
    for objects in ((own, claimed), (claimed, own)):
        assert stages(built(*objects)) == ({"n0": ("c0", NodeStage.INITIALIZED)}, [])


def test_a_second_node_of_a_claim_stands_alone_and_is_a_problem():
    cluster = built(claim(0, 1), node(1, 1), node(0, 1))
    assert stages(cluster)[0] == {
        "n0": ("c0", NodeStage.INITIALIZED),
        "n1": (None, NodeStage.INITIALIZED),
    }
    assert any("n1" in problem and "stands alone" in problem for problem in cluster.snapshot().problems)


def test_stages_are_written_once():
    cluster = built(
        claim(0),
        claim(1, 1),
        claim(2, 2),
        node(2, 2, initialized=False),
        claim(3, 3, deleting=True),
        node(3, 3),
    )
    snapshot = cluster.snapshot()
    assert [joined.stage for joined in snapshot.claims_without_node] == [
        NodeStage.LAUNCHING,
        NodeStage.REGISTERING,
    ]
    assert {joined.name: joined.stage for joined in snapshot.nodes} == {
        "n2": NodeStage.STARTING,
        "n3": NodeStage.LEAVING,
    }


def test_limits_are_charged_once_per_machine():
    cluster = built(claim(0, 1), node(0, 1, cpu="8"), claim(1, 2), claim(2, 3, deleting=True), node(3))
    assert cluster.snapshot().usage["default"]["nodes"] == 3
    assert cluster.snapshot().usage["default"]["cpu"] == 8000 + 4000 + 4000


def test_pools_are_narrowed_to_the_zones_of_their_class():
    cluster = built(pool("10"), node_class(["a", "b"]))
    zones = cluster.snapshot().pools["default"].requirements["topology.kubernetes.io/zone"]
    assert set(zones.values) == {"a", "b"}


def test_a_pool_that_cannot_be_understood_is_closed():
    snapshot = built(pool("-3")).snapshot()
    assert not snapshot.pools
    assert "limits" in snapshot.broken_pools["default"]


def test_a_budget_that_cannot_be_decoded_closes_its_namespace():
    cluster = built(named(kinds.BUDGETS, "b", spec="none"))
    (closed,) = cluster.snapshot().budgets
    assert closed.is_fully_blocking
    assert closed.namespace == "team"


def test_what_was_not_asked_for_is_not_empty():
    snapshot = built(node(0), aspects=Aspect.ROOM).snapshot()
    for read in (
        lambda: snapshot.nodes,
        lambda: snapshot.pools,
        lambda: snapshot.pods,
        lambda: snapshot.daemons,
        lambda: snapshot.stock_outs(NOW),
        lambda: snapshot.objects(kinds.RESOURCE_SLICES),
    ):
        with pytest.raises(NotWatched):
            read()
    with pytest.raises(NotWatched):
        Cluster(Aspect.ROOM).apply(kinds.NODEPOOLS, (), NOW)


def test_a_snapshot_is_the_same_until_something_changes():
    cluster = built(claim(0, 1), node(0, 1), pod(0, 0), aspects=Aspect.NODECLAIMS)
    before = cluster.snapshot()
    cluster.load([node(0, 1) | {"status": {**node(0, 1)["status"], "conditions": []}}], NOW)
    assert cluster.snapshot() is before
    cluster.load([pod(1, 0)], NOW)
    assert cluster.snapshot() is not before
    assert cluster.snapshot().nodes[0] is before.nodes[0]


def test_a_node_with_a_pod_that_cannot_be_read_says_so():
    broken = pod(0, 0) | {"status": {"conditions": "none"}}
    snapshot = built(broken, node(0, 1), claim(0, 1)).snapshot()
    assert snapshot.nodes[0].blocked == 1
    assert snapshot.blocked == {"n0": 1}


@pytest.mark.parametrize("held", [scale_up(0, 9, "n0"), scale_up(0, 0, "")], ids=["node", "claim"])
def test_a_node_that_a_scale_up_waits_for_is_reserved(held):
    for objects in ((node(0, 1), claim(0, 1), held), (held, claim(0, 1), node(0, 1))):
        cluster = built(*objects)
        assert cluster.snapshot().nodes[0].reserved == "scale-up s0"
        cluster.apply(kinds.SCALE_UPS, [ObjectChange("DELETED", ObjectKey("team", "s0"), None)], NOW)
        assert not cluster.snapshot().nodes[0].reserved
    assert not built(node(0), scale_up(0, 9, "n0", ended="2026-01-01T00:00:00Z")).snapshot().nodes[0].reserved


@given(st.permutations(["n1", "c1", "c2", "c3"]), st.booleans())
def test_a_provider_id_that_several_claims_share_is_of_the_first_by_name(order, look_between):
    """Not of the one that came first or last: two processes would see two different joins."""
    objects = {
        "n1": (kinds.NODES, node(1, 7)),
        **{f"c{n}": (kinds.NODECLAIMS, claim(n, 7)) for n in (1, 2, 3)},
    }
    cluster = Cluster(EVERYTHING)
    for name in order:
        kind, found = objects[name]
        cluster.apply(kind, [ObjectChange("ADDED", ObjectKey("", name), decode(found, kind.struct))], NOW)
        if look_between:
            cluster.nodes.settle()
    joined, waiting = cluster.nodes.view()
    assert joined["n1"].claim.name == "c1" == cluster.nodes.claim_with("aws://7")
    assert sorted(waiting) == ["c2", "c3"]
    cluster.apply(kinds.NODECLAIMS, [ObjectChange("DELETED", ObjectKey("", "c1"), None)], NOW)
    assert cluster.nodes.view()[0]["n1"].claim.name == "c2" == cluster.nodes.claim_with("aws://7")
