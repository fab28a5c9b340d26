"""The embedded server through both transports, and tasks that end with their test."""

import asyncio
from contextlib import asynccontextmanager, suppress

from karpool.fleet.apiserver.http import serve
from karpool.fleet.apiserver.inprocess import InProcess
from karpool.kube.http import HttpTransport
from karpool.kube.kubeconfig import ClusterConfig, Source, User
from tests.kube.loopback import AUTHORITY, server_context

TOKEN = "integration-token"


@asynccontextmanager
async def over_https(server):
    tls = server_context(AUTHORITY.issue("server", hosts=["127.0.0.1"]))
    listening = await serve(server, tls=tls, token=TOKEN)
    config = ClusterConfig("test", listening.url, ca=Source(data=AUTHORITY.pem), user=User(token=TOKEN))
    transport = HttpTransport(config, env={})
    try:
        yield transport
    finally:
        await transport.close()
        await listening.close()


@asynccontextmanager
async def in_process(server):
    try:
        yield InProcess(server)
    finally:
        await server.close()


BOTH = {"in process": in_process, "https": over_https}


@asynccontextmanager
async def running(*coroutines):
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
