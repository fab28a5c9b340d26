"""Every component does its work under exactly the roles of its manifests: nothing it asks for is refused, and
nothing that is granted goes unused."""

import asyncio
from typing import Any

import pytest

from karpool.dashboard.server.app import dashboard
from karpool.gpu.records.scale_up_object import definition as scale_ups
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.event_recorder import EventRecorder, ObjectReference
from karpool.kube.leases import Leadership, LeaseElector
from karpool.kube.snapshots import writer
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.model.devices.device import AGENT, PUBLISHED_BY
from karpool.model.devices.gpu_quota import QUOTAS
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    GPUS,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    REPLICASETS,
    STATEFULSETS,
    ApiResource,
)
from karpool.provisioning.placeholders.placeholder import EPOCH, INDEX, MANAGED_BY, REQUEST
from karpool.provisioning.placeholders.writes import create_missing
from karpool.scheduler.descheduler.descheduler import Descheduler
from karpool.scheduler.estimates.estimate_cache import EstimatorReply
from karpool.scheduler.estimates.estimator_client import EstimatorSettings, service_resolver
from karpool.scheduler.summaries.summary_writer import ClusterSummaryWriter
from karpool_fleet.apiserver.kinds.bundled_crds import bundled_crds
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.live import LiveCluster
from tests.consolidation.executing import QUICK, Play, playing
from tests.deploy.manifests import Object, folders, objects, of_kind
from tests.deploy.roles import Grant, Guard, expand, grants
from tests.estimator.serving import World, serving
from tests.estimator.test_unschedulable_replicas_of_any_workload import named, waiting
from tests.fleet.karpenter.acting import run_manual
from tests.fleet.living import play, until
from tests.gpu.test_the_agent_tells_what_a_machine_has import GPU_KIND
from tests.gpu.test_whole_clusters import quota_kind
from tests.gpu.whole import COMPONENT, Story, gpu_pool, worker
from tests.scheduler.acting import Stage, binding
from tests.scheduler.acting import play as play_karmada
from tests.scheduler.test_summaries_show_what_could_come import CAPACITY, Source, shows

_RESOURCES = {
    "Namespace": NAMESPACES,
    "PriorityClass": PRIORITYCLASSES,
    "CustomResourceDefinition": CRDS,
}
_ROLES = ("Role", "ClusterRole")


def guard_of(folder: str, account: str) -> Guard:
    granted = grants(objects(folder), account)
    assert granted, f"{folder} grants nothing to {account}"
    return Guard(granted)


def put_between(cluster: EmbeddedCluster, guard: Guard, *components: str) -> None:
    wrap = cluster.faults.wrap

    def guarded(component: str, transport: Any) -> Any:
        inner = wrap(component, transport)
        return guard.around(inner) if component in components else inner

    cluster.faults.wrap = guarded  # type: ignore[method-assign]


async def install(admin: Client, *names: str) -> None:
    """What an operator applies before the component starts."""
    for name in names:
        for obj in objects(name):
            await admin.create(_RESOURCES[obj["kind"]], obj)


async def lead_and_speak(
    client: Client, lease: str, namespace: str, *, leads: bool = True, speaks: bool = True
) -> None:
    """What every process does besides its work."""

    async def led(leadership: Leadership) -> None:
        leadership.check()

    if leads:
        await LeaseElector(client, lease, namespace=namespace).run(led)
    if not speaks:
        return
    recorder = EventRecorder(client, "karpool")
    for _ in range(2):  # the second time the first is counted up
        recorder.record(ObjectReference("v1", "Pod", "default", "web", "1"), "Normal", "Tested", "twice")
        await recorder.flush()


def judge(guard: Guard) -> None:
    assert guard.refused == set(), "asked for, and not granted"
    unused = {str(grant) for grant in guard.granted - guard.used}
    assert unused == set(), "granted, and never used"


class Stuck:
    async def unschedulable(self, cluster: str, resource: Any, threshold_seconds: float) -> EstimatorReply:
        return EstimatorReply(2)


def test_the_scheduler_does_its_work_under_its_roles() -> None:
    guard = guard_of("karmada-access", "karpool-scheduler")

    async def story(stage: Stage) -> None:
        put_between(stage.control, guard, "scheduler")
        await stage.admin.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
        client = stage.control.client("scheduler")
        await lead_and_speak(client, "karpool-scheduler", "karmada-system")
        await service_resolver(client, EstimatorSettings())("m1")
        await stage.join("m1", 10)
        # Somebody else writes in between: the binding is read again.
        for kind in ("/resourcebindings", "/clusterresourcebindings"):
            stage.control.faults.fail(
                "scheduler", status=409, method="PATCH", path=f"{kind}/.*/status", times=1
            )
        async with stage.scheduling():
            await stage.create(binding("web", 2), binding("role", 1, namespace=""))
            await stage.until_placed("web")
            await stage.until(lambda: _placed_everywhere(stage))

    play_karmada(story)
    judge(guard)


async def _placed_everywhere(stage: Stage) -> bool:
    found = await stage.get("role", namespace="")
    return bool(found.get("status", {}).get("conditions"))


def test_the_descheduler_does_its_work_under_its_roles() -> None:
    guard = guard_of("karmada-access", "karpool-descheduler")

    async def story(stage: Stage) -> None:
        put_between(stage.control, guard, "descheduler")
        await stage.admin.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 4), binding("role", 4, namespace=""))
            await stage.until_placed("web")
            await stage.until(lambda: _placed_everywhere(stage))
        status = {"clusterName": "m1", "applied": True, "status": {"replicas": 4, "readyReplicas": 2}}
        for namespace in ("default", ""):
            name = "web" if namespace else "role"
            patch = {"status": {"aggregatedStatus": [status]}}
            await stage.patch(name, patch, subresource="status", namespace=namespace)
        client = stage.control.client("descheduler")
        await lead_and_speak(client, "karpool-descheduler", "karmada-system")
        await service_resolver(client, EstimatorSettings())("m1")
        for kind in ("/resourcebindings", "/clusterresourcebindings"):
            stage.control.faults.fail("descheduler", status=409, method="PATCH", path=kind, times=1)
        stop = Stop()
        running = asyncio.create_task(Manager.of(client, lambda env: Descheduler(env, Stuck())).run(stop))
        await asyncio.sleep(5)
        stop.set()
        await running

    play_karmada(story)
    judge(guard)


def test_the_summary_writer_does_its_work_under_its_roles() -> None:
    guard = guard_of("cluster-summary-access", "karpool-cluster-summary")

    async def story(stage: Stage) -> None:
        put_between(stage.control, guard, "cluster-summary")
        await stage.admin.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
        await stage.join("m1", 0)
        client = stage.control.client("cluster-summary")
        await lead_and_speak(client, "karpool-cluster-summary", "karmada-system", speaks=False)
        await service_resolver(client, EstimatorSettings())("m1")
        stop, source = Stop(), Source(m1=CAPACITY)
        writer = Manager.of(client, lambda environment: ClusterSummaryWriter(environment, source))
        running = asyncio.create_task(writer.run(stop))
        await stage.until(lambda: shows(stage, 62.5))
        stop.set()
        await running

    play_karmada(story)
    judge(guard)


def test_the_gpu_scaler_does_its_work_under_its_roles() -> None:
    guard = guard_of("gpu-scaler", "karpool-gpu-scaler")

    async def story(cluster: LiveCluster) -> None:
        told = Story(cluster)
        await install(told.client, "crds", "smart-pods")
        put_between(cluster.embedded, guard, COMPONENT)
        client = cluster.embedded.client(COMPONENT)
        await lead_and_speak(client, "karpool-gpu-scaler", "karpool-smart-pods")
        # After a binding that may or may not have come about, the pod is read.
        cluster.embedded.faults.fail(COMPONENT, status=500, method="POST", path="/binding$", times=1)
        await told.client.create(CRDS, quota_kind())
        await told.client.create(CRDS, GPU_KIND)
        quota = {"metadata": {"name": "gpus", "namespace": "default"}, "spec": {"total": {"maxWorkers": 9}}}
        await told.client.create(QUOTAS, quota)
        told.start()
        await told.add(worker("infer"))
        assert await until(lambda: told.bound("infer"), within=600)
        assert await until(told.clean, within=60)
        # What the agent publishes of the node; how much of it is left is for the scaler to tell.
        node = (await told.pod("infer")).spec.node_name
        status = {
            "phase": "Running",
            "vendor": "NVIDIA",
            "gpuModel": "L4",
            "capacity": {"tflops": "121", "vram": "23034Mi"},
            "nodeSelector": {"kubernetes.io/hostname": node},
        }
        agent = {"name": "gpu-of-agent", "annotations": {PUBLISHED_BY: AGENT}}
        await told.client.create(GPUS, {"metadata": agent})
        await told.client.patch(GPUS, "gpu-of-agent", {"status": status}, subresource="status")

        async def is_told() -> bool:
            gpu = await told.client.get(GPUS, "gpu-of-agent")
            return "available" in gpu["status"]

        assert await until(is_told, within=120)

    play(story, gpu_pool("gpu", "g6.xlarge"))
    judge(guard)


@pytest.mark.parametrize("plans_only", [True, False], ids=["planning", "acting"])
def test_the_consolidator_does_its_work_under_its_roles(plans_only: bool) -> None:
    folder = "consolidator-planning" if plans_only else "consolidator"
    guard = guard_of(folder, "karpool-consolidator")

    async def main() -> None:
        async with playing(QUICK) as p:
            await install(p.stage.admin, "namespace", "smart-pods")
            put_between(p.stage.cluster, guard, "consolidator", "consolidator-events")
            if plans_only:
                await _plan(p)
                return
            client = p.stage.cluster.client("consolidator")
            await lead_and_speak(client, "karpool-consolidator", "karpool-system")
            await p.too_large()
            p.start()
            await p.over()
            assert await p.types() == ["small"]
            # A smart pod that is there already, made by a leader before us, is read.
            container = {"name": "main", "image": "pause"}
            labels = dict.fromkeys((MANAGED_BY, REQUEST, EPOCH, INDEX), "0")
            meta = {"name": "there", "namespace": "karpool-smart-pods", "labels": labels}
            for _ in range(2):
                await create_missing(client, PODS, {"metadata": meta, "spec": {"containers": [container]}})
            # What is long over is forgotten.
            records = await p.made[-1].executor.records()
            await p.made[-1].executor.forget(records)

    run_manual(main())
    judge(guard)


async def _plan(p: Play) -> None:
    from karpool.cluster.market.market import Market
    from karpool.consolidation.execution.controller import Consolidator
    from tests.fleet.karpenter.acting import catalogue

    shown: list[Any] = []
    stop = Stop()

    def show(plan: Any) -> None:
        shown.append(plan)
        stop.set()

    client = p.stage.cluster.client("consolidator")
    await p.too_large()
    manager = Manager.of(
        client, lambda env: Consolidator(env, p.options, market=Market(catalogue()), show=show)
    )
    await manager.run(stop)
    assert [len(plan.moves) for plan in shown] == [1]


async def test_the_dashboard_does_its_work_under_its_role() -> None:
    guard = guard_of("dashboard", "karpool-dashboard")
    server = ApiServer(RealClock())
    transport = InProcessTransport(server)
    for crd in [*bundled_crds(), scale_ups()]:
        await Client(transport, qps=None).create(CRDS, crd)
    async with dashboard({"east": Client(guard.around(transport), qps=None)}) as page:
        async with asyncio.timeout(30):
            while page.collector.not_ready() is not None or not _all_watched(guard):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await server.close()
    judge(guard)


def _all_watched(guard: Guard) -> bool:
    """Watches follow their lists by a moment."""
    return {grant for grant in guard.granted if grant.verb == "watch"} <= guard.used


async def test_the_estimator_does_its_work_under_its_roles() -> None:
    guard = guard_of("estimator-access", "karpool-estimator")
    world = World()
    client = Client(guard.around(world.transport), RealClock(), qps=None)
    await lead_and_speak(client, "", "", leads=False)
    owners = {each: await world.workload(each, "web") for each in (DEPLOYMENTS, STATEFULSETS, JOBS)}
    owned = await world.workload(REPLICASETS, "web", owners[DEPLOYMENTS])
    alone = await world.workload(REPLICASETS, "alone")
    await world.add(waiting(world, "one", owned, labels={"app": "web"}), waiting(world, "two", alone))
    flags: Object = {
        "feature_gates": "SchedulingOvercommitProtection=true",
        "node_capacity_providers": ["karpenter"],
    }
    async with serving(guard.around(world.transport), **flags) as estimator:
        for resource in owners:
            await estimator.unschedulable(0, **named(resource, "web"))
    judge(guard)
    await world.server.close()


# Without running anything


def resources_of(granted: set[Grant], *verbs: str) -> set[tuple[str, str]]:
    return {(grant.group, grant.resource) for grant in granted if grant.verb in verbs}


def role(folder: str, kind: str, namespace: str = "") -> set[Grant]:
    found = [each for each in of_kind(folder, kind) if each["metadata"].get("namespace", "") == namespace]
    return {grant for each in found for rule in each["rules"] for grant in expand(rule, namespace)}


def test_readers_may_list_what_a_snapshot_holds_and_no_more() -> None:
    wanted = {(each.resource.group, each.resource.plural) for each in writer.SAVED_KINDS if not each.name}
    listed = resources_of(role("reader", "ClusterRole"), "list")
    assert listed == wanted
    single = {each for each in writer.SAVED_KINDS if each.name}
    assert {each.resource for each in single} == {CONFIGMAPS}
    for each in single:
        namespace = each.selection.namespace
        assert namespace is not None
        names = {grant.name for grant in role("reader", "Role", namespace) if grant.verb == "get"}
        assert names & {each.name, ""}


@pytest.mark.parametrize("folder", folders())
def test_no_role_holds_what_nobody_should(folder: str) -> None:
    for each in of_kind(folder, *_ROLES):
        for rule in each["rules"]:
            assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not any("*" in word for word in words), each["metadata"]["name"]
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
            assert "secrets" not in rule["resources"]


READS = {"get", "list", "watch"}


@pytest.mark.parametrize("folder", ["reader", "estimator-access", "consolidator-planning", "dashboard"])
def test_estimating_and_planning_write_nothing_but_events(folder: str) -> None:
    for each in of_kind(folder, *_ROLES):
        for rule in each["rules"]:
            assert set(rule["verbs"]) <= READS or rule["resources"] == ["events"], each["metadata"]["name"]


def test_only_the_resource_that_is_acted_on_can_be_written_everywhere() -> None:
    """Which kinds a component may change in every namespace, besides events."""
    expected: dict[str, set[tuple[str, str]]] = {
        "consolidator": {("", "nodes"), ("karpenter.sh", "nodeclaims")},
        "gpu-scaler": {
            ("", "pods"),
            ("", "pods/binding"),
            ("", "pods/status"),
            ("tensor-fusion.ai", "gpus/status"),  # of devices that the agent published
            ("tensor-fusion.ai", "gpuresourcequotas/status"),
        },
    }
    for folder, kinds in expected.items():
        writes = {grant for grant in role(folder, "ClusterRole") if grant.verb not in READS}
        assert {(grant.group, grant.resource) for grant in writes} - {("", "events")} == kinds


def test_granting_is_decided_as_the_api_server_does() -> None:
    from karpool.kube.transport_interface import HttpRequest

    one = ApiResource("", "v1", "configmaps", "ConfigMap")
    guard = Guard({Grant("watch", "", "configmaps", "a", "switch"), Grant("create", "", "pods/binding")})
    path = one.collection("a")
    named_only = [("watch", "1"), ("fieldSelector", "metadata.name=switch")]
    assert guard.allows(HttpRequest("GET", path, named_only))
    assert not guard.allows(HttpRequest("GET", path, [("watch", "1")]))
    assert not guard.allows(HttpRequest("GET", path, named_only[1:]))
    assert not guard.allows(HttpRequest("GET", one.collection("b"), named_only))
    assert not guard.allows(HttpRequest("GET", one.item("switch", "a")))
    assert guard.allows(HttpRequest("POST", "/api/v1/namespaces/x/pods/p/binding"))
    assert not guard.allows(HttpRequest("POST", "/api/v1/namespaces/x/pods"))
    assert guard.allows(HttpRequest("GET", "/apis/apps/v1"))
