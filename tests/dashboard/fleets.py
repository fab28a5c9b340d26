"""Fleets to look at: a small one with something of everything, and one that is large."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

from karpool.cluster.changes import identity
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.options import STOP_NAMESPACE
from karpool.consolidation.execution.record import MOVE, RECORD, MovePhase, MoveRecord
from karpool.consolidation.execution.record import to_object as to_record
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, view_of
from karpool.dashboard.server.app import ServedDashboard, dashboard
from karpool.gpu.records.demand_key import DemandKey
from karpool.gpu.records.scale_up_object import definition, to_object, to_status
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.kube.clock import Clock, RealClock
from karpool.model.catalogue.files import load_shipped
from karpool.model.karmada.names import APPLIED_PLACEMENT, RESOURCE_BINDING
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.candidates.attempts import CandidateHistory
from karpool.provisioning.node_request import NodeCandidate
from karpool.scheduler.promises.promise_annotation import PROMISES, RecordedPromise, write
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, KARPENTER, bundled_crds
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.object_loader import restore_objects
from tests.consolidation import cluster_objects
from tests.scheduler import acting

Object = dict[str, Any]
Fleet = dict[str, list[Object]]
HOSTILE = "<script>window.hacked=1</script>"
HOSTILE_IMAGE = '"><img src=x onerror="window.hacked=1">'
BALANCED = {"karpool.dev/consolidation-policy": "Balanced", "karpool.dev/consolidation-threshold": "2"}


def something_of_everything(now: float) -> Fleet:
    return {
        "karmada": list(control_plane(now)),
        "east": list(nodes_and_pods(14, seed=3, hostile=True)),
        "gpu": [*nodes_and_pods(3, seed=5), *scale_ups(now)],
    }


def answers_for_people(now: float) -> Fleet:
    """Waiting pods with reasons, devices with holders, and moves that were made; hostile where it can be."""
    return {"east": [*nodes_and_pods(6, seed=3), *waiting_pods(now), *gpu_nodes(), *move_records(now)]}


# Of names: markup, text that runs backwards, what a terminal obeys, and more than fits on any screen.
EVIL = "<img src=x onerror=window.hacked=1>\u202egpj\u2066\x1b[31m" + 150 * "w"


def with_hostile_names(fleet: Fleet) -> Fleet:
    """Every name, wherever it is mentioned, with EVIL at its end."""
    names = {
        name
        for objects in fleet.values()
        for obj in objects
        for name in (obj["metadata"]["name"], obj["metadata"].get("namespace"))
        if name and name != STOP_NAMESPACE and obj["kind"] not in ("Namespace", "Cluster", "NodePool")
    }

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            # Values of labels are short by nature: a longer one is refused with its object.
            return {key: inner if key == "labels" else renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return value + EVIL if value in names else value

    return {cluster: [renamed(obj) for obj in objects] for cluster, objects in fleet.items()}


def merged(first: list[Object], second: list[Object]) -> list[Object]:
    """Objects of both; where they have one of the same name, the first's."""
    names = {identity(obj) for obj in first}
    return [*first, *(obj for obj in second if identity(obj) not in names)]


def waiting_pods(now: float) -> Iterator[Object]:
    few = "2 node(s) had untolerated taint {gpu: yes}"
    said = f"0/8 nodes are available: {few}, 6 Insufficient cpu. preemption: none"
    for number, (name, cpu, message) in enumerate(
        (("stuck-0", "64", said), ("stuck-1", "64", said), ("odd", "1", f"{HOSTILE} \u202egpj.exe \x1b[31m"))
    ):
        pod = cluster_objects.pod(name, "", cpu)
        pod["status"] = {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                    "lastTransitionTime": rfc3339(now - 600 + 60 * number),
                }
            ],
        }
        yield pod
    gated = cluster_objects.pod("gated", "", "1", schedulingGates=[{"name": "team/quota"}])
    gated["status"] = {"phase": "Pending"}
    yield gated


def gpu_nodes() -> Iterator[Object]:
    for name, devices in (("gpu-a", 4), ("gpu-b", 1)):
        node, claim = cluster_objects.node(name, "m5.2xlarge")
        node["metadata"]["labels"] |= {
            "nvidia.com/gpu.product": "NVIDIA-L4",
            "nvidia.com/gpu.memory": "23034",
        }
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            amounts["nvidia.com/gpu"] = str(devices)
        yield node
        yield claim
    pod = cluster_objects.pod("trainer", "gpu-a", "1")
    pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "2"
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "2"}
    yield pod


def move_records(now: float) -> Iterator[Object]:
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STOP_NAMESPACE}}
    cluster = Cluster(ASPECTS, market=Market(load_shipped("us-east-1")))
    cluster.load([*nodes_and_pods(14, seed=3)], now)
    plan = plan_consolidation(view_of(cluster.snapshot(now), now), PlanSettings(), now)
    done, refused = plan.moves[0], (plan.rejected[0].move if plan.rejected else plan.moves[-1])
    began = {"created": now - 7200, "since": now - 3600, "ended": now - 3600}
    for record in (
        MoveRecord(
            done,
            MovePhase.DONE,
            **began,
            gone_at=now - 3600,
            deleted_at=now - 7000,
            disturbed=3,
            realised=0.05,
        ),
        MoveRecord(
            refused,
            MovePhase.ROLLED_BACK,
            **{**began, "created": now - 900},
            reason="PodPending",
            message=f"a pod found no place: {HOSTILE}",
        ),
    ):
        yield {"apiVersion": "v1", "kind": "ConfigMap", **to_record(record, STOP_NAMESPACE)}
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "edited", "namespace": STOP_NAMESPACE, "labels": {RECORD: MOVE}},
        "data": {"record": "{}"},
    }


def large(count: int) -> Fleet:
    return {"east": list(nodes_and_pods(count, seed=1))}


def nodes_and_pods(count: int, *, seed: int, hostile: bool = False, prefix: str = "ip") -> Iterator[Object]:
    chance = Random(seed)
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    limited = cluster_objects.pool("general", annotations=BALANCED)
    limited["spec"]["limits"] = {"cpu": str(8 * count + 40), "memory": f"{40 * count}Gi"}
    yield limited
    yield cluster_objects.pool("batch", types=("m5.xlarge",))
    for number in range(count):
        name = f"{prefix}-10-0-{number // 250}-{number % 250}"
        kind = chance.choice(list(cluster_objects.SIZES))
        node, claim = cluster_objects.node(name, kind, pool="batch" if number % 5 == 4 else "general")
        if hostile and number == 0:
            node["metadata"]["labels"]["team"] = HOSTILE
            node["metadata"]["annotations"]["note"] = HOSTILE_IMAGE
        if number % 97 == 3:
            node["spec"]["unschedulable"] = True
        yield node
        yield claim
        room = 2 * {"m5.large": 2, "m5.xlarge": 4, "m5.2xlarge": 8}[kind]
        for pod in range(chance.randrange(0, room)):
            cost = {"controller.kubernetes.io/pod-deletion-cost": str(chance.choice((0, 0, 2**28)))}
            yield cluster_objects.pod(f"web-{number}-{pod}", name, "400m", annotations=cost)
    waiting = cluster_objects.pod("too-big", "", "64")
    waiting["status"] = {"phase": "Pending"}
    yield waiting
    if hostile:
        yield event("east", "Warning", "FailedScheduling", f"0/14 nodes are available: {HOSTILE}", 1.0)
        yield event("east2", "Normal", HOSTILE_IMAGE, "a reason that nobody would write", 2.0)


def event(name: str, type_: str, reason: str, message: str, at: float) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "team"},
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": "too-big"},
        "type": type_,
        "reason": reason,
        "message": message,
        "count": 3,
        "lastTimestamp": rfc3339(1_790_000_000 + at),
        "source": {"component": "default-scheduler"},
    }


def control_plane(now: float) -> Iterator[Object]:
    for name, region, cpu, used in (
        ("east", "us-east-1", 60, 30),
        ("gpu", "us-east-1", 12, 4),
        ("west", "eu-west-1", 96, 80),
    ):
        member = acting.cluster(name, region=region, provider="aws")
        member |= {"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster"}
        ready = {"type": "Ready", "status": "True", "reason": "ClusterReady", "message": ""}
        member["status"] = {
            "resourceSummary": acting.summary(cpu, used),
            "apiEnablements": acting.APIS,
            "conditions": [{**ready, "lastTransitionTime": rfc3339(now - 3600)}],
        }
        yield member
    yield placed("shop-web", 18, {"east": 10, "west": 8}, now, in_flight={"east": 4, "west": 8})
    yield placed("shop-api", 9, {"east": 6, "gpu": 3}, now)
    yield placed("search", 30, {"west": 30}, now, in_flight={"west": 12})
    yield placed("checkout", 4, {"east": 4}, now)
    yield failed("trainer", 400, now)


def placed(
    name: str, replicas: int, shares: dict[str, int], now: float, in_flight: dict[str, int] | None = None
) -> Object:
    clusters = [{"name": cluster, "replicas": share} for cluster, share in shares.items()]
    found = binding(name, replicas, clusters=clusters)
    on_their_way = in_flight or {}
    desired = {cluster: (share,) for cluster, share in shares.items()}
    recorded = {
        cluster: RecordedPromise((((amount,), 60.0 + 40.0 * index),))
        for index, (cluster, amount) in enumerate(on_their_way.items())
    }
    found["metadata"]["annotations"] = {
        PROMISES: write(recorded, desired, now),
        APPLIED_PLACEMENT: json.dumps(found["spec"]["placement"]),
    }
    found["status"] = {
        "schedulerObservedGeneration": 1,
        "lastScheduledTime": rfc3339(now - 90),
        "conditions": [said("True", "Success", "Binding has been scheduled successfully.", now)],
        "aggregatedStatus": [
            {
                "clusterName": cluster,
                "applied": True,
                "status": {"replicas": share, "readyReplicas": share - on_their_way.get(cluster, 0)},
            }
            for cluster, share in shares.items()
        ],
    }
    return found


def failed(name: str, replicas: int, now: float) -> Object:
    found = binding(name, replicas)
    message = "0/3 clusters are available: 3 clusters have not enough resource."
    found["status"] = {"conditions": [said("False", "Unschedulable", message, now)]}
    return found


def binding(name: str, replicas: int, **spec: Any) -> Object:
    found = acting.binding(name, replicas, **spec)
    found |= {"apiVersion": "work.karmada.io/v1alpha2", "kind": RESOURCE_BINDING}
    found["metadata"]["generation"] = 1
    return found


def said(status: str, reason: str, message: str, now: float) -> Object:
    return {
        "type": "Scheduled",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(now - 90),
    }


L4 = NodeCandidate(pools=("general",), instance_types=("g6.xlarge", "g6.2xlarge"))
A10 = NodeCandidate(pools=("general",), instance_types=("g5.xlarge",))


def scale_ups(now: float) -> Iterator[Object]:
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpool-smart-pods"}}
    node, claim = cluster_objects.node("gpu-l4", "m5.xlarge")
    claim["metadata"]["creationTimestamp"] = rfc3339(now - 555)
    reached = zip(claim["status"]["conditions"], (520, 455, 410, 300, 300), strict=True)
    for condition, seconds in reached:
        condition["lastTransitionTime"] = rfc3339(now - seconds)
    yield node
    yield claim
    common = {"gpus": 1, "cpu_milli": 4000, "memory_bytes": 2**34}
    waiting = ScaleUpUnit(
        0,
        **common,
        candidate=L4.key,
        stage=ScaleUpState.LAUNCHING,
        since=now - 30,
        started=now - 70,
        about=str(L4),
    )
    lost = ScaleUpUnit(
        1,
        **common,
        candidate=A10.key,
        stage=ScaleUpState.PENDING,
        since=now - 160,
        started=now - 200,
        about=str(A10),
        ended=LaunchReason.STOCK_OUT,
    )
    done = ScaleUpUnit(
        0,
        **common,
        candidate=L4.key,
        stage=ScaleUpState.COMPLETED,
        since=now - 400,
        started=now - 560,
        claim="claim-gpu-l4",
        node="gpu-l4",
        about=str(L4),
        devices=1,
    )
    for record in (
        ScaleUpRecord(
            DemandKey("shared", "NVIDIA L4", 1, 12, 30),
            ScaleUpState.LAUNCHING,
            now - 240,
            now - 30,
            epoch=2,
            units=(waiting, lost),
            memory={A10.key: CandidateHistory(1, now - 120, LaunchReason.STOCK_OUT, 0)},
            waiting=3,
            demand=("ml/train-0", "ml/train-1", "ml/embed-7"),
        ),
        ScaleUpRecord(
            DemandKey("shared", "NVIDIA L4", 1, 24, 60),
            ScaleUpState.COMPLETED,
            now - 600,
            now - 400,
            epoch=1,
            units=(done,),
        ),
        ScaleUpRecord(
            DemandKey("training", "NVIDIA H100", 8, 80, 900),
            ScaleUpState.EXHAUSTED,
            now - 1900,
            now - 100,
            epoch=9,
            reason="InsufficientCapacity",
            message="no candidate of this round had stock",
            next_attempt=now + 200,
            waiting=1,
            demand=(f"ml/{HOSTILE}",),
        ),
    ):
        found = to_object(record, "karpool-smart-pods")
        found |= {"apiVersion": "gpu.karpool.dev/v1alpha1", "kind": "ScaleUp", "status": to_status(record)}
        yield found


CRDS = {
    "karmada": bundled_crds(KARMADA),
    "east": bundled_crds(KARPENTER),
    "gpu": [*bundled_crds(KARPENTER), definition()],
}


@asynccontextmanager
async def clusters_of(
    fleet: Mapping[str, Iterable[Object]], clock: Clock | None = None
) -> AsyncIterator[dict[str, EmbeddedCluster]]:
    async with AsyncExitStack() as stack:
        found: dict[str, EmbeddedCluster] = {}
        for name, objects in fleet.items():
            cluster = EmbeddedCluster(name, clock=clock or RealClock(), crds=CRDS.get(name, CRDS["east"]))
            found[name] = await stack.enter_async_context(cluster)
            restore_objects(cluster.server, objects)
        yield found


@asynccontextmanager
async def served(fleet: Fleet, **options: Any) -> AsyncIterator[ServedDashboard]:
    async with clusters_of(fleet) as clusters:
        clients = {name: cluster.client("dashboard") for name, cluster in clusters.items()}
        async with dashboard(clients, **options) as page:
            yield page
