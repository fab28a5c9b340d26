"""Leader election by Lease: at most one leader acts, and it knows when to stop.

A leader may act until `renew_deadline` after it *sent* its last successful
renewal; a rival takes over no earlier than `duration` after it *saw* the last
change of the lease. Both count on their own monotonic clock, so wall clocks
may be wrong, and a leader that was paused finds its time used up before it acts
again, provided it calls `Leadership.check` right before each write.
"""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from karpool.kube.client import Client
from karpool.kube.clock import rfc3339_micro
from karpool.kube.decoding import Object
from karpool.kube.errors import AlreadyExists, Conflict, KubeError, LeadershipLost, NotFound
from karpool.kube.resource import LEASES
from karpool.kube.rest import NEVER

log = structlog.get_logger(__name__)

LONGEST_DURATION = 3600.0  # a lease that claims more was not written by an elector


def own_identity() -> str:
    """Unique per process start: a restarted pod is a rival of its former self."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry > 0:
            raise ValueError(
                f"lease duration {self.duration:g} s, renew deadline {self.renew_deadline:g} s, "
                f"retry {self.retry:g} s: each must be larger than the next"
            )


TIMING = LeaseTiming()


class Leadership:
    """Held while leading. `term` grows with every change of leader: a fencing token for stored state."""

    def __init__(self, elector: "LeaseElector", term: int) -> None:
        self._elector = elector
        self.term = term

    @property
    def valid(self) -> bool:
        return self._elector.leading

    def check(self) -> None:
        """Raise LeadershipLost unless acting is safe at this instant."""
        if not self.valid:
            raise LeadershipLost(f"lease {self._elector.name}: {self._elector.identity} no longer leads")


class LeaseElector:
    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str = "",
        timing: LeaseTiming = TIMING,
    ) -> None:
        self.name = f"{namespace}/{name}"
        self.identity = identity or own_identity()
        self._client = client.without_limit()  # a renewal behind a queue of lists would come too late
        self._clock = client.clock
        self._lease = name
        self._namespace = namespace
        self._timing = timing
        self._valid_until = float("-inf")
        self._taken = asyncio.Event()
        self._held: Object | None = None  # the lease as we last wrote it
        self._seen: tuple[Any, ...] | None = None  # a rival's record...
        self._stamp = 0.0
        self._seen_at = 0.0  # ...and when it last changed, by our clock

    @property
    def leading(self) -> bool:
        return self._clock.monotonic() < self._valid_until

    async def run(self, led: Callable[[Leadership], Awaitable[None]]) -> None:
        """Wait for the lease, run `led` while holding it, give it back at the end.

        `led` is cancelled when the lease can no longer be counted on; then
        LeadershipLost is raised, after `led` has ended. What `led` raises is raised.
        """
        self._taken.clear()
        await self._acquire()
        log.info("leading", lease=self.name, identity=self.identity)
        leadership = Leadership(self, self._term())
        try:
            await self._lead(leadership, led)
        finally:
            self._valid_until = float("-inf")
            await self._release()

    async def _lead(self, leadership: Leadership, led: Callable[[Leadership], Awaitable[None]]) -> None:
        failures: list[Exception] = []

        async def work() -> None:
            try:
                await led(leadership)
            except Exception as error:
                failures.append(error)

        # Three tasks: the work, the renewals, and a guard that depends on neither.
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work())
            keeping = [group.create_task(self._renew()), group.create_task(self._expire(working))]
            try:
                await asyncio.wait([working])
            finally:
                working.cancel()
                for task in keeping:
                    task.cancel()
        if failures:
            raise failures[0]
        if working.cancelled():
            raise LeadershipLost(f"lease {self.name}: not renewed within {self._timing.renew_deadline:g} s")

    async def _expire(self, working: asyncio.Task[None]) -> None:
        while (remaining := self._valid_until - self._clock.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._taken.wait()
        log.warning("leadership lost", lease=self.name, identity=self.identity)
        working.cancel()

    def _step_down(self) -> None:
        self._valid_until = float("-inf")
        self._taken.set()

    async def _acquire(self) -> None:
        told = ""
        while not self.leading:
            try:
                await self._try_to_acquire()
            except KubeError as error:
                # Said aloud once: without its namespace, or the right to it, the lease never comes.
                reason = str(error)
                say = log.debug if isinstance(error, Conflict) or reason == told else log.warning
                say("lease not acquired", lease=self.name, reason=reason)
                told = reason
            if not self.leading:
                await self._clock.sleep(self._timing.retry * (0.9 + 0.2 * self._client.chance()))

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._timing.retry)
            try:
                await self._write(self._with_spec(self._held, renewed=True))
            except Conflict:
                # Ours unless someone took it; a label added by a person is no reason to step down.
                await self._reread()
            except NotFound:
                # Whoever finds no lease creates one and leads.
                self._step_down()
            except KubeError as error:
                log.warning("lease not renewed", lease=self.name, reason=str(error))

    async def _reread(self) -> None:
        try:
            lease = await self._read()
        except KubeError as error:
            log.warning("lease not read", lease=self.name, reason=str(error))
            return
        if _spec(lease).get("holderIdentity") != self.identity:
            self._step_down()
        self._held = lease

    async def _try_to_acquire(self) -> None:
        try:
            lease = await self._read()
        except NotFound:
            # Deleted under a leader we have seen: it may act for as long as it thinks it leads.
            if self._seen is None or self._clock.monotonic() >= self._seen_at + self._timing.duration:
                await self._create()
            return
        if self._is_free(lease):
            await self._write(self._with_spec(lease, renewed=False))

    def _is_free(self, lease: Object) -> bool:
        spec = _spec(lease)
        holder = spec.get("holderIdentity")
        if not holder or holder == self.identity:
            return True
        record = (holder, spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
        now = self._clock.monotonic()
        if record != self._seen:
            self._seen, self._seen_at = record, now
        return now >= self._seen_at + self._duration_of(spec)

    def _duration_of(self, spec: Object) -> float:
        stated = spec.get("leaseDurationSeconds")
        if not isinstance(stated, int | float) or not 0 < stated <= LONGEST_DURATION:
            return self._timing.duration
        # Never sooner than we would expect others to wait for us.
        return max(float(stated), self._timing.duration)

    async def _create(self) -> None:
        sent_at = self._clock.monotonic()
        lease = self._with_spec(
            {"metadata": {"name": self._lease, "namespace": self._namespace}}, renewed=False
        )
        try:
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                self._held = await self._client.create(LEASES, lease)
        except (AlreadyExists, TimeoutError):
            return
        self._valid_until = sent_at + self._timing.renew_deadline

    async def _write(self, lease: Object) -> None:
        sent_at = self._clock.monotonic()
        timeout = self._timing.renew_deadline / 2
        self._held = await self._client.update(LEASES, lease, retry=NEVER, timeout=timeout)
        self._valid_until = sent_at + self._timing.renew_deadline

    async def _read(self) -> Object:
        return await self._client.get(LEASES, self._lease, namespace=self._namespace)

    def _with_spec(self, lease: Object | None, *, renewed: bool) -> Object:
        assert lease is not None
        spec = _spec(lease)
        # Rivals recognise a renewal by its time, so it must differ even if the wall clock was set back.
        self._stamp = max(self._clock.now(), self._stamp + 1e-6)
        now = rfc3339_micro(self._stamp)
        changed = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._timing.duration),
            "renewTime": now,
        }
        if not renewed:
            before = spec.get("leaseTransitions")
            changed["acquireTime"] = now
            changed["leaseTransitions"] = (before if isinstance(before, int) else 0) + 1
        return {**lease, "spec": {**spec, **changed}}

    def _term(self) -> int:
        return int(_spec(self._held or {}).get("leaseTransitions") or 0)

    async def _release(self) -> None:
        """Let a rival in at once. The version makes this harmless if one already is."""
        if self._held is None:
            return
        lease, self._held = self._held, None
        spec = {**_spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(self._timing.retry):
                await self._client.update(LEASES, {**lease, "spec": spec}, retry=NEVER)
        except (KubeError, TimeoutError) as error:
            log.info("lease not released", lease=self.name, reason=str(error))


def _spec(lease: Object) -> Object:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


async def lead(
    elector: LeaseElector, led: Callable[[Leadership], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Run `led` while holding the lease; return when asked to stop before the lease was ours. One that
    leads notices `stop` itself, and may finish."""
    electing = asyncio.ensure_future(elector.run(led))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((electing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if electing.done() or elector.leading:
            await electing
    finally:
        for task in (electing, stopping):
            task.cancel()
        await asyncio.gather(electing, stopping, return_exceptions=True)
