"""`karpool apiserver` serves until told to stop."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from karpool.kube.api.client import Client
from karpool.kube.config.kubeconfig import load
from karpool.kube.transport.http import HttpTransport
from karpool.model.catalogue.files import load_shipped
from karpool.model.kubernetes.api_resources import CONFIGMAPS
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.clusters.object_loader import load_objects
from tests.cli.example_fleet import example_fleet

KARPOOL = [sys.executable, "-m", "karpool.cli.main"]


async def start_apiserver(folder: Path, *more: str) -> asyncio.subprocess.Process:
    """A server that is ready: its kubeconfig is written and it has said where it listens."""
    process = await asyncio.create_subprocess_exec(
        *KARPOOL,
        "apiserver",
        "--write-kubeconfig",
        str(folder / "kubeconfig"),
        *more,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        said = b""
        while b"try: kubectl" not in said:
            line = await process.stderr.readline()
            assert line, said
            said += line
    return process


async def karpool(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(*KARPOOL, *arguments, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.mark.long
async def test_a_snapshot_of_a_served_cluster_answers_like_the_cluster(tmp_path: Path) -> None:
    server = await start_apiserver(tmp_path)
    try:
        saved, kubeconfig = str(tmp_path / "saved.gz"), str(tmp_path / "kubeconfig")
        async with Client(HttpTransport(load(tmp_path / "kubeconfig"))) as client:
            fleet = [*bundled_crds(KARPENTER), *example_fleet(load_shipped("us-east-1"))]
            await load_objects(client, fleet)
        status, said = await karpool("snapshot", "--kubeconfig", kubeconfig, "-o", saved)
        assert (status, said.split(":")[0]) == (0, saved)
        live = await karpool("top", "--kubeconfig", kubeconfig, "-o", "json")
        file = await karpool("top", "--snapshot", saved, "-o", "json")
    finally:
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0

    assert live == file
    assert len(json.loads(live[1])["items"]) == 7


async def test_a_server_ends_cleanly_when_its_terminal_closes(tmp_path: Path) -> None:
    # Under nohup, as servers of a CI may be, the signal is ignored, and that is inherited and heeded.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        server = await start_apiserver(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    server.send_signal(signal.SIGHUP)

    assert await server.wait() == 0


@pytest.mark.long
async def test_a_data_dir_keeps_token_and_objects_over_kill_9(tmp_path: Path) -> None:
    data = ["--data-dir", str(tmp_path / "data")]
    server = await start_apiserver(tmp_path, *data)
    async with Client(HttpTransport(load(tmp_path / "kubeconfig"))) as client:
        await client.create(CONFIGMAPS, {"metadata": {"name": "kept", "namespace": "default"}})
        server.kill()
        await server.wait()

    server = await start_apiserver(tmp_path, *data)
    async with Client(HttpTransport(load(tmp_path / "kubeconfig"))) as client:
        found = await client.get(CONFIGMAPS, "kept", namespace="default")
    server.send_signal(signal.SIGINT)

    assert await server.wait() == 0
    assert found["metadata"]["name"] == "kept"


async def test_a_second_server_on_the_same_data_is_told_who_has_it(tmp_path: Path) -> None:
    first = await start_apiserver(tmp_path, "--data-dir", str(tmp_path / "data"))
    arguments = ["--write-kubeconfig", str(tmp_path / "other"), "--data-dir", str(tmp_path / "data")]
    second = await asyncio.create_subprocess_exec(
        *KARPOOL, "apiserver", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, said = await second.communicate()
    first.send_signal(signal.SIGTERM)

    assert await first.wait() == 0
    assert second.returncode == 1
    assert said.decode().splitlines() == [
        f"error: data directory {tmp_path / 'data'} is in use by process {first.pid};"
        " stop it, or use another directory"
    ]
