"""An estimator on a real port, in front of API servers in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from karpool.estimator.process import FleetEstimator
from karpool.estimator.serving.member import MemberEstimator
from karpool.estimator.serving.options import EstimatorOptions
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport_interface import Transport
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.options import read_options
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import NAMESPACES, NODES, PODS
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.proto import explain_pb2
from karpool.wire.requests import ESTIMATOR, EXPLAINER
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer

Object = dict[str, Any]


def node(name: str, cpu: str = "4", memory: str = "8Gi", pods: str = "110", **more: Any) -> Object:
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **more.pop("resources", {})}
    return {
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": more,
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name: str, cpu: str = "1", node: str = "", namespace: str = "default", **more: Any) -> Object:
    meta = {"name": name, "namespace": namespace, **more.pop("metadata", {})}
    status = more.pop("status", {"phase": "Running" if node else "Pending"})
    container = {"name": "app", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    spec: Object = {"containers": [container], **more}
    if node:
        spec["nodeName"] = node
    return {"metadata": meta, "spec": spec, "status": status}


def requirements(cpu: str = "1", **more: Any) -> pb.ReplicaRequirements:
    amounts = {"cpu": pb.Quantity(string=cpu).SerializeToString()}
    return pb.ReplicaRequirements(resource_request_bytes=amounts, **more)


def asks(cluster: str = "member1", cpu: str = "1", **more: Any) -> pb.MaxAvailableReplicasRequest:
    return pb.MaxAvailableReplicasRequest(cluster=cluster, replica_requirements=requirements(cpu), **more)


class World:
    """One API server and a client of it that may do anything."""

    def __init__(self) -> None:
        self.clock = RealClock()
        self.server = ApiServer(self.clock)
        self.transport = InProcessTransport(self.server)
        self.client = Client(self.transport, self.clock, qps=None)

    async def create(self, resource: Any, obj: Object) -> Object:
        """With its status, which the API server keeps apart on creation."""
        made = await self.client.create(resource, obj)
        if "status" not in obj:
            return made
        meta = made["metadata"]
        return await self.client.patch(
            resource,
            meta["name"],
            {"status": obj["status"]},
            namespace=meta.get("namespace"),
            subresource="status",
        )

    async def add(self, *objects: Object) -> None:
        for each in objects:
            await self.create(PODS if "containers" in each["spec"] else NODES, each)

    async def workload(self, resource: Any, name: str, owner: Object | None = None, **spec: Any) -> Object:
        """Create something that owns pods; what to write into its pods' ownerReferences."""
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        if resource.group == "apps":
            spec = {"selector": {"matchLabels": {"app": name}}, "template": template, **spec}
        elif resource.group == "batch":
            template["spec"]["restartPolicy"] = "Never"
            spec = {"template": template, **spec}
        meta: Object = {"name": name, "namespace": "default", "labels": {"app": name}}
        if owner:
            meta["ownerReferences"] = [owner]
        made = await self.client.create(resource, {"metadata": meta, "spec": spec})
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": name,
            "uid": made["metadata"]["uid"],
            "controller": True,
        }

    async def namespace(self, name: str) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": name}})


@dataclass
class Estimator:
    """A running server, and calls to it."""

    port: int
    members: Mapping[str, MemberEstimator]
    registry: CollectorRegistry
    channel: grpc.aio.Channel
    not_ready: Callable[[], str | None]
    calls: dict[str, Any] = field(default_factory=dict)

    async def replicas(self, request: pb.MaxAvailableReplicasRequest) -> int:
        data = await self.raw("MaxAvailableReplicas", request.SerializeToString())
        return pb.MaxAvailableReplicasResponse.FromString(data).max_replicas

    async def sets(self, request: pb.MaxAvailableComponentSetsRequest) -> int:
        data = await self.raw("MaxAvailableComponentSets", request.SerializeToString())
        return pb.MaxAvailableComponentSetsResponse.FromString(data).max_sets

    async def unschedulable(self, threshold_seconds: float = 0, **resource: str) -> int:
        request = pb.UnschedulableReplicasRequest(
            cluster="member1",
            resource=pb.ObjectReference(**resource),
            unschedulable_threshold=int(threshold_seconds * 1e9),
        )
        data = await self.raw("GetUnschedulableReplicas", request.SerializeToString())
        return pb.UnschedulableReplicasResponse.FromString(data).unschedulable_replicas

    async def explain(self, **request: Any) -> explain_pb2.ExplainResponse:
        message = explain_pb2.ExplainRequest(cluster="member1", **request)
        data = await self.raw("Explain", message.SerializeToString(), EXPLAINER)
        return explain_pb2.ExplainResponse.FromString(data)

    async def raw(self, method: str, data: bytes, service: str = ESTIMATOR) -> bytes:
        answer: bytes = await self.channel.unary_unary(f"/{service}/{method}")(data, timeout=30)
        return answer

    async def counted(self, until: Callable[[], bool] = lambda: True) -> None:
        """Wait until every cluster is counted, and until something is so."""
        await eventually(lambda: not any(member.not_ready() for member in self.members.values()) and until())


async def eventually(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - what is waited for is a state, not an event
            await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(
    transports: Mapping[str, Transport] | Transport, *, wait: bool = True, **flags: Any
) -> AsyncIterator[Estimator]:
    """An estimator for clusters by name, or for one that is called member1."""
    given = transports if isinstance(transports, Mapping) else {"member1": transports}
    chosen = {name.replace("_", "-"): value for name, value in flags.items()}
    options = read_options(EstimatorOptions, {"cluster-name": "member1", "server-port": 0, **chosen})
    clock, registry = RealClock(), CollectorRegistry()
    clients = {name: Client(transport, clock, name=name, qps=None) for name, transport in given.items()}
    first = next(iter(clients.values()))
    environment = Environment(clients, EventRecorder(first, "estimator"), registry)
    estimators = FleetEstimator(environment, options, host="127.0.0.1")
    server, members, stop = estimators.server, estimators.members, Stop()
    assert server is not None
    async with AsyncExitStack() as stack:
        listening = asyncio.Event()
        running = asyncio.create_task(Manager(estimators, environment).run(stop, prepared=listening.set))

        async def ended() -> None:
            stop.set()
            await running

        stack.push_async_callback(ended)
        await listening.wait()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}"))
        estimator = Estimator(server.port, members, registry, channel, environment.status.not_ready)
        if wait:
            await estimator.counted()
        yield estimator
