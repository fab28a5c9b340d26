"""Current credentials: tokens, token files, passwords, certificates and exec plugins.

`current` returns what the next request carries. Files are read again when they change, and at least once a
minute. Plugins run again when their credential expires or the server refuses it. When the kubeconfig is
rewritten, its new user is used. No secret is ever logged.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.clock import Clock
from karpool.kube.config.exec_plugin import ExecCredential, run_plugin
from karpool.kube.config.kubeconfig import ClusterConfig, DataOrFile, KubeUser
from karpool.kube.errors import ConfigError

log = structlog.get_logger(__name__)
REREAD_SECONDS = 60.0  # a projected token lives an hour; kubelets replace it after 80 % of that
EXPIRY_MARGIN = 10.0  # renew a little before the end, so that a request in flight still passes


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """`headers` may repeat a name (impersonated groups)."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # removed from every text that is shown


def _stamps(files: Sequence[Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return the stat of each file, which changes with every write; None for a file that does not exist."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


class RotatingFile:
    """A file's content, read again when its time stamp changes or a minute has passed."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._content: bytes | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._read_at = 0.0

    def read(self) -> bytes:
        """Return the content. If the file is missing while it is replaced, the last content is returned."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            fresh = self._clock.monotonic() - self._read_at < REREAD_SECONDS
            if self._content is not None and stamp == self._stamp and fresh:
                return self._content
            content = read_bounded(self._path, CREDENTIAL_LIMIT)
        except OSError as error:
            if self._content is not None:
                return self._content
            raise ConfigError(f"{self._path}: {error.strerror}; check the path and its permissions") from None
        self._content, self._stamp, self._read_at = content, stamp, self._clock.monotonic()
        return content


class DataOrFileReader:
    """Reads a `DataOrFile`, whether it is data or a file."""

    def __init__(self, source: DataOrFile, clock: Clock) -> None:
        self._data = source.data
        self._file = RotatingFile(source.path, clock) if source.path is not None and not source.data else None

    def read(self) -> bytes:
        return self._file.read() if self._file is not None else self._data


class KubeCredentials:
    def __init__(self, config: ClusterConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._stamps = _stamps(config.files)
        self._use(config.user)
        self._asking = asyncio.Lock()  # a hundred concurrent requests start the plugin once

    async def current(self) -> RequestIdentity:
        """Return the identity for the next request. Raises ConfigError if there are no credentials."""
        self._see_kubeconfig()
        token, certificate, key = self._token(), self._certificate.read(), self._key.read()
        if self._user.plugin is not None:
            answer = await self._plugin_answer()
            token = answer.token or token
            certificate, key = answer.certificate or certificate, answer.key or key
        headers = list(self._user.impersonate)
        secrets: tuple[str, ...] = (self._user.password,)
        if token:
            headers.append(("authorization", f"Bearer {token}"))
            secrets = (*secrets, token)
        elif self._user.username:
            pair = base64.b64encode(f"{self._user.username}:{self._user.password}".encode()).decode()
            headers.append(("authorization", f"Basic {pair}"))
            secrets = (*secrets, pair)
        return RequestIdentity(
            tuple(headers), certificate, key, tuple(secret for secret in secrets if secret)
        )

    def _use(self, user: KubeUser) -> None:
        self._user, clock = user, self._clock
        self._certificate = DataOrFileReader(user.certificate, clock)
        self._key = DataOrFileReader(user.key, clock)
        self._token_file = RotatingFile(user.token_file, clock) if user.token_file else None
        self._from_plugin: ExecCredential | None = None

    def _see_kubeconfig(self) -> None:
        """Adopt the user of a rewritten kubeconfig.

        The last user is kept if the file cannot be read or names another server, which must not see these
        credentials.
        """
        stamps = _stamps(self._config.files)
        if stamps == self._stamps or self._config.read_again is None or None in stamps:
            return
        self._stamps = stamps
        try:
            config = self._config.read_again()
        except (ConfigError, OSError) as error:
            log.warning("kubeconfig not reloaded; the last valid user is used", reason=str(error))
            return
        if config.server != self._config.server:
            log.warning("kubeconfig names another server; restart to use it", cluster=self._config.name)
        elif config.user != self._user:
            self._use(config.user)
            log.info("kubeconfig reloaded", cluster=self._config.name)

    def refused(self, identity: RequestIdentity) -> bool:
        """Handle a 401 for `identity`; return whether other credentials may be available."""
        if self._user.plugin is None:
            return False
        held = self._from_plugin
        if held is not None and (not held.token or held.token in identity.secrets):
            self._from_plugin = None
        return True

    def _token(self) -> str:
        if self._token_file is None:
            return self._user.token
        token = self._token_file.read().decode("ascii", "replace").strip()
        if not token or not token.isprintable() or not token.isascii():
            raise ConfigError(f"{self._user.token_file} does not contain a token")
        return token

    async def _plugin_answer(self) -> ExecCredential:
        async with self._asking:
            held = self._from_plugin
            if held is None or self._clock.now() >= held.expires_at - EXPIRY_MARGIN:
                held = self._from_plugin = await run_plugin(self._config)
            return held
