"""At no instant may two electors act, whatever pauses, losses and clock jumps come between."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.fleet.clock import LoopClock
from karpool.kube.errors import LeadershipLost, Unreachable
from karpool.kube.lease import LeaseElector, LeaseTiming
from tests.kube.tiny_server import Fault, TinyServer, status
from tests.kube.virtual import client_of, virtually

LEASE = "/apis/coordination.k8s.io/v1/namespaces/karpool/leases/estimator"


# Seconds before the server gets it, seconds before the answer arrives, and whether it is lost.
FINE = (0, 0, False)
SLOW_ANSWER = (0, 4.9, False)
LOST_ANSWER = (0, 0, True)
LATE_ARRIVAL = (7, 0, True)
NO_ARRIVAL = (10_000, 0, True)


class PausingClock(LoopClock):
    """Sleeps that may end late, as in a process that was stopped meanwhile."""

    def __init__(self, pauses):
        super().__init__()
        self._pauses = pauses

    async def sleep(self, seconds):
        await asyncio.sleep(seconds + (self._pauses.pop() if self._pauses else 0))


class DelayedTransport:
    """Requests and answers that take their time or get lost, in front of a shared server."""

    def __init__(self, server, troubles):
        self._server = server
        self._troubles = troubles

    async def request(self, request, *, timeout=None):
        before, after, lost = self._troubles.pop() if self._troubles else FINE
        outcome = asyncio.ensure_future(self._carry(request, before, after))
        # The server carries on with what it received even if the client gives up on it.
        done, _ = await asyncio.wait([outcome], timeout=timeout)
        if not done or lost:
            raise Unreachable("no answer in time")
        return outcome.result()

    async def _carry(self, request, before, after):
        await asyncio.sleep(before)
        response = await self._server.request(request)
        await asyncio.sleep(after)
        return response

    @asynccontextmanager
    async def stream(self, request, *, timeout=None):
        raise NotImplementedError
        yield

    async def close(self):
        pass


def holder(server):
    return server.objects.get(LEASE, {}).get("spec", {}).get("holderIdentity", "")


class Candidate:
    def __init__(self, server, name, *, pauses=(), troubles=(), log=None, chance=lambda: 0.5):
        self.server = server
        self._misfortunes = pauses, troubles = list(pauses), list(troubles)
        self.clock = PausingClock(pauses)
        client = client_of(DelayedTransport(server, troubles), clock=self.clock, chance=chance)
        self.elector = LeaseElector(client, "estimator", namespace="karpool", identity=name)
        self.log = log if log is not None else []

    def misfortunes_end(self):
        for each in self._misfortunes:
            each.clear()

    async def act(self, leadership):
        while True:
            leadership.check()
            self.log.append((self.clock.monotonic(), self.elector.identity, leadership.term))
            assert holder(self.server) == self.elector.identity
            await self.clock.sleep(0.5)

    async def campaign(self):
        while True:
            with suppress(LeadershipLost):
                await self.elector.run(self.act)


@asynccontextmanager
async def campaigns(*candidates):
    running = [asyncio.ensure_future(each.campaign()) for each in candidates]
    try:
        yield running
        for each in running:
            if each.done():
                each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


SECONDS = st.sampled_from([0, 0, 0, 0.3, 1, 4, 9.9, 10, 10.1, 14.9, 15, 15.1, 40])
TROUBLE = st.sampled_from([FINE, SLOW_ANSWER, LOST_ANSWER, LATE_ARRIVAL, NO_ARRIVAL])
# Runs of the same trouble, because a single lost renewal harms nobody.
TROUBLES = st.lists(st.tuples(TROUBLE, st.integers(1, 7)), max_size=12).map(
    lambda runs: [trouble for trouble, times in runs for _ in range(times)]
)
MISFORTUNES = st.tuples(st.lists(SECONDS, max_size=20), TROUBLES)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(MISFORTUNES, min_size=2, max_size=3),
    st.lists(st.floats(-1e5, 1e5), max_size=5),
    st.randoms(use_true_random=False),
)
def test_two_never_act_at_once_and_someone_leads_in_the_end(misfortunes, jumps, random):
    async def scenario():
        server = TinyServer()
        log = []
        candidates = [
            Candidate(server, f"c{number}", pauses=pauses, troubles=troubles, log=log, chance=random.random)
            for number, (pauses, troubles) in enumerate(misfortunes)
        ]

        async def audit():
            for tick in range(800):
                leading = [each.elector.identity for each in candidates if each.elector.leading]
                assert len(leading) <= 1, leading
                if tick % 40 == 0 and jumps:
                    candidates[tick // 40 % len(candidates)].clock.jump(jumps[tick // 40 % len(jumps)])
                await asyncio.sleep(0.25)

        async with campaigns(*candidates):
            await audit()
            for each in candidates:
                each.misfortunes_end()
            await asyncio.sleep(150)  # the longest pause under way, then a lease that has to run out
            log.clear()
            await asyncio.sleep(10)
        return log

    acts = virtually(scenario())
    assert len({name for _, name, _ in acts}) == 1


def test_a_paused_leader_finds_its_time_used_up_before_it_acts():
    async def scenario():
        server, log = TinyServer(), []
        # After reading and creating the lease, all that the first does takes a minute.
        stuck = [(60, 0, False)] * 40
        first = Candidate(server, "first", troubles=[*stuck, FINE, FINE])
        refusals = []

        async def paused(leadership):
            stop = asyncio.ensure_future(asyncio.sleep(60))
            with suppress(asyncio.CancelledError):  # a stopped process does not notice being cancelled
                await asyncio.shield(stop)
            await stop
            try:
                leadership.check()
            except LeadershipLost as error:
                refusals.append((LoopClock().monotonic(), str(error)))

        leading = asyncio.ensure_future(first.elector.run(paused))
        await asyncio.sleep(0.1)
        async with campaigns(Candidate(server, "second", log=log)):
            await asyncio.gather(leading, return_exceptions=True)
        return refusals, log[0]

    refusals, (handover, name, _) = virtually(scenario())
    assert refusals == [(60.0, "lease karpool/estimator: first no longer leads")]
    assert name == "second"
    assert 15 <= handover <= 18


def test_a_clean_exit_hands_over_at_once():
    async def scenario():
        server, log = TinyServer(), []
        first, second = Candidate(server, "first", log=log), Candidate(server, "second", log=log)
        async with campaigns(first):
            await asyncio.sleep(5)
        left = LoopClock().monotonic()
        async with campaigns(second):
            await asyncio.sleep(5)
        taken = next(time for time, name, _ in log if name == "second")
        return taken - left, holder(server)

    waited, left_behind = virtually(scenario())
    assert waited < 0.1
    assert left_behind == ""


def test_a_crashed_leader_is_replaced_after_the_lease_ran_out():
    async def scenario():
        server, log = TinyServer(), []
        server.put(
            LEASE,
            spec={"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00Z"},
        )
        async with campaigns(Candidate(server, "heir", log=log)):
            await asyncio.sleep(30)
        return log[0]

    time, name, term = virtually(scenario())
    assert name == "heir"
    assert 15 <= time <= 15 + 2.2
    assert term == 1


def test_the_led_task_is_cancelled_before_the_lease_can_be_taken():
    async def scenario():
        server = TinyServer()
        candidate = Candidate(server, "leader")
        ended = []

        async def led(leadership):
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(LoopClock().monotonic())

        def fault(request):
            return Fault(lose_request=True) if LoopClock().monotonic() > 1 else None

        server.fault = fault
        with pytest.raises(LeadershipLost):
            await candidate.elector.run(led)
        return ended[0]

    assert virtually(scenario()) <= 10.0


def test_leadership_counts_from_when_a_renewal_was_sent_not_from_its_answer():
    async def scenario():
        server = TinyServer()
        # Read, create, one renewal at 2 s that is answered at 6.9 s, then nothing gets through.
        troubles = [*[NO_ARRIVAL] * 40, SLOW_ANSWER, FINE, FINE]
        candidate = Candidate(server, "leader", troubles=troubles)
        with pytest.raises(LeadershipLost):
            await candidate.elector.run(candidate.act)
        return candidate.log[-1][0]

    assert 11 <= virtually(scenario()) <= 12


def test_a_leader_whose_lease_was_taken_or_deleted_stops_at_its_next_renewal():
    async def scenario(change):
        server = TinyServer()
        candidate = Candidate(server, "leader")

        async def led(leadership):
            await asyncio.sleep(1000)

        async def meddle():
            await asyncio.sleep(3)
            change(server)

        started = asyncio.ensure_future(meddle())
        with pytest.raises(LeadershipLost):
            await candidate.elector.run(led)
        await started
        return LoopClock().monotonic()

    assert virtually(scenario(lambda server: server.put(LEASE, spec={"holderIdentity": "other"}))) <= 4.5
    assert virtually(scenario(lambda server: server.remove(LEASE))) <= 4.5


def test_a_label_added_by_someone_does_not_end_leadership():
    async def scenario():
        server = TinyServer()
        candidate = Candidate(server, "leader")
        async with campaigns(candidate):
            await asyncio.sleep(3)
            server.put(LEASE, {**server.objects[LEASE], "note": "x"})
            await asyncio.sleep(60)
            return [term for _, _, term in candidate.log], server.objects[LEASE]["note"]

    terms, note = virtually(scenario())
    assert set(terms) == {1}
    assert note == "x"


def test_what_the_led_task_raises_is_raised_and_the_lease_released():
    async def scenario():
        server = TinyServer()
        candidate = Candidate(server, "leader")

        async def led(leadership):
            raise KeyError("bug")

        with pytest.raises(KeyError, match="bug"):
            await candidate.elector.run(led)
        return holder(server), candidate.elector.leading

    assert virtually(scenario()) == ("", False)


def test_a_server_that_refuses_is_asked_again():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: (
            Fault(response=status(403, "Forbidden")) if LoopClock().monotonic() < 60 else None
        )
        candidate = Candidate(server, "leader")
        async with campaigns(candidate):
            await asyncio.sleep(70)
        return candidate.log[0][0]

    assert 60 <= virtually(scenario()) < 63


@pytest.mark.parametrize("timing", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_timings_that_cannot_be_safe_are_refused(timing):
    with pytest.raises(ValueError, match="larger than the next"):
        LeaseTiming(*timing)
