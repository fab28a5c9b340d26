"""Commands cannot tell a live cluster from a snapshot of it, and live with fewer rights."""

import pytest

from karpool.cli.cluster_source import list_cluster
from karpool.cli.inspect.capacity import ASPECTS, Workload, question_of, requirements_of
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.api.client import Client
from karpool.kube.errors import MissingRights
from karpool.kube.snapshots.reader import read_objects
from karpool.kube.snapshots.writer import take_snapshot
from karpool.kube.transport.rest import RetryPolicy
from karpool.model.kubernetes.components import components_of
from tests.cluster.views import described, pending
from tests.kube.tiny_server import Fault, TinyServer, answer, status
from tests.kube.virtual import client_of, virtually

NAMESPACED = "/api/v1/namespaces/default"
ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}


def cluster_with_volumes() -> TinyServer:
    server = TinyServer()
    server.put("/api/v1/namespaces/default")
    server.put("/api/v1/nodes/n1", status={"allocatable": {"cpu": "4", "pods": "10"}})
    term = {"matchExpressions": [ZONE]}
    server.put(
        "/api/v1/persistentvolumes/v1", spec={"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    )
    server.put(
        f"{NAMESPACED}/persistentvolumeclaims/data", spec={"volumeName": "v1"}, status={"phase": "Bound"}
    )
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    server.put(f"{NAMESPACED}/pods/db", spec={"containers": [], "volumes": [claim]})
    return server


def test_volumes_bind_pods_in_both(tmp_path):
    live, file = Cluster(ASPECTS), Cluster(ASPECTS)

    async def scenario() -> None:
        server = cluster_with_volumes()
        version = Fault(response=answer(200, {"gitVersion": "v1.34.0"}))
        server.fault = lambda request: version if request.path == "/version" else None
        client: Client = client_of(server, retry=RetryPolicy(attempts=1))
        await take_snapshot(client, tmp_path / "saved.gz")
        await list_cluster(client, live)

    virtually(scenario())
    file.load(read_objects(tmp_path / "saved.gz"), 0.0)

    rooms = [cluster.snapshot().room for cluster in (live, file)]
    assert described(rooms[0]) == described(rooms[1])
    assert pending(rooms[0]) == pending(rooms[1])
    (shape,) = pending(rooms[0]).values()
    assert "topology.kubernetes.io/zone" in repr(shape)


def closed(server: TinyServer, *words: str) -> None:
    server.fault = lambda request: (
        Fault(response=status(403, "Forbidden", f"cannot list {request.path}"))
        if any(word in request.path for word in words)
        else None
    )


def listed(server: TinyServer, cluster: Cluster):
    return virtually(list_cluster(client_of(server, retry=RetryPolicy(attempts=1)), cluster))


def test_who_may_not_list_volumes_is_told_and_served():
    server, cluster = cluster_with_volumes(), Cluster(ASPECTS)
    closed(server, "persistent")

    bad = listed(server, cluster)

    assert ["of all kinds: not read" in str(each) for each in bad] == [True, True]
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {"containers": [{"name": "main"}], "volumes": [claim]}
    pod = {"metadata": {"namespace": "default"}, "spec": spec}
    workload = Workload(components_of({"apiVersion": "v1", "kind": "Pod", **pod}))
    unseen = frozenset(each.resource for each in bad)
    blind = question_of(workload, requirements_of(workload, cluster, unseen), cluster.snapshot())
    assert blind.existing == 10
    assert (
        question_of(workload, requirements_of(workload, cluster), cluster.snapshot()).existing == 0
    )  # as if nothing was closed: no such claim


def test_all_missing_rights_are_named_at_once_with_the_role_that_grants_them():
    server = cluster_with_volumes()
    closed(server, "/nodes", "/pods", "storageclasses")

    with pytest.raises(MissingRights) as raised:
        listed(server, Cluster(ASPECTS))

    assert "may not list nodes, pods (" in str(raised.value)
    assert "ClusterRole karpool-reader" in str(raised.value)
    assert "storageclasses" not in str(raised.value)


def test_a_pod_that_cannot_be_read_holds_its_node_live_and_in_a_file(tmp_path):
    server = cluster_with_volumes()
    server.put(f"{NAMESPACED}/pods/odd", spec={"nodeName": "n1", "containers": "none"})
    version = Fault(response=answer(200, {"gitVersion": "v1.34.0"}))
    server.fault = lambda request: version if request.path == "/version" else None
    live, file = Cluster(Aspect.NODECLAIMS), Cluster(Aspect.NODECLAIMS)
    listed(server, live)
    virtually(take_snapshot(client_of(server, retry=RetryPolicy(attempts=1)), tmp_path / "saved.gz"))
    file.load(read_objects(tmp_path / "saved.gz"), 0.0)

    for cluster in (live, file):
        snapshot = cluster.snapshot()
        assert snapshot.blocked == {"n1": 1}
        assert snapshot.room.free("cpu").tolist() == [0]
        assert any("default/odd" in problem for problem in snapshot.problems)
