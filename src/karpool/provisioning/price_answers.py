"""Asks Prometheus what nodes cost: beside the process, every minute, bounded in time and size.

What cannot be had is a remark: the list counts.
"""

import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.clock import Clock, RealClock
from karpool.kube.config.tls import client_context
from karpool.model.contracts.contracted_prices import AskPrices
from karpool.model.contracts.learnt_prices import (
    ANSWER_MAX,
    STALE_SECONDS,
    PriceAnswer,
    PriceSource,
    read_answer,
)
from karpool.model.errors import Invalid
from karpool.provisioning.latest_answer import TIMEOUT_SECONDS, LatestAnswer

_ASK_AGAIN_SECONDS = 60.0
_CHUNK = 2**16

Fetch = Callable[[str], bytes]  # raises OSError or Invalid


def price_asker(fetch: Fetch | None = None, clock: Clock | None = None) -> AskPrices:
    """One for all clusters of a process: an answer is about all nodes that Prometheus knows."""
    time = clock or RealClock()
    questions: dict[PriceSource, _Question] = {}
    asking = threading.Lock()

    def ask(source: PriceSource) -> PriceAnswer:
        if not source.prometheus:
            return _NOTHING
        with asking:
            if source not in questions:
                questions.clear()  # the contract was written anew
                questions[source] = _Question(source, fetch or partial(_fetch, source), time)
        return questions[source].latest()

    return ask


_NOTHING = PriceAnswer()


class _Question:
    def __init__(self, source: PriceSource, fetch: Fetch, clock: Clock) -> None:
        url = f"{source.prometheus.rstrip('/')}/api/v1/query?query={quote(source.query, safe='')}"
        self._prometheus, self._silent = source.prometheus, PriceAnswer()
        self._answers = LatestAnswer(
            lambda: read_answer(fetch(url), clock.now()), clock, every_seconds=_ASK_AGAIN_SECONDS
        )

    def latest(self) -> PriceAnswer:
        if (answer := self._answers.within(STALE_SECONDS)) is not None:
            return answer
        remark = f"Prometheus at {self._prometheus} does not say what nodes cost: {self._answers.failure}"
        if self._silent.remarks != (remark,):
            self._silent = PriceAnswer({}, (remark,))
        return self._silent


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **more: object) -> None:
        return None


def _fetch(source: PriceSource, url: str) -> bytes:
    """Files of credentials are read each time: tokens are renewed."""
    clock = RealClock()
    end = clock.monotonic() + TIMEOUT_SECONDS
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if source.ca_file or source.insecure_skip_verify:
        ca = _secret("caFile", source.ca_file) if source.ca_file else b""
        tls = client_context("of Prometheus", ca=ca, insecure=source.insecure_skip_verify)
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    opener = urllib.request.build_opener(*handlers)
    headers = {"Accept": "application/json", "User-Agent": "karpool", **_authorization(source)}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the contract was read: http or https
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
            raise Invalid("pricesFrom", error.code, _REFUSED) from None
        raise
    return bytes(data)


_REFUSED = (
    "it wants to know who asks; see `bearerTokenFile`, `username` and `passwordFile` in docs/contracts.md"
)


def _authorization(source: PriceSource) -> dict[str, str]:
    if source.bearer_token_file:
        token = _secret("bearerTokenFile", source.bearer_token_file).strip()
        return {"Authorization": f"Bearer {_one_line('bearerTokenFile', token)}"}
    if source.username:
        password = _one_line("passwordFile", _secret("passwordFile", source.password_file).rstrip(b"\r\n"))
        pair = f"{source.username}:{password}".encode()
        return {"Authorization": f"Basic {b64encode(pair).decode()}"}
    return {}


def _secret(field: str, path: str) -> bytes:
    try:
        return read_bounded(Path(path), CREDENTIAL_LIMIT)
    except OSError as error:
        raise Invalid(f"pricesFrom.{field}", path, f"cannot be read: {error.strerror or error}") from None


def _one_line(field: str, secret: bytes) -> str:
    """What is wrong is said without the secret."""
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isascii() or not text.isprintable() or not text:
        raise Invalid(f"pricesFrom.{field}", "...", "must hold one line of ASCII")
    return text
