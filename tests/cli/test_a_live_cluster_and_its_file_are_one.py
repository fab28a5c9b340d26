"""Commands cannot tell a live cluster from a snapshot of it, and live with fewer rights."""

from karpool.cli.cluster_source import read_cluster
from karpool.cluster.cluster_room import ClusterRoom
from karpool.kube.api.client import Client
from karpool.kube.snapshots.reader import read_objects
from karpool.kube.snapshots.writer import take_snapshot
from karpool.kube.transport.rest import RetryPolicy
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
    async def scenario() -> ClusterRoom:
        server = cluster_with_volumes()
        version = Fault(response=answer(200, {"gitVersion": "v1.34.0"}))
        server.fault = lambda request: version if request.path == "/version" else None
        client: Client = client_of(server, retry=RetryPolicy(attempts=1))
        await take_snapshot(client, tmp_path / "saved.gz")
        return await read_cluster(client)

    live = virtually(scenario()).snapshot()
    state = ClusterRoom()
    state.load(read_objects(tmp_path / "saved.gz"))
    file = state.snapshot()

    assert described(live) == described(file)
    assert pending(live) == pending(file)
    (shape,) = pending(live).values()
    assert "topology.kubernetes.io/zone" in repr(shape)


def test_who_may_not_list_volumes_is_told_and_served():
    async def scenario():
        bad = []
        server = cluster_with_volumes()
        server.fault = lambda request: (
            Fault(response=status(403, "Forbidden", "cannot list")) if "persistent" in request.path else None
        )
        state = await read_cluster(client_of(server, report=bad.extend, retry=RetryPolicy(attempts=1)))
        return state, bad

    state, bad = virtually(scenario())
    (shape,) = pending(state.snapshot()).values()

    assert "topology.kubernetes.io/zone" not in repr(shape)
    assert ["volumes of all pods: not looked at" in str(each) for each in bad] == [True]
