"""A server on HTTPS in a thread of its own, and the kubeconfig that leads to it."""

import asyncio
import datetime
import ipaddress
import json
import ssl
import threading
import urllib.request
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from karpool.fleet.apiserver.http import Listening, serve
from karpool.fleet.apiserver.server import Answer, ApiServer, Handler
from karpool.kube.clock import RealClock
from karpool.kube.transport import Request, Response

TOKEN = "kubectl-tests"


class RunningServer:
    """Serves until `stop`; `send` plays the part of kubelets and controllers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watching = threading.Condition()
        self._watched: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api server")
        certificate, key = _certificate()
        (folder / "tls.pem").write_bytes(key + certificate)
        self._trust = ssl.create_default_context(cadata=certificate.decode())
        self._ca = folder / "ca.pem"
        self._ca.write_bytes(certificate)
        self._thread.start()
        self._listening: Listening = self._call(self._start())
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._config()))

    async def _start(self) -> Listening:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "tls.pem")
        server = ApiServer(RealClock())
        server.around = self._note_watches
        return await serve(server, tls=context, token=TOKEN)

    async def _note_watches(self, request: Request, handle: Handler) -> Answer:
        answer = await handle(request)
        if not isinstance(answer, Response):
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
        self._call(self._listening.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _config(self) -> dict[str, Any]:
        cluster = {"server": self._listening.url, "certificate-authority": str(self._ca)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "admin"}}],
            "current-context": "embedded",
        }

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

    def set_status(self, path: str, status: dict[str, Any]) -> None:
        self.send("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")


def _certificate() -> tuple[bytes, bytes]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "karpool tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
