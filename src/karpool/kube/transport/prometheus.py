"""Queries a Prometheus server, with bounded time and size, without redirects, and with credentials if set."""

import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.clock import RealClock
from karpool.kube.config.tls import client_context
from karpool.model.errors import Invalid

TIMEOUT_SECONDS = 5.0
ANSWER_MAX = 16 * 2**20
_CHUNK = 2**16


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A Prometheus server.

    `url` is http or https; secrets come from files; `field` is its setting, for errors.
    """

    url: str
    bearer_token_file: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    insecure_skip_verify: bool = False
    field: str = "prometheus"
    refused: str = "it requires authentication"

    def fetch(self, path: str) -> bytes:
        """Return the answer to `path` with its query.

        Credential files are read each time, because tokens are renewed. Raises OSError,
        http.client.HTTPException, ConfigError or Invalid.
        """
        clock = RealClock()
        end = clock.monotonic() + TIMEOUT_SECONDS
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self.ca_file or self.insecure_skip_verify:
            ca = self._secret("caFile", self.ca_file) if self.ca_file else b""
            tls = client_context("of Prometheus", ca=ca, insecure=self.insecure_skip_verify)
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        opener = urllib.request.build_opener(*handlers)
        headers = {"Accept": "application/json", "User-Agent": "karpool", **self._authorization()}
        url = f"{self.url.rstrip('/')}{path}"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - settings were read: http or https
        data = bytearray()
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                while chunk := answer.read1(_CHUNK):
                    data += chunk
                    if len(data) > ANSWER_MAX:
                        raise Invalid("", len(data), f"the answer is more than {ANSWER_MAX} bytes")
                    if clock.monotonic() > end:
                        raise TimeoutError(f"the answer was not there after {TIMEOUT_SECONDS:g} s")
        except urllib.error.HTTPError as error:
            # Prometheus says what is wrong with a query in the body of a 400.
            if error.code == 400:
                return error.read(ANSWER_MAX)
            if error.code in (401, 403):
                raise Invalid(self.field, error.code, self.refused) from None
            raise
        return bytes(data)

    def _authorization(self) -> dict[str, str]:
        if self.bearer_token_file:
            token = self._secret("bearerTokenFile", self.bearer_token_file).strip()
            return {"Authorization": f"Bearer {self._one_line('bearerTokenFile', token)}"}
        if self.username:
            secret = self._secret("passwordFile", self.password_file).rstrip(b"\r\n")
            pair = f"{self.username}:{self._one_line('passwordFile', secret)}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
        return {}

    def _secret(self, name: str, path: str) -> bytes:
        try:
            return read_bounded(Path(path), CREDENTIAL_LIMIT)
        except OSError as error:
            raise Invalid(
                f"{self.field}.{name}", path, f"cannot be read: {error.strerror or error}"
            ) from None

    def _one_line(self, name: str, secret: bytes) -> str:
        """Decode a secret; errors do not contain it."""
        try:
            text = secret.decode()
        except UnicodeDecodeError:
            text = ""
        if not text.isascii() or not text.isprintable() or not text:
            raise Invalid(f"{self.field}.{name}", "...", "must contain one line of ASCII")
        return text


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **more: object) -> None:
        return None
