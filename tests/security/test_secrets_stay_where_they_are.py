"""Canaries: a word in every place where people keep secrets, and nowhere in what we say or write.

All controllers and commands work on one cluster, over HTTP with a token, at the highest verbosity; then
every log line, event, object, metric, snapshot, plan and error message is searched.
"""

import asyncio
import gzip
import json
import socket
import tarfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from karpool.cli import logging
from karpool.cli.main import run as command
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.consolidation.process import CONSOLIDATOR
from karpool.dashboard.api.endpoints import ENDPOINTS
from karpool.dashboard.server.app import dashboard
from karpool.estimator.process import ESTIMATOR
from karpool.estimator.serving.options import EstimatorOptions
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.gpu.process import GPU_SCALER
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig as kubeconfig_of
from karpool.kube.transport.http import HttpTransport
from karpool.manager.manager import run_process
from karpool.manager.options import read_options
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    CRDS,
    DAEMONSETS,
    DEPLOYMENTS,
    EC2NODECLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCEBINDINGS,
    STATEFULSETS,
    ApiResource,
)
from karpool.scheduler.controller.options import DeschedulerOptions, SchedulerOptions
from karpool.scheduler.descheduler_process import DESCHEDULER
from karpool.scheduler.process import SCHEDULER
from karpool_fleet.apiserver.kinds.bundled_crds import bundled_crds
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.estimator.serving import node
from tests.gpu.whole import worker
from tests.scheduler.acting import binding

CANARY = "canary51c2f00d"
TOKEN = f"token-{CANARY}"
SECRETS = ApiResource("", "v1", "secrets", "Secret", namespaced=True)


_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
NODE_CLASSES = {
    "metadata": {"name": "ec2nodeclasses.karpenter.k8s.aws"},
    "spec": {
        "group": EC2NODECLASSES.group,
        "names": {"plural": EC2NODECLASSES.plural, "kind": EC2NODECLASSES.kind},
        "scope": "Cluster",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _OPEN}}],
    },
}


def telling(obj: dict[str, Any]) -> dict[str, Any]:
    """The same, with canaries where a container, a volume or a tool keeps secrets."""
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"env": CANARY})}
    obj["metadata"].setdefault("annotations", {}).update(applied)
    spec = obj["spec"]
    for container in spec["containers"]:
        container["env"] = [{"name": "PASSWORD", "value": CANARY}]
        container["args"] = [f"--password={CANARY}"]
        container["command"] = ["sh", "-c", CANARY]
        container["lifecycle"] = {"preStop": {"exec": {"command": [CANARY]}}}
    driver = {"driver": "csi.example", "volumeAttributes": {"secret": CANARY}}
    spec["volumes"] = [{"name": "v", "csi": driver}]
    return obj


def pod(name: str, on: str = "", cpu: str = "1") -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], **({"nodeName": on} if on else {})}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def templated(kind: str, **more: Any) -> dict[str, Any]:
    """A workload whose pods keep secrets."""
    template = telling({"metadata": {"labels": {"app": "w"}}, "spec": pod("w")["spec"]})
    template["metadata"].pop("annotations")
    spec = {"selector": {"matchLabels": {"app": "w"}}, "template": template, **more}
    return {"kind": kind, "metadata": {"name": "w", "namespace": "default"}, "spec": spec}


async def populated(client: Client) -> None:
    for crd in (*bundled_crds(), NODE_CLASSES):
        await client.create(CRDS, crd)
    for name in ("karmada-system", "karpool-system"):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    for name in ("n1", "n2"):
        made = node(name)
        await client.create(NODES, made)
        await client.patch(NODES, name, {"status": made["status"]}, subresource="status")
    for each in (pod("bound", on="n1"), pod("waits", cpu="64"), worker("gpu", gpupool="nowhere")):
        await client.create(PODS, telling(each))
    for resource, kind in ((DEPLOYMENTS, "Deployment"), (STATEFULSETS, "StatefulSet")):
        await client.create(resource, templated(kind, replicas=1))
    await client.create(DAEMONSETS, templated("DaemonSet"))
    node_class = {"userData": f"token={CANARY}", "role": "nodes"}
    await client.create(EC2NODECLASSES, {"metadata": {"name": "default"}, "spec": node_class})
    meta = {"name": "s", "namespace": "default"}
    await client.create(SECRETS, {"metadata": meta, "stringData": {"password": CANARY}})
    await client.create(CONFIGMAPS, {"metadata": meta, "data": {"application.yaml": f"password: {CANARY}"}})
    await client.create(RESOURCEBINDINGS, binding("web"))


def kubeconfig(path: Path, url: str, token: str) -> Path:
    config = {
        "clusters": [{"name": "east", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "east", "context": {"cluster": "east", "user": "u"}}],
        "current-context": "east",
    }
    path.write_text(json.dumps(config))
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def all_log_lines() -> Iterator[None]:
    before = structlog.get_config()
    logging.configure(10, as_json=True)
    yield
    structlog.configure(**before)


class Heard:
    """Everything that was said, by where."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def leaks(self) -> list[str]:
        return [where for where, text in self.texts.items() if CANARY in text]


async def controllers(config: Path, client: Client, heard: Heard) -> None:
    """All of them, until each has looked at everything; then what their metrics say."""
    ports = {name: free_port() for name in ("estimator", "scheduler", "descheduler", "consolidator", "gpu")}
    stop = Stop()
    flags = {"kubeconfig": str(config), "metrics-bind-address": "0"}
    probes = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        group.create_task(
            run_process(
                ESTIMATOR,
                read_options(
                    EstimatorOptions,
                    {
                        **flags,
                        "cluster-name": "east",
                        "server-port": 0,
                        "health-probe-bind-address": probes["estimator"],
                        "node-capacity-providers": ("karpenter",),
                    },
                ),
                stop,
            )
        )
        scheduling = read_options(
            SchedulerOptions, {**flags, "health-probe-bind-address": probes["scheduler"]}
        )
        group.create_task(run_process(SCHEDULER, scheduling, stop))
        group.create_task(
            run_process(
                DESCHEDULER,
                read_options(
                    DeschedulerOptions, {**flags, "health-probe-bind-address": probes["descheduler"]}
                ),
                stop,
            )
        )
        options = read_options(
            ConsolidatorOptions,
            {
                **flags,
                "health-probe-bind-address": probes["consolidator"],
                "region": "us-east-1",
                "interval": "1s",
            },
        )
        group.create_task(run_process(CONSOLIDATOR, options, stop))
        scaler = read_options(
            GpuScalerOptions,
            {**flags, "health-probe-bind-address": probes["gpu"], "region": "us-east-1"},
        )
        group.create_task(run_process(GPU_SCALER, scaler, stop))
        async with asyncio.timeout(120):
            while not await is_told(client):  # noqa: ASYNC110 - what is waited for is a state
                await asyncio.sleep(0.1)
            for name, port in ports.items():
                heard.texts[f"metrics of {name}"] = await metrics(session, port)
        stop.set()


async def page(config: Path, heard: Heard) -> None:
    """Every answer of the dashboard, to those who may look and to others."""
    loaded = kubeconfig_of.load(config)
    names = {
        "cluster": "east",
        "node": "n1",
        "namespace": "default",
        "name": "web-deployment",
        "move": "none",
    }
    async with (
        Client(HttpTransport(loaded), name="east") as client,
        dashboard({"east": client}, token=TOKEN) as served,
        aiohttp.ClientSession() as session,
    ):
        heard.texts["link of the dashboard"] = served.url
        while served.collector.not_ready() is not None:  # noqa: ASYNC110 - what is waited for is a state
            await asyncio.sleep(0.05)
        paths = [endpoint.path.format(**names) for endpoint in ENDPOINTS]
        for path in (*paths, "/", "/metrics", "/openapi.json", "/readyz?verbose"):
            for headers in ({"Authorization": f"Bearer {TOKEN}"}, {}):
                async with session.get(f"{served.url}{path[1:]}", headers=headers) as answer:
                    heard.texts[f"dashboard {path} {answer.status}"] = await answer.text()


async def is_told(client: Client) -> bool:
    found = await client.get(PODS, "gpu", namespace="default")
    return bool(found.get("status", {}).get("conditions"))


async def metrics(session: aiohttp.ClientSession, port: int) -> str:
    while True:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            if answer.status == 200:
                break
        await asyncio.sleep(0.05)
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        return await answer.text()


def said_by(*arguments: str) -> str:
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = command(["-v10", "--log-format=json", *arguments], "karpool")
    return f"{out.getvalue()}\nexit {code}"


def bundled(path: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                data = file.read()
                text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
                found[f"bundle: {member.name}"] = text.decode()
    return found


@pytest.mark.long
@pytest.mark.timeout(180)  # everything there is runs at once
async def test_no_canary_is_ever_heard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ApiServer(RealClock())
    client = Client(InProcessTransport(server), qps=None)
    await populated(client)
    listening = await serve(server, token=TOKEN)
    config = kubeconfig(tmp_path / "config", listening.url, TOKEN)
    wrong = kubeconfig(tmp_path / "wrong", listening.url, f"other-{CANARY}")
    broken = tmp_path / "broken"
    broken.write_text(f"users: [{{name: u, user: {{token: {CANARY}, password: [{CANARY}}}]\nx: {CANARY}: y")
    workload = tmp_path / "pod.json"
    workload.write_text(json.dumps({"kind": "Pod", "apiVersion": "v1", **telling(pod("asks", cpu="2"))}))
    saved, bundle = tmp_path / "saved.gz", tmp_path / "bundle.tar.gz"
    heard = Heard()

    await controllers(config, client, heard)
    await page(config, heard)
    live = ("--kubeconfig", str(config))
    for arguments in (
        ("snapshot", *live, "-o", str(saved)),
        ("support-bundle", *live, "-o", str(bundle)),
        ("top", *live, "-o", "json"),
        ("capacity", *live, "-f", str(workload), "-o", "json"),
        ("plan", *live, "-o", "json"),
        ("plan", *live, "-o", "html"),
        ("explain", "node", "n1", *live, "-o", "json"),
        ("explain", "binding", "default/web-deployment", *live, "-o", "json"),
        ("get", "promises", *live, "-o", "json"),
        ("top", "--kubeconfig", str(wrong)),
        ("top", "--kubeconfig", str(broken)),
        ("top", "--snapshot", str(broken)),
    ):
        heard.texts[" ".join(arguments)] = await asyncio.to_thread(said_by, *arguments)
    heard.texts |= bundled(bundle)
    heard.texts["snapshot"] = gzip.decompress(saved.read_bytes()).decode()
    structlog.get_logger("tests").debug("even this is heard")
    heard.texts["log"] = capsys.readouterr().err
    for resource in (EVENTS, RESOURCEBINDINGS):
        heard.texts[str(resource)] = json.dumps((await client.list(resource)).items)
    records = [each for each in (await client.list(CONFIGMAPS)).items if each["metadata"]["name"] != "s"]
    heard.texts["our records"] = json.dumps(records)
    await listening.close()
    await server.close()

    assert heard.leaks() == []
    # Everything was really said and seen, or the search would prove nothing.
    assert "exit 0" in heard.texts[" ".join(("top", *live, "-o", "json"))]
    assert '"bound"' in heard.texts["snapshot"] and "PASSWORD" in heard.texts["snapshot"]
    assert any('"bound"' in text for where, text in heard.texts.items() if where.startswith("bundle: "))
    assert "even this is heard" in heard.texts["log"] and "karpool.scheduler" in heard.texts["log"]
    assert all("karpool_build_info" in text for where, text in heard.texts.items() if "metrics of" in where)
    pages = {where for where in heard.texts if where.startswith("dashboard ")}
    assert {where for where in pages if where.endswith(" 404")} == {
        "dashboard /api/v1/clusters/east/moves/none 404"
    }
    assert len([where for where in pages if where.endswith(" 401")]) == len(ENDPOINTS) + 1
    assert 'default/bound"' in heard.texts["dashboard /api/v1/clusters/east/nodes/n1 200"]
    assert all(f'"{kind}"' in heard.texts["snapshot"] for kind in ("Deployment", "EC2NodeClass"))
    assert "ScheduleBindingFailed" in heard.texts[str(EVENTS)]
