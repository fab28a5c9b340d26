"""`karpool consolidator` as people run it, beside another one that holds the lease."""

import asyncio
import sys
from pathlib import Path

import pytest

from karpool.consolidation.execution.plan_application import LEASE
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.transport_interface import HttpRequest
from karpool.model.kubernetes.api_resources import CRDS, LEASES, NAMESPACES
from karpool.model.kubernetes.times import rfc3339_micro
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.run import run_apiserver
from tests.consolidation.executing import NAMESPACE

WRITES = ("POST", "PUT", "PATCH", "DELETE")


@pytest.mark.long
@pytest.mark.timeout(120)  # a process, on a machine that may be busy
async def test_a_process_writes_nothing_until_its_rival_lets_go_of_the_lease(tmp_path: Path) -> None:
    started, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    kubeconfig = tmp_path / "config"
    serving = asyncio.create_task(run_apiserver(kubeconfig=kubeconfig, ready=started.set_result, stop=stop))
    running = await started
    admin = Client(InProcessTransport(running.server), RealClock(), qps=None)
    for definition in bundled_crds(KARPENTER):
        await admin.create(CRDS, definition)
    await admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    now = rfc3339_micro(RealClock().now())
    held = {"holderIdentity": "rival", "leaseDurationSeconds": 3600, "acquireTime": now, "renewTime": now}
    await admin.create(LEASES, {"metadata": {"name": LEASE, "namespace": NAMESPACE}, "spec": held})
    asked, written = asyncio.Semaphore(0), []

    async def around(request: HttpRequest, handle):
        if request.method in WRITES:
            written.append(f"{request.method} {request.path}")
        answer = await handle(request)
        if request.method == "GET" and request.path.endswith(f"/leases/{LEASE}"):
            asked.release()
        return answer

    running.server.around = around
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "karpool.cli.main", "consolidator", "--once"),
        f"--kubeconfig={kubeconfig}",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        for _ in range(2):
            await asked.acquire()
        assert written == []
        await admin.patch(LEASES, LEASE, {"spec": {"holderIdentity": ""}}, namespace=NAMESPACE)
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0 and b"no move was executed" in said
    assert len(written) > 2 and "/leases/" in written[1], "after ours on the lease, its own comes first"
    lease = await admin.get(LEASES, LEASE, namespace=NAMESPACE)
    assert lease["spec"]["holderIdentity"] == "", "and is given back"
    stop.set()
    await serving
