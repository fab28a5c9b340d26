"""The process: it leads or waits, says when it is ready, tells pods why they wait, and hands over."""

import asyncio
import json
import socket
from pathlib import Path

import aiohttp
import pytest

from karpool.cli.run.gpu_scaler import gpu_scaler
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.gpu.process import COMPONENT, GPU_SCALER
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.manager.manager import run_process
from karpool.manager.options import ConnectionOptions, ProbeOptions
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import CRDS, LEASES, PODS
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.gpu.whole import worker

NAMESPACE = "karpool-smart-pods"
NO_PROBES = ProbeOptions(metrics_bind_address="0", health_probe_bind_address="0")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def told(client: Client, name: str) -> str:
    """What the pod is told, once it is told anything."""
    while True:
        pod = await client.get(PODS, name, namespace="default", into=Pod)
        said = condition(pod.status.conditions, "PodScheduled")
        if said is not None and said.reason:
            return said.reason
        await asyncio.sleep(0.02)


def probes_at(port: int) -> ProbeOptions:
    address = f"127.0.0.1:{port}"
    return ProbeOptions(metrics_bind_address=address, health_probe_bind_address=address)


async def holder(client: Client) -> str:
    lease = await client.get(LEASES, COMPONENT, namespace=NAMESPACE)
    return str(lease["spec"].get("holderIdentity") or "")


@pytest.mark.long
async def test_one_leads_and_hands_over_when_it_stops(tmp_path: Path) -> None:
    server = ApiServer(RealClock())
    client = Client(InProcessTransport(server), qps=None)
    for crd in bundled_crds(KARPENTER):
        await client.create(CRDS, crd)
    listening = await serve(server)
    path = tmp_path / "config.yaml"
    config = {
        "clusters": [{"name": "east", "cluster": {"server": listening.url}}],
        "contexts": [{"name": "east", "context": {"cluster": "east"}}],
        "current-context": "east",
    }
    path.write_text(json.dumps(config))
    port, other = free_port(), free_port()
    stops = [Stop(), Stop()]
    started: asyncio.Queue[int] = asyncio.Queue()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        connection = ConnectionOptions(kubeconfig=path)
        options = GpuScalerOptions(
            connection=connection,
            probes=probes_at(port),
            region="us-east-1",
            kube_api_qps=0,
            accept_unenforced_shares=True,
        )
        first = group.create_task(
            run_process(GPU_SCALER, options, stops[0], ready=lambda scaler: started.put_nowait(1))
        )
        assert await started.get() == 1
        leader = await holder(client)
        group.create_task(
            run_process(
                GPU_SCALER,
                GpuScalerOptions(connection=connection, probes=probes_at(other), kube_api_qps=0),
                stops[1],
                ready=lambda scaler: started.put_nowait(2),
            )
        )
        await client.create(PODS, worker("garbage", gpu_count="many"))
        await client.create(PODS, worker("nowhere", gpupool="nowhere"))

        assert await told(client, "garbage") == "BadRequest"
        assert await told(client, "nowhere") == "NeverFits"
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
            assert await answer.text() == "ok\n"
        async with session.get(f"http://127.0.0.1:{other}/readyz") as answer:
            assert answer.status == 200
            assert f"waiting for the lease {NAMESPACE}/{COMPONENT}" in await answer.text()
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert "karpool_gpu_smart_pods_created_total" in await answer.text()
        assert started.empty(), "two lead"

        stops[0].set()
        await first
        assert await started.get() == 2
        assert await holder(client) not in ("", leader)
        stops[1].set()
    assert await holder(client) == ""
    await listening.close()
    await server.close()


def test_flags_become_options(monkeypatch) -> None:
    seen: list[GpuScalerOptions] = []

    async def fake(controller: object, options: GpuScalerOptions, stop: Stop, **_: object) -> None:
        seen.append(options)

    monkeypatch.setattr("karpool.manager.manager.run_process", fake)
    flags = ["--device-limit=1h", "--max-in-flight=3", "--strategy=CompactFirst", "--metrics-bind-address=0"]
    gpu_scaler.main(flags, standalone_mode=False)

    (options,) = seen
    assert options.scale_up.device_limit == 3600
    assert options.scale_up.maximum_age >= 3600 + 300 + 960
    assert options.smart_pods.active_deadline_seconds > options.scale_up.maximum_age
    assert options.scale_up.max_in_flight == 3
    assert len(options.probes.addresses) == 1
