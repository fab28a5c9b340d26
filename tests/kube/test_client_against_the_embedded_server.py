"""The same claims through both transports: our client believes our server, and the other way round."""

import asyncio
from contextlib import aclosing

import pytest

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config.kubeconfig import ClusterConfig, KubeUser
from karpool.kube.errors import AlreadyExists, Conflict, Denied, Gone, NotFound, Rejected, Throttled
from karpool.kube.event_recorder import EventRecorder, ref
from karpool.kube.leases import LeaseElector
from karpool.kube.snapshots.reader import read_objects
from karpool.kube.snapshots.writer import take_snapshot
from karpool.kube.transport.http import HttpTransport
from karpool.kube.transport.rest import NEVER
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.kube.both_transports import BOTH, TOKEN, in_process, running


@pytest.fixture(params=BOTH.values(), ids=BOTH)
async def client(request):
    async with request.param(ApiServer(RealClock())) as transport:
        yield Client(transport, name="test", qps=None, retry=NEVER)


def pod(name, **spec):
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": containers, **spec},
    }


def node(name):
    return {
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    }


def config_map(name, **data):
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def until(condition):
    """Wait for what a background task will bring about; the test's own time limit is the limit."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


async def test_objects_are_created_read_and_deleted(client):
    created = await client.create(PODS, pod("web"))
    typed = await client.get(PODS, "web", namespace="default", into=Pod)
    await client.delete(PODS, "web", namespace="default", uid=created["metadata"]["uid"], grace_seconds=0)

    assert typed.metadata.uid == created["metadata"]["uid"]
    with pytest.raises(NotFound, match="web"):
        await client.get(PODS, "web", namespace="default")


async def test_refusals_have_the_right_kind(client):
    made = await client.create(CONFIGMAPS, config_map("a"))
    await client.patch(CONFIGMAPS, "a", {"data": {"k": "v"}}, namespace="default")

    with pytest.raises(AlreadyExists):
        await client.create(CONFIGMAPS, config_map("a"))
    with pytest.raises(Conflict):
        await client.update(CONFIGMAPS, made)
    with pytest.raises(Conflict):
        await client.delete(CONFIGMAPS, "a", namespace="default", uid="another")
    with pytest.raises(Rejected) as caught:
        await client.create(PODS, {"metadata": {"name": "bad", "namespace": "default"}, "spec": {}})
    assert caught.value.causes


async def test_each_patch_type_does_its_work(client):
    await client.create(DEPLOYMENTS, deployment())

    async def patched(patch, how, **options):
        return await client.patch(DEPLOYMENTS, "d", patch, namespace="default", how=how, **options)

    merged = await patched({"metadata": {"labels": {"m": "1"}}}, "merge")
    operations = [{"op": "add", "path": "/metadata/labels/j", "value": "1"}]
    amended = await patched(operations, "json")
    strategic = await patched(
        {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}}, "strategic"
    )
    applied = await client.apply(
        DEPLOYMENTS,
        {"metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": 7}},
        field_manager="tests",
        force=True,
    )

    assert merged["metadata"]["labels"] == {"m": "1"}
    assert amended["metadata"]["labels"] == {"m": "1", "j": "1"}
    (container,) = strategic["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["resources"]["requests"]) == ("new", {"cpu": "100m"})
    assert applied["spec"]["replicas"] == 7


def deployment():
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod("x")["spec"]}
    return {
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }


async def test_subresources_scale_status_and_binding(client):
    await client.create(NODES, node("n1"))
    await client.create(PODS, pod("web"))
    await client.create(DEPLOYMENTS, deployment())

    await client.bind("web", "n1", namespace="default")
    scale = await client.scale(DEPLOYMENTS, "d", 5, namespace="default")
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    ready = await client.patch(NODES, "n1", status, subresource="status")

    assert (await client.get(PODS, "web", namespace="default", into=Pod)).spec.node_name == "n1"
    assert scale["spec"]["replicas"] == 5
    assert ready["status"]["conditions"][0]["status"] == "True"


async def test_an_eviction_waits_for_its_budget(client):
    await client.create(NODES, node("n1"))
    await client.create(PODS, pod("web", nodeName="n1"))
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(PODS, "web", ready, namespace="default", subresource="status")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    await client.create(PDBS, {"metadata": {"name": "b", "namespace": "default"}, "spec": budget})

    with pytest.raises(Throttled) as caught:
        await client.evict("web", namespace="default")
    await client.patch(PDBS, "b", {"spec": {"minAvailable": 0}}, namespace="default")
    await client.evict("web", namespace="default", grace_seconds=0)

    assert caught.value.has_cause("DisruptionBudget")


async def test_lists_come_in_pages_and_follow_selectors(client):
    for number in range(7):
        await client.create(CONFIGMAPS, config_map(f"m{number}"))

    pages = [page async for page in client.pages(CONFIGMAPS, ListOptions("default"), page_size=3)]
    chosen = await client.list(CONFIGMAPS, ListOptions(field_selector="metadata.name=m3"))

    assert [len(page.items) for page in pages] == [3, 3, 1]
    assert len({page.resource_version for page in pages}) == 1
    assert [obj["metadata"]["name"] for obj in chosen.items] == ["m3"]


async def test_a_watch_sees_what_happens_after_the_list(client):
    await client.create(CONFIGMAPS, config_map("before"))
    version = (await client.list(CONFIGMAPS)).resource_version
    await client.create(CONFIGMAPS, config_map("a"))
    await client.patch(CONFIGMAPS, "a", {"data": {"k": "v"}}, namespace="default")
    await client.delete(CONFIGMAPS, "a", namespace="default")

    seen = []
    async with aclosing(client.watch(CONFIGMAPS, version, into=dict)) as events:
        async for event in events:
            seen.append((event.type, event.key))
            if event.type == "DELETED":
                break

    key = ObjectKey("default", "a")
    assert seen == [("ADDED", key), ("MODIFIED", key), ("DELETED", key)]


async def test_a_version_from_another_life_is_gone():
    server = ApiServer(RealClock(), history_events=4)
    async with in_process(server) as transport:
        client = Client(transport, qps=None)
        first = await client.create(CONFIGMAPS, config_map("m0"))
        for number in range(1, 600):  # history is trimmed in blocks
            await client.create(CONFIGMAPS, config_map(f"m{number}"))
        with pytest.raises(Gone):
            async for _ in client.watch(CONFIGMAPS, first["metadata"]["resourceVersion"], into=dict):
                pass


async def test_an_informer_feeds_the_cluster_state(client):
    cluster = Cluster(Aspect.ROOM)
    informers = []
    for watched in cluster_watches(cluster, RealClock()):
        informers.append(Informer(client, watched.resource, into=watched.into, keep=False))
        informers[-1].add_sink(watched.sink)
    await client.create(NODES, node("n1"))
    async with running(*(informer.run() for informer in informers)):
        await asyncio.gather(*(informer.synced.wait() for informer in informers))
        await client.create(NODES, node("n2"))
        await client.create(PODS, pod("web", nodeName="n1"))
        await until(lambda: len(informers[0]) == 2 and len(informers[1]) == 1)
        names = set(cluster.room.snapshot().nodes.names)
        await client.delete(NODES, "n2")
        await until(lambda: len(informers[0]) == 1)

    assert names == {"n1", "n2"}
    assert list(cluster.room.snapshot().nodes.names) == ["n1"]
    assert list(cluster.problems) == []


async def test_leadership_passes_from_one_to_the_next(client):
    led = []

    async def work(leadership):
        leadership.check()
        led.append(leadership.term)

    for identity in ("a", "b"):
        await LeaseElector(client, "l", namespace="default", identity=identity).run(work)

    lease = await client.get(LEASES, "l", namespace="default")
    assert led == [1, 2]
    assert lease["spec"]["holderIdentity"] == ""


async def test_events_are_counted_on_the_server(client):
    web = await client.create(PODS, pod("web"))
    recorder = EventRecorder(client, "karpool-tests")
    for _ in range(2):
        recorder.record(ref(PODS, web), "Normal", "Nominated", "to node n1")
        await recorder.flush()

    chosen = ListOptions("default", field_selector="reason=Nominated")
    (event,) = (await client.list(EVENTS, chosen)).items
    assert (event["count"], event["involvedObject"]["uid"]) == (2, web["metadata"]["uid"])


async def test_a_snapshot_of_the_server_is_read_back(client, tmp_path):
    await client.create(NODES, node("n1"))
    await client.create(PODS, pod("web"))
    await client.create(CONFIGMAPS, config_map("not-wanted"))

    summary = await take_snapshot(client, tmp_path / "s.gz", context="test")

    objects = {(obj["kind"], obj["metadata"]["name"]) for obj in read_objects(tmp_path / "s.gz")}
    assert {("Node", "n1"), ("Pod", "web"), ("Namespace", "default")} <= objects
    assert ("ConfigMap", "not-wanted") not in objects
    assert "nodepools.karpenter.sh" in {each.resource for each in summary.skipped}


async def test_the_wrong_token_is_denied():
    listening = await serve(ApiServer(RealClock()), token=TOKEN)
    transport = HttpTransport(ClusterConfig("test", listening.url, user=KubeUser(token="wrong")), env={})
    async with Client(transport, qps=None) as client:
        with pytest.raises(Denied):
            await client.list(NAMESPACES)
    await listening.close()
