"""A server on HTTPS in a thread of its own, and the kubeconfig that leads to it."""

import asyncio
import json
import ssl
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from karpool.kube.clock import RealClock
from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.serve.http import Listening, serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.apiserver.serve.server import Answer, ApiServer, Handler
from karpool_fleet.apiserver.serve.tls import in_directory, server_context

TOKEN = "kubectl-tests"


class RunningServer:
    """Serves until `stop`; `send` plays the part of kubelets and controllers."""

    def __init__(self, folder: Path) -> None:
        self._watching = threading.Condition()
        self._watched: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api server")
        certificate = in_directory(folder / "pki", RealClock())
        self._trust = ssl.create_default_context(cadata=certificate.ca_pem.decode())
        self._thread.start()
        self._listening: Listening = self._call(self._start(server_context(certificate)))
        self.kubeconfig = folder / "kubeconfig"
        entry = EmbeddedClusterEntry("embedded", self._listening.url, token=TOKEN, ca_pem=certificate.ca_pem)
        write_kubeconfig(self.kubeconfig, [entry])

    async def _start(self, context: ssl.SSLContext) -> Listening:
        server = ApiServer(RealClock(), track_fields=True)
        server.around = self._note_watches
        return await serve(server, tls=context, token=TOKEN)

    async def _note_watches(self, request: HttpRequest, handle: Handler) -> Answer:
        answer = await handle(request)
        if not isinstance(answer, HttpResponse):
            with self._watching:
                self._watched.append(request.path)
                self._watching.notify_all()
        return answer

    def wait_for_watch(self, path: str) -> None:
        """Return once somebody has watched `path` since the last call."""
        with self._watching:
            assert self._watching.wait_for(lambda: path in self._watched, timeout=20), f"no watch of {path}"
            self._watched.clear()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def stop(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """One request, decoded; raises urllib's HTTPError for error codes."""
        request = urllib.request.Request(
            self._listening.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {TOKEN}", "content-type": content_type},
        )
        with urllib.request.urlopen(request, context=self._trust, timeout=10) as response:
            return json.loads(response.read() or b"{}")

    async def _close(self) -> None:
        """Close, and cut connections whose clients keep them: TLS would wait for their goodbye."""
        server = self._listening._runner.server
        assert server is not None
        transports = [handler.transport for handler in server.connections if handler.transport]
        await self._listening.close()
        for transport in transports:
            with suppress(AttributeError):  # Python 3.11.2 cannot cut one that said goodbye in time
                transport.abort()
        for _ in range(3):  # their sockets close in the rounds that follow
            await asyncio.sleep(0)

    def set_status(self, path: str, status: dict[str, Any]) -> None:
        self.send("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")
