"""Every controller as a process: probes answer, and SIGTERM ends it with 0 and without its lease."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.api_resources import CRDS, LEASES, NAMESPACES
from karpool_fleet.apiserver.kinds.bundled_crds import bundled_crds
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer

LEADERS = ("scheduler", "descheduler", "cluster-summary", "consolidator", "gpu-scaler")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answered(session: aiohttp.ClientSession, url: str) -> str:
    """The body, once it is there and says yes."""
    while True:
        try:
            async with session.get(url) as answer:
                if answer.status == 200:
                    return await answer.text()
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.05)


async def one(command: str, kubeconfig: Path, session: aiohttp.ClientSession, leads: asyncio.Event) -> str:
    """Start it, wait until it is ready and leads, ask it to end; what it said."""
    port = free_port()
    flags = ["--kubeconfig", str(kubeconfig), "--metrics-bind-address", "0"]
    flags += ["--health-probe-bind-address", f"127.0.0.1:{port}"]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "karpool.cli.main", "--log-format=json", "-v1", command, *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert child.stderr is not None
    base = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(50):
            verbose = await answered(session, f"{base}/readyz?verbose")
            assert "[+]ping ok" in verbose
            assert await answered(session, f"{base}/livez") == "ok\n"
            assert "karpool_build_info" in await answered(session, f"{base}/metrics")
            await leads.wait()
            child.send_signal(signal.SIGTERM)
            said = (await child.stderr.read()).decode()
            assert await child.wait() == 0, said
    except TimeoutError:
        with suppress(ProcessLookupError):  # it may have ended by itself, too early
            child.kill()
        raise AssertionError(f"{command}: {(await child.stderr.read()).decode()}") from None
    return said


@pytest.mark.long
async def test_probes_answer_and_sigterm_gives_the_lease_back(tmp_path: Path) -> None:
    server = ApiServer(RealClock())
    client = Client(InProcessTransport(server), qps=None)
    for crd in bundled_crds():
        await client.create(CRDS, crd)
    await client.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
    listening = await serve(server)
    path = tmp_path / "config.yaml"
    config = {
        "clusters": [{"name": "east", "cluster": {"server": listening.url}}],
        "contexts": [{"name": "east", "context": {"cluster": "east"}}],
        "current-context": "east",
    }
    path.write_text(json.dumps(config))

    async def holders() -> list[str]:
        return [lease["spec"]["holderIdentity"] for lease in (await client.list(LEASES)).items]

    all_lead = asyncio.Event()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        running = [group.create_task(one(command, path, session, all_lead)) for command in LEADERS]
        while len(list(filter(None, await holders()))) != len(LEADERS):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        all_lead.set()

    assert await holders() == [""] * len(LEADERS)
    assert not any("Traceback" in each.result() for each in running)
    await listening.close()
    await server.close()
