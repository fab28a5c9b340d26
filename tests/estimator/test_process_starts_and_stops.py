"""The process as a kubelet sees it: endpoints first, answers when counted, gone within the grace period."""

import asyncio
import json
import os
import re
import signal
import socket
import sys

import aiohttp
import grpc
import pytest
from aiohttp import web

from karpool.estimator.process import ESTIMATOR as CONTROLLER
from karpool.estimator.serving.options import EstimatorOptions
from karpool.manager.manager import run_process
from karpool.manager.options import InvalidOptions, read_options
from karpool.manager.stop import Stop
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ESTIMATOR
from karpool_fleet.apiserver.serve.http import serve
from tests.estimator.serving import World, asks, node


class Api:
    """An API server of two nodes that answers lists of pods only when told to."""

    def __init__(self):
        self.open = asyncio.Event()
        self.url = ""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/api/v1/{plural}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _answer(self, request):
        plural = request.match_info["plural"]
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.Event().wait()
        if plural == "pods":
            await self.open.wait()
        items = [node("a"), node("b")] if plural == "nodes" else []
        return web.json_response({"metadata": {"resourceVersion": "5"}, "items": items})


@pytest.fixture
async def api():
    async with Api() as api:
        yield api


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def get(session, url):
    async with session.get(url) as answer:
        return answer.status, await answer.text()


async def ask(port, cluster="member1"):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
        data = await call(asks(cluster).SerializeToString(), timeout=10)
        return pb.MaxAvailableReplicasResponse.FromString(data).max_replicas


async def test_endpoints_answer_before_the_cluster_is_counted(api):
    health = free_port()
    stop, started = Stop(), asyncio.Queue()
    flags = {
        "cluster-name": "member1",
        "master": api.url,
        "server-port": 0,
        "metrics-bind-address": "0",
        "health-probe-bind-address": f"127.0.0.1:{health}",
    }
    async with asyncio.timeout(20), asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        group.create_task(
            run_process(CONTROLLER, read_options(EstimatorOptions, flags), stop, ready=started.put_nowait)
        )
        running = await started.get()
        base = f"http://127.0.0.1:{health}"
        for path in ("healthz", "livez"):
            assert await get(session, f"{base}/{path}") == (200, "ok\n")
        status, text = await get(session, f"{base}/readyz")
        assert status == 503
        assert "pods were not listed yet" in text
        with pytest.raises(grpc.RpcError) as refused:
            await ask(running.server.port)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

        api.open.set()
        while (await get(session, f"{base}/readyz"))[0] != 200:
            pass
        assert await ask(running.server.port) == 8
        status, text = await get(session, f"{base}/metrics")
        assert status == 200
        assert 'karpool_estimator_cluster_synced{cluster="member1"} 1.0' in text
        stop.set()


@pytest.mark.parametrize("flag", ["metrics-bind-address", "health-probe-bind-address", "server-port"])
async def test_a_port_that_is_taken_ends_the_process(api, flag):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = {"metrics-bind-address": "0", "health-probe-bind-address": "0", "server-port": 0}
        flags |= {flag: port if flag == "server-port" else f"127.0.0.1:{port}"}
        options = read_options(EstimatorOptions, {"cluster-name": "c", "master": api.url, **flags})
        with pytest.raises(OSError, match=str(port)):
            await run_process(CONTROLLER, options, Stop())


def test_flags_that_cannot_work_are_refused():
    with pytest.raises(InvalidOptions, match="clusterName cannot be empty"):
        read_options(EstimatorOptions, {})


@pytest.mark.long
async def test_sigterm_lets_calls_finish_and_ends_the_process(api):
    api.open.set()
    flags = ["--cluster-name=member1", f"--master={api.url}", "--server-port=0", "--v=1"]
    flags += ["--metrics-bind-address=0", "--health-probe-bind-address=0"]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "karpool.cli.main",
        "estimator",
        *flags,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    async with asyncio.timeout(40):
        lines = []
        while not (found := re.search(r"listening on port (\d+)", "".join(lines))):
            lines.append((await child.stderr.readline()).decode())
            assert lines[-1], lines
        port = int(found[1])
        answer = None
        while answer is None:
            try:
                answer = await ask(port)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert answer == 8
        child.send_signal(signal.SIGTERM)
        rest = (await child.stderr.read()).decode()
        assert await child.wait() == 0
    assert "Traceback" not in rest


@pytest.mark.long
async def test_a_fleet_is_served_from_one_kubeconfig(tmp_path):
    worlds = {"east": World(), "west": World()}
    await worlds["east"].add(node("a"))
    await worlds["west"].add(node("a"), node("b"))
    listening = {name: await serve(world.server) for name, world in worlds.items()}
    config = {
        "clusters": [{"name": name, "cluster": {"server": each.url}} for name, each in listening.items()],
        "contexts": [{"name": name, "context": {"cluster": name}} for name in listening],
    }
    path = tmp_path / "members.yaml"
    path.write_text(json.dumps(config))
    stop, started = Stop(), asyncio.Queue()
    flags = {"fleet": True, "kubeconfig": str(path), "server-port": 0}
    flags |= {"metrics-bind-address": "0", "health-probe-bind-address": "0"}
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(
            run_process(CONTROLLER, read_options(EstimatorOptions, flags), stop, ready=started.put_nowait)
        )
        running = await started.get()
        assert list(running.members) == ["east", "west"]
        for name, room in (("east", 4), ("west", 8)):
            while (answer := await ask(running.server.port, name)) == -1:
                pass
            assert answer == room
        stop.set()
    for each in listening.values():
        await each.close()
