"""A real HTTPS server on loopback that notes who called."""

import ssl
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.kube.pki import Authority


class Loopback:
    def __init__(self):
        self.calls = []  # (authorization header, common name of the client certificate, request)
        self.connections = set()
        self.accepts = lambda authorization: True
        self.handler = None
        self.url = ""

    async def _handle(self, request):
        peer = request.transport.get_extra_info("peercert") or {}
        names = [value for part in peer.get("subject", ()) for key, value in part if key == "commonName"]
        authorization = request.headers.get("authorization", "")
        self.connections.add(request.transport.get_extra_info("peername"))
        self.calls.append((authorization, names[0] if names else "", request))
        if not self.accepts(authorization):
            message = f"not you: {authorization}"  # a careless server, or a proxy in front of it
            body = {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": message}
            return web.json_response(body, status=401)
        if self.handler is not None:
            return await self.handler(request)
        return web.json_response({"gitVersion": "v1.34.0", "metadata": {"name": "x"}})

    @property
    def authorizations(self):
        return [authorization for authorization, _, _ in self.calls]

    @property
    def names(self):
        return [name for _, name, _ in self.calls]


@asynccontextmanager
async def serving(authority=None, *, pair=None, client_ca=None, require_client=False):
    """HTTPS with a certificate of `authority` (or `pair`); plain HTTP without either."""
    loopback = Loopback()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", loopback._handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    context = None
    if authority or pair:
        context = server_context(pair or authority.issue("server", hosts=["127.0.0.1", "localhost"]))
        if client_ca is not None:
            context.load_verify_locations(cadata=client_ca.decode())
            context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    loopback.url = f"{'https' if context else 'http'}://127.0.0.1:{port}"
    try:
        yield loopback
    finally:
        await runner.cleanup()


def server_context(pair):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pair.pem"
        path.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(path)
    return context


AUTHORITY = Authority()
