"""Leader election by Lease: at most one leader acts, and it knows when to stop.

A leader may act until `renew_deadline` after it *sent* its last successful renewal. A rival takes over no
earlier than `duration` after it *saw* the last change of the lease. Both use their own monotonic clock, so
wall clocks may be wrong. A leader that was paused finds that its time has expired before it acts again,
provided that it calls `Leadership.check` right before each write.

The leader of a deleted lease may still act. So an elector that has seen a lease and recreates it waits as
long as for a rival; only an elector that never saw a lease creates it and leads at once. A leader releases
only its own lease: a lease with another holder, term or uid is not changed.
"""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import AlreadyExists, ApiUnreachable, Conflict, KubeError, LeadershipLost, NotFound
from karpool.kube.first_done import first_done
from karpool.kube.lease_timing import TIMING, LeaseTiming
from karpool.kube.transport.rest import NEVER
from karpool.model.kubernetes.api_resources import LEASES
from karpool.model.kubernetes.times import rfc3339_micro

log = structlog.get_logger(__name__)

LONGEST_DURATION = 3600.0  # a longer duration was not written by an elector


def own_identity() -> str:
    """Return an identity that is unique per process start: a restarted pod is a rival of its former self."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


class Leadership:
    """The right to act as leader.

    `term` grows with every change of leader and is a fencing token for storage.
    """

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
        self._client = client.without_limit()  # a renewal that queues behind lists would come too late
        self._clock = client.clock
        self._lease = name
        self._namespace = namespace
        self._timing = timing
        self._valid_until = float("-inf")
        self._taken = asyncio.Event()
        self._held: Object | None = None  # the lease of our own term as last read; never a rival's
        # The record whose expiry we wait for; None if we know of no lease...
        self._seen: tuple[Any, ...] | None = None
        self._stamp = 0.0
        self._seen_at = 0.0  # ...and when it last changed, by our clock

    @property
    def leading(self) -> bool:
        return self._clock.monotonic() < self._valid_until

    async def run(self, led: Callable[[Leadership], Awaitable[None]]) -> None:
        """Wait for the lease, run `led` while holding it, and release it at the end.

        When the lease can no longer be relied on, `led` is cancelled; LeadershipLost is raised after `led`
        has ended. Errors of `led` are raised as they are.
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
        self._held = None  # nothing of ours is left to release
        self._taken.set()

    async def _acquire(self) -> None:
        told = ""
        while not self.leading:
            try:
                await self._try_to_acquire()
            except KubeError as error:
                # Logged once: without the namespace, or the permission, the lease never comes.
                reason = str(error)
                say = log.debug if isinstance(error, Conflict) or reason == told else log.warning
                say("lease not acquired", lease=self.name, reason=reason)
                told = reason
            if not self.leading:
                await self._clock.sleep(self._timing.retry * (0.9 + 0.2 * self._client.chance()))

    async def _renew(self) -> None:
        # The work may take a while to end after a rival took the lease; a rival's lease is not renewed.
        while not self._taken.is_set():
            await self._clock.sleep(self._timing.retry)
            try:
                await self._write(self._with_spec(self._held, renewed=True))
            except Conflict:
                # Still ours unless a rival took it; a label that a person added is no reason to step down.
                await self._reread()
            except NotFound:
                # An elector that finds no lease creates one and leads.
                self._step_down()
            except KubeError as error:
                log.warning("lease not renewed", lease=self.name, reason=str(error))

    async def _reread(self) -> None:
        try:
            lease = await self._read()
        except KubeError as error:
            log.warning("lease not read", lease=self.name, reason=str(error))
            return
        if self._held is not None and _tenure(lease) == _tenure(self._held):
            self._held = lease
        else:
            self._step_down()

    async def _try_to_acquire(self) -> None:
        try:
            lease = await self._read()
        except NotFound:
            await self._create()
            return
        if self._is_free(lease):
            await self._write(self._with_spec(lease, renewed=False))

    def _is_free(self, lease: Object) -> bool:
        self._note(lease)
        spec = _spec(lease)
        # Wait even if the holder is our own name: a request that we gave up on may have written it at any
        # time, even under a leader whose lease was deleted.
        waited = self._clock.monotonic() - self._seen_at
        return not spec.get("holderIdentity") or waited >= self._duration_of(spec)

    def _note(self, lease: Object) -> None:
        record = (*_tenure(lease), _spec(lease).get("renewTime"))
        if record != self._seen:
            self._seen, self._seen_at = record, self._clock.monotonic()

    def _duration_of(self, spec: Object) -> float:
        stated = spec.get("leaseDurationSeconds")
        if not isinstance(stated, int | float) or not 0 < stated <= LONGEST_DURATION:
            return self._timing.duration
        # Never wait less than others must wait for us.
        return max(float(stated), self._timing.duration)

    async def _create(self) -> None:
        """Create the lease.

        Lead at once if there never was one; otherwise wait, as for the lease of a rival.
        """
        sent_at = self._clock.monotonic()
        lease = self._with_spec(
            {"metadata": {"name": self._lease, "namespace": self._namespace}}, renewed=False
        )
        try:
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                created = await self._client.create(LEASES, lease)
        except AlreadyExists:
            # Equals no record, so the first record that is read counts as a change.
            self._seen = self._seen or ()
            return
        except TimeoutError:
            return
        if self._seen is None:
            self._held = created
            self._valid_until = sent_at + self._timing.renew_deadline
        self._note(created)

    async def _write(self, lease: Object) -> None:
        sent_at = self._clock.monotonic()
        timeout = self._timing.renew_deadline / 2
        self._held = await self._client.update(LEASES, lease, retry=NEVER, timeout=timeout)
        self._valid_until = sent_at + self._timing.renew_deadline

    async def _read(self) -> Object:
        limit = self._timing.renew_deadline / 2
        try:
            async with asyncio.timeout(limit):
                return await self._client.get(LEASES, self._lease, namespace=self._namespace)
        except TimeoutError:
            raise ApiUnreachable(f"lease {self.name}: not read within {limit:g} s") from None

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
        """Release the lease, so that a rival can lead at once.

        The resource version protects a rival's lease.
        """
        lease, self._held = self._held, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(self._timing.retry):
                await self._vacate(lease)
        except (KubeError, TimeoutError) as error:
            log.info("lease not released", lease=self.name, reason=str(error))

    async def _vacate(self, lease: Object) -> None:
        try:
            await self._client.update(LEASES, _vacant(lease), retry=NEVER)
        except Conflict:
            # The conflict may come from our own renewal, which was written while we were stopping.
            current = await self._read()
            if _tenure(current) != _tenure(lease):
                raise
            await self._client.update(LEASES, _vacant(current), retry=NEVER)


def _vacant(lease: Object) -> Object:
    return {**lease, "spec": {**_spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1}}


def _tenure(lease: Object) -> tuple[Any, ...]:
    """Return what identifies a term: equal for all its renewals, different once a rival took the lease."""
    spec = _spec(lease)
    uid = lease.get("metadata", {}).get("uid")
    return uid, spec.get("holderIdentity"), spec.get("acquireTime"), spec.get("leaseTransitions")


def _spec(lease: Object) -> Object:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


async def lead(
    elector: LeaseElector, led: Callable[[Leadership], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Run `led` while holding the lease; return if `stop` is set before that.

    Once it leads, `led` watches `stop` itself and may finish its work.
    """
    async with first_done(elector.run(led), stop.wait()) as (electing, _):
        if electing.done() or elector.leading:
            await electing
