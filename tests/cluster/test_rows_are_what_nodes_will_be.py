"""A cluster that expects: after any events its rows are those that a look at the final objects gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from tests.cluster.test_any_order_of_events_is_one_picture import NOW, change, claim, named, node, pod

ASPECTS = Aspect.NODECLAIMS | Aspect.DAEMONS
DAEMON_CPU = {"log": 100, "net": 250}


def daemon_set(name):
    request = {"name": "c", "resources": {"requests": {"cpu": f"{DAEMON_CPU[name]}m"}}}
    return named(kinds.DAEMONSETS, name, spec={"template": {"spec": {"containers": [request]}}})


def daemon_pod(name, on):
    raw = pod(f"-{name}-{on}", on, cpu=f"{DAEMON_CPU[name]}m")
    raw["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": name, "controller": True}]
    return raw


def promised(number, provider):
    """A claim whose machine has more than a node shows while it starts."""
    raw = claim(number, provider)
    raw["status"]["allocatable"] = {"cpu": "6", "memory": "8Gi", "pods": "10"}
    return raw


def starting(number, provider, **fields):
    return node(number, provider, initialized=False, cpu="0", **fields)


DAEMON = st.sampled_from(sorted(DAEMON_CPU))
FEW = st.integers(0, 1)
OBJECTS = st.one_of(
    st.tuples(st.just(kinds.NODES), st.builds(node, FEW, FEW) | st.builds(starting, FEW, FEW)),
    st.tuples(st.just(kinds.NODECLAIMS), st.builds(promised, FEW, FEW)),
    st.tuples(st.just(kinds.PODS), st.builds(daemon_pod, DAEMON, FEW)),
    st.tuples(st.just(kinds.DAEMONSETS), st.builds(daemon_set, DAEMON)),
)
LIVES = st.lists(st.tuples(OBJECTS, st.booleans()), min_size=10, max_size=30)


def rows(cluster):
    room = cluster.snapshot().room
    return {name: int(room.allocatable("cpu")[row]) for row, name in enumerate(room.names)}


def expected_cpu(final):
    """The naive twin: who is whose by provider id, the first node by name; then arithmetic."""
    nodes = [raw for (kind, _), raw in sorted(final.items()) if kind == "Node"]
    claims = [raw for (kind, _), raw in sorted(final.items()) if kind == "NodeClaim"]
    pods = [raw for (kind, _), raw in final.items() if kind == "Pod"]
    daemons = [key.name for (kind, key) in final if kind == "DaemonSet"]
    by_provider = {}
    for raw in claims:
        if raw["status"]["providerID"]:
            by_provider.setdefault(raw["status"]["providerID"], raw["metadata"]["name"])
    cpu, taken = {}, set()
    for raw in nodes:
        shown = int(raw["status"]["allocatable"]["cpu"]) * 1000
        owner = by_provider.get(raw["spec"].get("providerID"))
        if owner in taken:
            owner = None
        taken.add(owner)
        initialized = "karpenter.sh/initialized" in raw["metadata"]["labels"]
        cpu[raw["metadata"]["name"]] = shown or (6000 if owner and not initialized else 0)
    for raw in claims:
        if raw["status"]["providerID"] and raw["metadata"]["name"] not in taken:
            cpu[f"nodeclaim/{raw['metadata']['name']}"] = 6000
    for name, amount in cpu.items():
        running = {
            owner["name"]
            for raw in pods
            if raw["spec"].get("nodeName") == name
            for owner in raw["metadata"].get("ownerReferences", ())
        }
        cpu[name] = max(0, amount - sum(DAEMON_CPU[one] for one in daemons if one not in running))
    return cpu


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(LIVES)
def test_rows_equal_those_of_the_final_objects(life):
    cluster, final = Cluster(ASPECTS, expected=True), {}
    for (kind, raw), gone in life:
        key, told = change(kind, raw, gone)
        cluster.apply(kind, [told], NOW)
        if gone:
            final.pop((kind.resource.kind, key), None)
        else:
            final[kind.resource.kind, key] = raw
        assert rows(cluster) == expected_cpu(final)


def test_a_node_that_becomes_unreadable_keeps_its_row_and_is_a_problem():
    cluster = Cluster(ASPECTS, expected=True)
    cluster.load([node(0, cpu="4")], NOW)
    cluster.load([node(0, cpu="many")], NOW)
    assert rows(cluster) == {"n0": 4000}
    assert any("many" in problem for problem in cluster.snapshot().problems)
    cluster.load([node(0, cpu="8")], NOW)
    assert rows(cluster) == {"n0": 8000}
    assert not cluster.snapshot().problems
