"""The certificate of the dashboard, reloaded when its files change."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from karpool.kube.clock import Clock
from karpool.model.errors import Invalid
from karpool.wire.server_tls import stamp

log = structlog.get_logger(__name__)

RELOAD_SECONDS = 30.0  # kubelets take a minute to update a mounted secret


class ReloadingCertificate:
    """A certificate and its key. A renewal that is not valid is reported, and the last valid pair stays."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the pair. Raises Invalid."""
        self._files = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._stamp = stamp(self._files)
            self.context.load_cert_chain(*self._files)
        except (ssl.SSLError, OSError) as error:
            raise Invalid("--tls-cert-file", f"{certificate} and {key}", f"cannot be used: {error}") from None

    def renew(self) -> None:
        try:
            files_stamp = stamp(self._files)
            if files_stamp == self._stamp:
                return
            self._stamp = files_stamp
            # Load into a context of its own first: an incomplete pair must not affect the server.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except (ssl.SSLError, OSError) as error:
            log.warning("renewed certificate not used", certificate=str(self._files[0]), reason=str(error))
            return
        log.info("certificate reloaded", certificate=str(self._files[0]))

    @contextlib.asynccontextmanager
    async def renewing(self, clock: Clock) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow(clock), name="certificate")
        try:
            yield
        finally:
            task.cancel()

    async def _follow(self, clock: Clock) -> None:
        while True:
            await clock.sleep(RELOAD_SECONDS)
            self.renew()
