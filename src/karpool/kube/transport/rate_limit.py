"""A token bucket: `qps` requests a second on average, `burst` at once.

Waiters are served in order of arrival. A cancelled waiter returns its token.
"""

from karpool.kube.clock import Clock


class TokenBucket:
    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps {qps}, burst {burst}: qps must be above 0 and burst at least 1")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._counted_at = clock.monotonic()

    def try_acquire(self) -> bool:
        """Take a token if one is there now."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    @property
    def is_full(self) -> bool:
        """Whether the bucket is equal to a new one."""
        self._refill()
        return self._tokens >= self._burst

    async def acquire(self) -> None:
        """Take a token, waiting for it if need be."""
        self._refill()
        # The balance may go below zero: each waiter owes one token, and sleeps
        # until the debt before it and its own are paid. That keeps the order.
        self._tokens -= 1
        if self._tokens >= 0:
            return
        try:
            await self._clock.sleep(-self._tokens / self._qps)
        except BaseException:
            self._tokens = min(self._burst, self._tokens + 1)
            raise

    def _refill(self) -> None:
        now = self._clock.monotonic()
        elapsed = max(0.0, now - self._counted_at)
        self._counted_at = now
        self._tokens = min(float(self._burst), self._tokens + elapsed * self._qps)
