"""The whole server as a person starts it: HTTPS, a token, a kubeconfig, data that stays."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from karpool.kube.errors import ConfigError
from karpool_fleet.apiserver.serve.run import RunningServer, run_apiserver
from tests.apiserver.serving import CONFIG_MAPS, config_map


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[RunningServer]:
    stop = asyncio.Event()
    started: asyncio.Future[RunningServer] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_apiserver(ready=started.set_result, stop=stop, **options))
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    yield started.result()
    stop.set()
    await task


def session(server: RunningServer) -> aiohttp.ClientSession:
    trust = ssl.create_default_context(cadata=server.ca_pem) if server.ca_pem else True
    headers = {"Authorization": f"Bearer {server.token}"}
    return aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(ssl=trust))


async def test_a_client_with_the_kubeconfig_is_served_over_tls(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with running(kubeconfig=path) as server:
        config = yaml.safe_load(path.read_text())
        assert config["clusters"][0]["cluster"]["server"] == server.url
        assert config["users"][0]["user"]["token"] == server.token
        async with session(server) as client:
            async with client.post(CONFIG_MAPS, json=config_map("a")) as answer:
                assert answer.status == 201
            async with client.get(CONFIG_MAPS, headers={"Authorization": "Bearer guess"}) as answer:
                assert answer.status == 401
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with aiohttp.ClientSession() as stranger:
                await stranger.get(server.url)


async def test_a_data_directory_keeps_objects_token_and_authority(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with (
        running(data_dir=data) as first,
        session(first) as client,
        client.post(CONFIG_MAPS, json=config_map("kept")) as answer,
    ):
        made = await answer.json()
    async with running(data_dir=data, port=first.port) as second, session(first) as client:
        assert (second.token, second.ca_pem) == (first.token, first.ca_pem)
        async with client.get(f"{CONFIG_MAPS}/kept") as answer:
            assert await answer.json() == made


async def test_plain_http_when_asked_for(tmp_path: Path) -> None:
    async with running(tls=False, token="mine") as server, session(server) as client:
        assert server.url.startswith("http://127.0.0.1:") and server.token == "mine"
        async with client.get("/api/v1/namespaces") as answer:
            assert answer.status == 200


async def test_a_port_that_is_taken_is_an_error_and_frees_the_data(tmp_path: Path) -> None:
    async with running() as server:
        for _ in range(2):  # the second attempt finds the directory unlocked
            with pytest.raises(OSError, match="in use"):
                async with running(port=server.port, data_dir=tmp_path / "data"):
                    pass


async def test_an_address_that_cannot_be_had_is_named() -> None:
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1: .*; choose another port or address"):
        async with running(host="192.0.2.1"):
            pass


async def test_a_device_is_not_replaced_by_a_kubeconfig(tmp_path: Path) -> None:
    pipe = tmp_path / "kubeconfig"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="not a regular file"):
        async with running(kubeconfig=pipe):
            pass
    assert pipe.is_fifo()
