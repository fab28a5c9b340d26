"""Reads node prices from Prometheus every minute, in the background.

If Prometheus does not answer, a remark says so and the list prices are used.
"""

import threading
from collections.abc import Callable
from urllib.parse import quote

from karpool.kube.clock import Clock, RealClock
from karpool.kube.transport.prometheus import PrometheusServer
from karpool.model.contracts.contracted_prices import AskPrices
from karpool.model.contracts.learnt_prices import STALE_SECONDS, PriceAnswer, PriceSource, read_answer
from karpool.provisioning.latest_answer import LatestAnswer

_ASK_AGAIN_SECONDS = 60.0

Fetch = Callable[[str], bytes]  # takes a path; raises OSError or Invalid


def price_asker(fetch: Fetch | None = None, clock: Clock | None = None) -> AskPrices:
    """Return a function that reads prices; one for all clusters, because an answer covers all nodes."""
    time = clock or RealClock()
    questions: dict[PriceSource, _Question] = {}
    asking = threading.Lock()

    def ask(source: PriceSource) -> PriceAnswer:
        if not source.prometheus:
            return _NOTHING
        with asking:
            if source not in questions:
                questions.clear()  # the contract has changed
                questions[source] = _Question(source, fetch or _server(source).fetch, time)
        return questions[source].latest()

    return ask


_NOTHING = PriceAnswer()
_REFUSED = "it requires authentication; set `bearerTokenFile`, or `username` and `passwordFile`"


def _server(source: PriceSource) -> PrometheusServer:
    return PrometheusServer(
        source.prometheus,
        source.bearer_token_file,
        source.username,
        source.password_file,
        source.ca_file,
        source.insecure_skip_verify,
        field="pricesFrom",
        refused=_REFUSED,
    )


class _Question:
    def __init__(self, source: PriceSource, fetch: Fetch, clock: Clock) -> None:
        path = f"/api/v1/query?query={quote(source.query, safe='')}"
        self._prometheus, self._silent = source.prometheus, PriceAnswer()
        self._answers = LatestAnswer(
            lambda: read_answer(fetch(path), clock.now()), clock, every_seconds=_ASK_AGAIN_SECONDS
        )

    def latest(self) -> PriceAnswer:
        if (answer := self._answers.within(STALE_SECONDS)) is not None:
            return answer
        remark = f"Prometheus at {self._prometheus} does not say what nodes cost: {self._answers.failure}"
        if self._silent.remarks != (remark,):
            self._silent = PriceAnswer({}, (remark,))
        return self._silent
