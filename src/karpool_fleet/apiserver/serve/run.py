"""Runs an API server until told to stop, with certificates, token, journal and kubeconfig.

With a data directory, objects, authority and token survive restarts, so clients stay valid. Without one, all
of it lives as long as the process.
"""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.clock import Clock, RealClock
from karpool.kube.errors import ConfigError
from karpool_fleet.apiserver.serve import tls as certificates
from karpool_fleet.apiserver.serve.http import Listening, serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.apiserver.serve.private_files import write_private
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.apiserver.storage.journal import Journal

CONTEXT = "karpool"
_TOKEN_FILE = "token"  # noqa: S105 - the name of a file
_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The address and credentials of a running server."""

    url: str
    port: int
    token: str = field(repr=False)
    ca_pem: str  # "" without TLS
    kubeconfig: Path | None
    server: ApiServer


async def run_apiserver(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    kubeconfig: Path | None = None,
    data_dir: Path | None = None,
    token: str | None = None,
    tls: bool = True,
    ready: Callable[[RunningServer], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set; `ready` is called once, when clients can connect.

    Without a `token` one is generated; it is always required. Raises OSError when the port cannot be used,
    ConfigError or JournalError when a file cannot be used.
    """
    clock = RealClock()
    # First, since it locks the directory: a second server must not touch the files of the first.
    journal = Journal(data_dir) if data_dir is not None else None
    server = ApiServer(clock, journal=journal, track_fields=True)
    try:
        secret = token or _kept_token(data_dir)
        context, authority = _certificate(host, data_dir, clock) if tls else (None, b"")
        listening = await _listen(server, host, port, context, secret)
    except BaseException:
        await server.close()
        raise
    try:
        reached = _reachable(listening.url, host)
        if kubeconfig is not None:
            entry = EmbeddedClusterEntry(CONTEXT, reached, secret, authority)
            write_kubeconfig(kubeconfig, [entry])
        ready(RunningServer(reached, listening.port, secret, authority.decode(), kubeconfig, server))
        await stop.wait()
    finally:
        await listening.close()


def read_token(path: Path) -> str:
    """Read a bearer token from a file; raises ConfigError for a token that no client can send."""
    try:
        token = read_bounded(path, CREDENTIAL_LIMIT).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"token file {path}: cannot be read as text; name a file with one token") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"token file {path}: contains no token: one word without spaces is expected")
    return token


async def _listen(
    server: ApiServer, host: str, port: int, context: ssl.SSLContext | None, secret: str
) -> Listening:
    try:
        return await serve(server, host=host, port=port, tls=context, token=secret)
    except OSError as error:
        reason = (error.strerror or str(error)).rpartition(": ")[2].lower()
        where = f"port {port} of {host}" if port else host
        raise OSError(f"cannot listen on {where}: {reason}; choose another port or address") from error


def _kept_token(data_dir: Path | None) -> str:
    """Return the token of a data directory, created on first use; a new one without a directory."""
    if data_dir is None:
        return secrets.token_urlsafe(32)
    path = data_dir / _TOKEN_FILE
    if path.exists():
        return read_token(path)
    made = secrets.token_urlsafe(32)
    write_private(path, made.encode())
    return made


def _certificate(host: str, data_dir: Path | None, clock: Clock) -> tuple[ssl.SSLContext, bytes]:
    hosts = list(certificates.LOOPBACK)
    if host not in hosts and host not in _WILDCARDS:
        hosts.append(host)
    if data_dir is None:
        made = certificates.in_memory(clock, hosts)
    else:
        made = certificates.in_directory(data_dir, clock, hosts)
    return certificates.server_context(made), made.ca_pem


def _reachable(url: str, host: str) -> str:
    """Return the address for a kubeconfig: loopback instead of a wildcard."""
    if host in _WILDCARDS:
        scheme, _, rest = url.partition("://")
        return f"{scheme}://127.0.0.1:{rest.rpartition(':')[2]}"
    return url
