"""`what_if`: the same decision as the scheduler's, and the truth about whether it would be taken."""

import pytest

from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.errors import NotFound
from karpool.model.errors import Invalid
from karpool.model.karmada.binding import binding_key
from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS, RESOURCEBINDINGS
from karpool.model.kubernetes.times import rfc3339
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.cycle.what_if import what_if
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.scheduler.acting import APIS, binding, cluster, summary


@pytest.fixture
async def client():
    server = ApiServer(RealClock())
    client = Client(InProcessTransport(server), RealClock(), qps=None)
    for definition in bundled_crds(KARMADA):
        await client.create(CRDS, definition)
    await client.create(CLUSTERS, cluster("m1"))
    status = {"resourceSummary": summary(10), "apiEnablements": APIS}
    await client.patch(CLUSTERS, "m1", {"status": status}, subresource="status")
    return client


async def explained(client, name):
    return await what_if(client, binding_key("default", f"{name}-deployment"), SchedulingSettings())


async def test_pods_that_a_member_reports_are_in_its_summary(client):
    landed = binding("landed", 4)
    landed["spec"]["clusters"] = [{"name": "m1", "replicas": 4}]
    await client.create(RESOURCEBINDINGS, landed)
    pods = {"replicas": 4, "readyReplicas": 4, "availableReplicas": 4}
    status = {
        "lastScheduledTime": rfc3339(RealClock().now()),
        "aggregatedStatus": [{"clusterName": "m1", "applied": True, "status": pods}],
    }
    path = {"namespace": "default", "subresource": "status"}
    await client.patch(RESOURCEBINDINGS, "landed-deployment", {"status": status}, **path)
    await client.create(RESOURCEBINDINGS, binding("next", 10))
    assert (await explained(client, "next")).decision.is_success


async def test_what_no_scheduler_looks_at_is_not_due(client):
    for name in ("due", "suspended", "by-hand"):
        await client.create(RESOURCEBINDINGS, binding(name, 2))
    paused = {"spec": {"suspension": {"scheduling": True}}}
    await client.patch(RESOURCEBINDINGS, "suspended-deployment", paused, namespace="default")
    found = await client.get(RESOURCEBINDINGS, "by-hand-deployment", namespace="default")
    bare = {"metadata": {"labels": dict.fromkeys(found["metadata"]["labels"])}}
    await client.patch(RESOURCEBINDINGS, "by-hand-deployment", bare, namespace="default")
    due, suspended, by_hand = [await explained(client, name) for name in ("due", "suspended", "by-hand")]
    assert due.is_due
    assert not suspended.is_due
    assert suspended.why == "spec.suspension.scheduling is true"
    assert not by_hand.is_due
    assert "propagationpolicy.karmada.io/permanent-id" in by_hand.why


async def test_errors_name_the_binding_and_the_next_step(client):
    with pytest.raises(NotFound, match="kubectl get resourcebindings -A"):
        await explained(client, "missing")
    await client.create(RESOURCEBINDINGS, binding("negative", -3))
    with pytest.raises(Invalid, match=r"ResourceBinding default/negative-deployment\.spec\.replicas: -3"):
        await explained(client, "negative")


async def test_a_member_cluster_is_not_a_control_plane():
    client = Client(InProcessTransport(ApiServer(RealClock())), RealClock(), qps=None)
    with pytest.raises(NotFound, match="is this the Karmada API server"):
        await explained(client, "web")
