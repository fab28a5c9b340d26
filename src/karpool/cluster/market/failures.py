"""Which pools, and which offerings, fail to launch nodes at present.

A pool is excluded at once when one of its claims cannot be launched, when its nodes do not register, or when
pods that it should serve have been pending for the threshold without a new claim. An offering (type, zone,
capacity type) is excluded at once when it is out of stock. Both are probed after the recovery interval: one
node may be requested. A success, or a change of the limits or requirements of the pool, ends the exclusion; a
failure doubles the wait. An unused probe changes nothing: one node stays on offer. Other pools are not
affected.

Observations are merged as a set of times, so order and repetition do not matter: a restart that reads the
same objects and events reaches the same result. Results are functions of the time that is passed in; times
are seconds since the epoch. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.packing.new_nodes.offerings import StockOut

THRESHOLD_SECONDS = 180.0
RECOVERY_SECONDS = 600.0
NEVER = float("-inf")
# How often a wait doubles; more would mean hours without a probe.
_DOUBLINGS = 4
_MOMENTS_MAX = 16
# A region has some ten thousand offerings; beyond that the oldest are dropped.
_OFFERS_MAX = 20_000


class OfferingKey(NamedTuple):
    instance_type: str
    zone: str
    capacity_type: str

    def __str__(self) -> str:
        return "/".join(part or "*" for part in self)


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """Why a pool, or with `offer` one offering, is excluded, and until when."""

    cause: LaunchReason
    message: str
    since: float
    until: float
    pool: str = ""
    offer: OfferingKey | None = None

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.message}"


OnFailures = Callable[[Sequence[LaunchFailure], Sequence[LaunchFailure]], None]  # begin, end


class _Fault(NamedTuple):
    """The latest fault of a kind; at equal times the one with the larger text, to be deterministic."""

    at: float
    message: str
    pool: str = ""


_NO_FAULT = _Fault(NEVER, "")


@dataclass(slots=True)
class _Pool:
    fingerprint: object = None
    changed: float = NEVER  # last change of its limits or requirements
    succeeded: float = NEVER
    claimed: float = NEVER  # creation of its last claim
    faults: dict[LaunchReason, _Fault] = field(default_factory=dict)
    moments: dict[LaunchReason, tuple[float, ...]] = field(default_factory=dict)  # times of all faults
    waiting: float | None = None  # since when pods that it should serve are pending


@dataclass(slots=True)
class _Offering:
    succeeded: float = NEVER
    fault: _Fault = _NO_FAULT
    moments: tuple[float, ...] = ()  # times of all faults


def _wider(offer: OfferingKey) -> Iterator[OfferingKey]:
    """Yield the keys that cover an offering because some part is empty."""
    for parts in product(*((part, "") for part in offer)):
        if parts != offer:
            yield OfferingKey(*parts)


def _with(moments: tuple[float, ...], at: float) -> tuple[float, ...]:
    """Return the times with one added: sorted, unique, only the latest if there are too many."""
    return moments if at in moments else tuple(sorted((*moments, at)))[-_MOMENTS_MAX:]


class LaunchFailures:
    def __init__(
        self,
        *,
        threshold_seconds: float = THRESHOLD_SECONDS,
        recovery_seconds: float = RECOVERY_SECONDS,
    ) -> None:
        self._threshold = threshold_seconds
        self._recovery = recovery_seconds
        self._pools: dict[str, _Pool] = {}
        self._offers: dict[OfferingKey, _Offering] = {}
        self._successes: dict[OfferingKey, float] = {}  # latest success by wider key, see `_wider`

    # Observing

    def pool_seen(self, pool: str, fingerprint: object, now: float) -> None:
        """Note a pool. `fingerprint` stands for limits and requirements: a change ends the exclusion."""
        history = self._of(pool)
        if history.fingerprint is not None and history.fingerprint != fingerprint:
            history.changed = max(history.changed, now)
        history.fingerprint = fingerprint

    def pool_gone(self, pool: str) -> None:
        self._pools.pop(pool, None)

    def failed(self, pool: str, cause: LaunchReason, at: float, message: str) -> None:
        """Note a failure of the whole pool at a time that may be long past."""
        faults = self._of(pool).faults
        faults[cause] = max(faults.get(cause, _NO_FAULT), _Fault(at, message, pool))
        moments = self._of(pool).moments
        moments[cause] = _with(moments.get(cause, ()), at)

    def out_of_stock(self, pool: str, offers: Iterable[OfferingKey], at: float, message: str) -> None:
        """Note that these offerings were refused to a claim of the pool. An empty part matches any value."""
        for offer in offers:
            history = self._offers.setdefault(offer, _Offering())
            history.fault = max(history.fault, _Fault(at, message, pool))
            history.moments = _with(history.moments, at)
        if len(self._offers) > _OFFERS_MAX:
            self._forget_oldest()

    def claimed(self, pool: str, at: float) -> None:
        history = self._of(pool)
        history.claimed = max(history.claimed, at)

    def succeeded(self, pool: str, offer: OfferingKey | None, at: float) -> None:
        """Note that a node of the pool registered."""
        history = self._of(pool)
        history.succeeded = max(history.succeeded, at)
        if offer is not None:
            offering = self._offers.get(offer)
            if offering is None:
                offering = self._offers[offer] = _Offering()
            elif at <= offering.succeeded:
                return  # most claims of an offering repeat the same success
            offering.succeeded = at
            for wider in _wider(offer):
                self._successes[wider] = max(self._successes.get(wider, NEVER), at)
            if len(self._successes) > _OFFERS_MAX:
                by_age = sorted(self._successes, key=lambda wider: self._successes[wider])
                for wider in by_age[: _OFFERS_MAX // 2]:
                    del self._successes[wider]

    def waiting(self, since: Mapping[str, float]) -> None:
        """Note by pool since when its oldest pod is pending. Pools that are not named have none."""
        for name, history in self._pools.items():
            history.waiting = since.get(name)

    # Results

    def of_pool(self, pool: str, now: float, *, waiting_since: float | None = None) -> LaunchFailure | None:
        """Return why a pool is excluded now; `waiting_since` adds to the observed pending pods."""
        history = self._pools.get(pool)
        if history is None:
            return None
        reset = max(history.succeeded, history.changed)
        active = [
            LaunchFailure(cause, fault.message, fault.at, until, pool)
            for cause, fault in history.faults.items()
            if fault.at > reset and fault.at <= now < (until := self._until(history.moments[cause], reset))
        ]
        moments = [since for since in (history.waiting, waiting_since) if since is not None]
        if moments and (late := self._late(history, pool, min(moments), now)) is not None:
            active.append(late)
        return max(active, key=lambda failure: (failure.until, failure.cause), default=None)

    def _late(self, history: _Pool, pool: str, since: float, now: float) -> LaunchFailure | None:
        """Return a failure if pods are pending and nothing is launched for them."""
        begun, until = self._late_turn(history, since, now)
        if not begun <= now < until:
            return None
        message = f"pods that it should serve have waited for {int(now - since)} s without a new claim"
        return LaunchFailure(LaunchReason.PODS_WAITING, message, begun, until, pool)

    def _late_turn(self, history: _Pool, since: float, now: float) -> tuple[float, float]:
        """Return the current or last exclusion, else the first: (begin, end).

        The pool gets the threshold to deliver and is then excluded, in turns. Each turn without a launch
        doubles the exclusion.
        """
        begun = max(since, history.claimed, history.succeeded, history.changed) + self._threshold
        wait, longest = self._recovery, self._recovery * 2**_DOUBLINGS
        while wait < longest and (after := begun + wait + self._threshold) <= now:
            begun, wait = after, wait * 2
        turn = longest + self._threshold
        if wait >= longest and turn > 0:
            begun += max(0.0, (now - begun) // turn) * turn
        return begun, begun + wait

    def of_offers(self, now: float) -> Iterator[LaunchFailure]:
        for offer, history in self._offers.items():
            fault = history.fault
            reset = self._reset_of(offer, history)
            until = self._until(history.moments, reset)
            if fault.at > reset and fault.at <= now < until:
                yield LaunchFailure(LaunchReason.STOCK_OUT, fault.message, fault.at, until, fault.pool, offer)

    def probed_pools(self, now: float) -> frozenset[str]:
        """Return the failed pools of which one node may be requested as a probe."""
        return frozenset(
            name
            for name, history in self._pools.items()
            if self.of_pool(name, now) is None
            and (
                (history.waiting is not None and self._late_turn(history, history.waiting, now)[1] <= now)
                or any(
                    self._is_probed(moments, max(history.succeeded, history.changed), now)
                    for moments in history.moments.values()
                )
            )
        )

    def probed_offers(self, now: float) -> tuple[StockOut, ...]:
        """Return the same for offerings, in a fixed order."""
        probed = sorted(
            offer
            for offer, history in self._offers.items()
            if self._is_probed(history.moments, self._reset_of(offer, history), now)
        )
        return tuple(StockOut(*(part or None for part in offer)) for offer in probed)

    def stock_outs(self, now: float) -> tuple[StockOut, ...]:
        """Return the offerings out of stock for the packing kernel, in a fixed order."""
        offers = sorted(failure.offer for failure in self.of_offers(now) if failure.offer is not None)
        return tuple(StockOut(*(part or None for part in offer)) for offer in offers)

    def current(self, now: float) -> list[LaunchFailure]:
        """Return everything that is excluded, pools first."""
        pools = (self.of_pool(name, now) for name in sorted(self._pools))
        offers = sorted(self.of_offers(now), key=lambda failure: failure.offer or OfferingKey("", "", ""))
        return [*(pool for pool in pools if pool is not None), *offers]

    # Inside

    def _reset_of(self, offer: OfferingKey, offering: _Offering) -> float:
        pool = self._pools.get(offering.fault.pool)
        changed = pool.changed if pool is not None else NEVER
        return max(offering.succeeded, self._successes.get(offer, NEVER), changed)

    def _until(self, moments: Sequence[float], reset: float) -> float:
        """Return when it may be tried again: each failed try doubles the wait."""
        wait, until = self._recovery, NEVER
        for at in moments:
            if at <= reset:
                continue
            if until > NEVER and at >= until:
                wait = min(wait * 2, self._recovery * 2**_DOUBLINGS)
            until = at + wait
        return until

    def _is_probed(self, moments: Sequence[float], reset: float, now: float) -> bool:
        until = self._until(moments, reset)
        return NEVER < until <= now

    def _of(self, pool: str) -> _Pool:
        history = self._pools.get(pool)
        if history is None:
            history = self._pools[pool] = _Pool()
        return history

    def _forget_oldest(self) -> None:
        by_age = sorted(self._offers, key=lambda offer: self._offers[offer].fault.at)
        for offer in by_age[: len(by_age) - _OFFERS_MAX // 2]:
            del self._offers[offer]
