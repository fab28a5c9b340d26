"""The condition of a pod: never over one that has a node by now, whatever we have seen of it."""

import pytest

from karpool.gpu.controller.options import SCHEDULER_NAME
from karpool.gpu.controller.reporting import WaitReporter
from karpool.gpu.controller.worker_pods import WorkerPods
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.event_recorder import EventRecorder
from karpool.model.kubernetes.api_resources import NODES, PODS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer

KEY = ObjectKey("default", "infer")


def manifest(**annotations):
    return {
        "metadata": {
            "name": "infer",
            "namespace": "default",
            "annotations": {"tensor-fusion.ai/gpupool": "shared"}
            | {f"tensor-fusion.ai/{name.replace('_', '-')}": value for name, value in annotations.items()},
        },
        "spec": {"schedulerName": "karpool-gpu-scheduler", "containers": [{"name": "main", "image": "m:1"}]},
    }


@pytest.fixture
async def client():
    client = Client(InProcessTransport(ApiServer(RealClock())), RealClock(), qps=None)
    await client.create(NODES, {"metadata": {"name": "n1"}})
    return client


async def told(client, sight, uid):
    announcer = WaitReporter(client, lambda: sight, EventRecorder(client, "test"))
    await announcer._write(uid, KEY, WaitExplanation(uid, WaitReason.HANDING_OFF, "devices are reserved"))
    pod = await client.get(PODS, "infer", namespace="default", into=Pod)
    said = [condition for condition in pod.status.conditions or () if condition.type == "PodScheduled"]
    return said[0].reason if said else None


async def seen(client):
    pod = await client.get(PODS, "infer", namespace="default", into=Pod)
    return WorkerPods(SCHEDULER_NAME).of({KEY: pod}), pod.metadata.uid


async def test_a_pod_that_waits_is_told_though_it_changed_since(client):
    await client.create(PODS, manifest(vram_request="8Gi"))
    sight, uid = await seen(client)
    await client.patch(PODS, "infer", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    assert await told(client, sight, uid) == "HandingOff"


async def test_a_pod_that_was_bound_since_is_not(client):
    await client.create(PODS, manifest(vram_request="8Gi"))
    sight, uid = await seen(client)
    await client.bind("infer", "n1", namespace="default", uid=uid)
    assert await told(client, sight, uid) != "HandingOff"


async def test_a_pod_that_runs_is_not_even_if_its_request_was_spoilt(client):
    await client.create(PODS, manifest(vram_request="lots"))
    uid = (await client.get(PODS, "infer", namespace="default", into=Pod)).metadata.uid
    await client.bind("infer", "n1", namespace="default", uid=uid)
    sight, uid = await seen(client)
    assert await told(client, sight, uid) != "HandingOff"
