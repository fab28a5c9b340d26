"""Serves the API servers of a fleet over HTTPS, with one context each in one kubeconfig."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from karpool.kube.clock import RealClock
from karpool_fleet.apiserver.serve import tls as certificates
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.clusters.fleet import EmbeddedFleet


@asynccontextmanager
async def served(
    fleet: EmbeddedFleet, kubeconfig: Path, *, host: str = "127.0.0.1"
) -> AsyncIterator[dict[str, str]]:
    """Serve every cluster over HTTPS with one token; yields the addresses by cluster."""
    certificate = certificates.in_memory(RealClock(), certificates.LOOPBACK)
    token = secrets.token_urlsafe(32)
    async with AsyncExitStack() as stack:
        entries: list[EmbeddedClusterEntry] = []
        for name, cluster in fleet.api_servers.items():
            context = certificates.server_context(certificate)
            listening = await serve(cluster.server, host=host, tls=context, token=token)
            stack.push_async_callback(listening.close)
            entries.append(EmbeddedClusterEntry(name, listening.url, token, certificate.ca_pem))
        write_kubeconfig(kubeconfig, entries)
        yield {entry.name: entry.server for entry in entries}
