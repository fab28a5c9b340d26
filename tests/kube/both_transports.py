"""The embedded server through both transports, and tasks that end with their test."""

import asyncio
from contextlib import asynccontextmanager, suppress

from karpool.kube.config.kubeconfig import ClusterConfig, DataOrFile, KubeUser
from karpool.kube.transport.http import HttpTransport
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from tests.kube.loopback import AUTHORITY, server_context

TOKEN = "integration-token"


@asynccontextmanager
async def over_https(server):
    tls = server_context(AUTHORITY.issue("server", hosts=["127.0.0.1"]))
    listening = await serve(server, tls=tls, token=TOKEN)
    config = ClusterConfig(
        "test", listening.url, ca=DataOrFile(data=AUTHORITY.pem), user=KubeUser(token=TOKEN)
    )
    transport = HttpTransport(config, env={})
    try:
        yield transport
    finally:
        await transport.close()
        await listening.close()


@asynccontextmanager
async def in_process(server):
    try:
        yield InProcessTransport(server)
    finally:
        await server.close()


BOTH = {"in process": in_process, "https": over_https}


@asynccontextmanager
async def running(*coroutines):
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
