"""At no instant may two electors act, whatever pauses, losses and clock jumps come between."""

import asyncio
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.kube.errors import ApiUnreachable, LeadershipLost
from karpool.kube.lease_timing import LeaseTiming
from karpool.kube.leases import LeaseElector
from karpool_fleet.clusters.clock import LoopClock, ManualLoop
from tests.kube.tiny_server import Fault, TinyServer, status
from tests.kube.virtual import client_of, virtually

LEASE = "/apis/coordination.k8s.io/v1/namespaces/karpool/leases/estimator"


# Seconds before the server gets it, seconds before the answer arrives, and whether it is lost.
FINE = (0, 0, False)
SLOW_ANSWER = (0, 4.9, False)
LOST_ANSWER = (0, 0, True)
LATE_ARRIVAL = (7, 0, True)
NO_ARRIVAL = (10_000, 0, True)
REFUSED = "refused"  # at once


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
        before, after, lost = self._trouble()
        # The server carries on with what it received even if the client gives up on it, or stands still.
        outcome = asyncio.create_task(self._carry(request, before, after), context=Context())
        done, _ = await asyncio.wait([outcome], timeout=timeout)
        if not done or lost:
            raise ApiUnreachable("no answer in time")
        return outcome.result()

    def _trouble(self):
        return self._troubles.pop() if self._troubles else FINE

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
        for misfortune in self._misfortunes:
            misfortune.clear()

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
    running = [asyncio.ensure_future(candidate.campaign()) for candidate in candidates]
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


@pytest.mark.long
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
                leading = [
                    candidate.elector.identity for candidate in candidates if candidate.elector.leading
                ]
                assert len(leading) <= 1, leading
                if tick % 40 == 0 and jumps:
                    candidates[tick // 40 % len(candidates)].clock.jump(jumps[tick // 40 % len(jumps)])
                await asyncio.sleep(0.25)

        async with campaigns(*candidates):
            await audit()
            for candidate in candidates:
                candidate.misfortunes_end()
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


FAILURES = {
    "409": Fault(response=status(409, "Conflict")),
    "403": Fault(response=status(403, "Forbidden")),
    "404": Fault(response=status(404, "NotFound")),
    "422": Fault(response=status(422, "Invalid")),
    "429": Fault(response=status(429, "TooManyRequests")),
    "500": Fault(response=status(500, "InternalError")),
    "503": Fault(response=status(503, "ServiceUnavailable")),
    "reset before": Fault(lose_request=True),
    "reset after": Fault(lose_answer=True),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_leader_survives_one_failure_and_gives_way_before_its_time_when_they_last(method, failure):
    """One failed renewal costs nothing, unless the server says that the lease is gone. When all fail, the
    leader has stopped before the other begins, and the other begins when it can."""

    async def scenario(failing):
        server, log = TinyServer(), []
        one, other = (Candidate(server, name, log=log) for name in ("one", "other"))
        left = failing

        def fault(request):
            nonlocal left
            ours = one.elector.identity.encode() in (request.body or b"") or method == "GET"
            if request.method != method or not ours or not left or LoopClock().monotonic() < 3:
                return None
            left -= 1
            return FAILURES[failure]

        async with campaigns(one):
            await asyncio.sleep(1)
            async with campaigns(other):
                server.fault = fault
                await asyncio.sleep(60)
        return log

    once = virtually(scenario(1))
    ended = (method, failure) == ("PUT", "404")
    assert {name for _, name, _ in once} == ({"one", "other"} if ended else {"one"})
    lasting = virtually(scenario(10_000))
    last = max(time for time, name, _ in lasting if name == "one")
    assert all(time > last for time, name, _ in lasting if name == "other")
    if method == "PUT":
        first = min(time for time, name, _ in lasting if name == "other")
        assert first - last <= 15 + 2 * 2.2  # after the last renewal, which it may not have heard of
    else:
        assert last > 59  # nobody has to read while renewals work


@pytest.mark.parametrize("timing", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_timings_that_cannot_be_safe_are_refused(timing):
    with pytest.raises(ValueError, match="larger than the next"):
        LeaseTiming(*timing)


PROCESS = ContextVar("PROCESS", default=None)


class _Turn:
    """A callback that waits while the process it belongs to stands still."""

    def __init__(self, process, callback):
        self._process = process
        self._callback = callback
        self.handle = None

    def __call__(self, *args):
        if self._process.stopped:
            self._process.missed.append(self.handle)
        else:
            self._callback(*args)


class LoopOfProcesses(ManualLoop):
    """Several processes on one clock: one of them can be stopped while time goes on for the others."""

    def call_soon(self, callback, *args, context=None):
        return self._in_turn(super().call_soon, (), callback, args, context)

    def call_at(self, when, callback, *args, context=None):
        return self._in_turn(super().call_at, (when,), callback, args, context)

    def _in_turn(self, call, when, callback, args, context):
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return call(*when, callback, *args, context=context)
        turn = _Turn(process, callback)
        turn.handle = call(*when, turn, *args, context=context)
        return turn.handle


def among_processes(main):
    with asyncio.Runner(loop_factory=LoopOfProcesses) as runner:
        return runner.run(main)


class Witness(TinyServer):
    """Remembers whose record was emptied, and by whom."""

    def __init__(self):
        super().__init__()
        self.emptied = []

    def _handle(self, request):
        before = holder(self)
        response = super()._handle(request)
        if before and LEASE in self.objects and not holder(self):
            self.emptied.append((before, request.headers["user-agent"]))
        return response


class Link(DelayedTransport):
    """What lies between a process and the server; the same trouble until told otherwise."""

    trouble = FINE

    def __init__(self, server):
        super().__init__(server, [])

    def _trouble(self):
        if self.trouble is REFUSED:
            raise ApiUnreachable("no route", sent=False)
        return self.trouble


class Process:
    """An elector that campaigns for ever, and can be stopped and cut off."""

    def __init__(self, server, name, *, ending=0.0, chance=lambda: 0.5):
        self.name = name
        self.link = Link(server)
        self.clock = LoopClock()
        client = client_of(self.link, clock=self.clock, chance=chance, user_agent=name)
        self.elector = LeaseElector(client, "estimator", namespace="karpool", identity=name)
        self.stopped = False
        self.missed = []
        self.acts = []
        self._ending = ending
        context = copy_context()
        context.run(PROCESS.set, self)
        self.task = asyncio.create_task(self._campaign(), context=context)

    def stop(self):
        self.stopped = True

    def go_on(self):
        """All that fell due meanwhile, in its order; what one of them cancels does not happen."""
        self.stopped = False
        missed, self.missed = self.missed, []
        for handle in missed:
            asyncio.get_running_loop().call_soon(lambda handle=handle: handle.cancelled() or handle._run())

    async def _campaign(self):
        while True:
            with suppress(LeadershipLost):
                await self.elector.run(self._act)

    async def _act(self, leadership):
        try:
            while True:
                if leadership.valid:
                    self.acts.append(self.clock.monotonic())
                await self.clock.sleep(0.5)
        finally:
            await self.clock.sleep(self._ending)  # work that has things to put away


@asynccontextmanager
async def processes(*running):
    try:
        yield
        for each in running:
            if each.task.done():
                each.task.result()
    finally:
        for each in running:
            each.go_on()
            each.task.cancel()
        await asyncio.gather(*(each.task for each in running), return_exceptions=True)


@pytest.mark.parametrize("ending", [0, 1, 5], ids="{} s to end".format)
@pytest.mark.parametrize("deleted", [False, True], ids=["taken over", "deleted and created"])
def test_a_leader_that_wakes_up_leaves_its_successor_alone(deleted, ending):
    async def scenario():
        server = Witness()
        first = Process(server, "first", ending=ending)
        await asyncio.sleep(1)
        second = Process(server, "second")
        async with processes(first, second):
            await asyncio.sleep(2)
            first.stop()
            if deleted:
                server.remove(LEASE)
            await asyncio.sleep(30)
            assert holder(server) == "second"
            woken = first.clock.monotonic()
            first.go_on()
            await asyncio.sleep(30)
            return woken, first.acts, second.acts, holder(server), list(server.emptied)

    woken, before, after, holds, emptied = among_processes(scenario())
    assert max(before) < min(after) < woken
    assert woken + 29 < max(after)
    assert max(b - a for a, b in pairwise(after)) < 1
    assert (holds, emptied) == ("second", [])


@pytest.mark.parametrize("holder_now", ["other", "leader"])
def test_a_lease_that_was_deleted_and_created_again_is_not_released(holder_now):
    """Nor one that carries our name: we did not write it."""

    async def scenario():
        server = TinyServer()
        candidate = Candidate(server, "leader")
        running = asyncio.ensure_future(candidate.elector.run(lambda leadership: asyncio.sleep(1000)))
        await asyncio.sleep(3)
        spec = {**server.objects[LEASE]["spec"], "holderIdentity": holder_now}
        server.remove(LEASE)
        created = server.put(LEASE, spec=spec)
        with pytest.raises(LeadershipLost):
            await running
        return LoopClock().monotonic(), server.objects[LEASE] == created

    stopped, untouched = virtually(scenario())
    assert stopped <= 4.5
    assert untouched


def test_a_renewal_under_way_does_not_keep_a_leader_from_giving_the_lease_back():
    async def scenario():
        server = TinyServer()
        # Read, create, and a renewal at 2 s whose answer takes its time.
        candidate = Candidate(server, "leader", troubles=[SLOW_ANSWER, FINE, FINE])
        async with campaigns(candidate):
            await asyncio.sleep(3)
        return holder(server)

    assert virtually(scenario()) == ""


def test_who_finds_the_lease_deleted_waits_for_a_leader_it_has_not_seen():
    async def scenario():
        server = Witness()
        first, second = Process(server, "first"), Process(server, "second")
        async with processes(first, second):
            await asyncio.sleep(5)
            second.stop()
            await asyncio.sleep(40)
            first.link.trouble = NO_ARRIVAL
            server.remove(LEASE)
            second.go_on()
            await asyncio.sleep(30)
            return first.acts, second.acts

    before, after = among_processes(scenario())
    assert 45 < max(before) < min(after)
    assert min(after) < 45 + 15 + 2 * 2.2


def test_a_lease_created_by_a_request_given_up_on_is_waited_for():
    async def scenario():
        server, log = TinyServer(), []
        # It reads, and its request to create the lease arrives after two seconds of silence.
        candidate = Candidate(server, "leader", troubles=[(2, 0, True), FINE], log=log)
        async with campaigns(candidate):
            await asyncio.sleep(30)
        return log[0]

    time, _, term = virtually(scenario())
    assert 17 <= time <= 17 + 2 * 2.2
    assert term == 2


def test_a_read_that_hangs_is_given_up_before_it_costs_a_lease():
    async def scenario():
        candidate = Candidate(TinyServer(), "leader", troubles=[NO_ARRIVAL])
        async with campaigns(candidate):
            await asyncio.sleep(30)
        return candidate.log[0][0]

    assert virtually(scenario()) <= 5 + 2.2


WHO = st.integers(0, 2)
HOW_LONG = st.sampled_from([1, 3, 6, 11, 16, 25])
FAULT = st.one_of(
    st.tuples(st.just("stop"), WHO, HOW_LONG),
    st.tuples(st.sampled_from([SLOW_ANSWER, LOST_ANSWER, LATE_ARRIVAL, NO_ARRIVAL, REFUSED]), WHO, HOW_LONG),
    st.tuples(st.just("delete"), WHO, st.just(0)),
    st.tuples(st.just("set the clock"), WHO, st.floats(-1e5, 1e5)),
)
FAULTS = st.lists(st.tuples(st.sampled_from([0, 0.5, 1.5, 2.5, 7, 17]), FAULT), max_size=14)


async def befall(process, what, amount):
    if what == "set the clock":
        process.clock.jump(amount)
    elif what == "stop":
        process.stop()
        await asyncio.sleep(amount)
        process.go_on()
    else:
        process.link.trouble = what
        await asyncio.sleep(amount)
        process.link.trouble = FINE


async def suffer(all_three, server, faults):
    befallen = []
    for pause, (what, who, amount) in faults:
        await asyncio.sleep(pause)
        if what != "delete":
            befallen.append(asyncio.create_task(befall(all_three[who], what, amount)))
        elif LEASE in server.objects:
            server.remove(LEASE)
    await asyncio.gather(*befallen)
    await asyncio.sleep(7)  # what was under way arrives


async def longest_without_leader(electors, end):
    """The seconds, while `end` has not come; two leaders are an error."""
    now = asyncio.get_running_loop().time
    led_at, longest = now(), 0.0
    while not end.done():
        leading = [elector.identity for elector in electors if elector.leading]
        assert len(leading) <= 1, leading
        led_at = now() if leading else led_at
        longest = max(longest, now() - led_at)
        await asyncio.sleep(0.25)
    end.result()
    return longest


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(FAULTS, st.sampled_from([0, 1, 5]), st.randoms(use_true_random=False))
def test_leaders_do_not_overlap_whatever_stops_cuts_off_and_deletes(faults, ending, random):
    async def scenario():
        server = Witness()
        all_three = [Process(server, f"c{n}", ending=ending, chance=random.random) for n in range(3)]
        electors = [each.elector for each in all_three]
        async with processes(*all_three):
            # Until all know of the lease: one that does not takes its absence for a new cluster.
            await asyncio.sleep(1)
            await longest_without_leader(electors, asyncio.create_task(suffer(all_three, server, faults)))
            leaderless = await longest_without_leader(electors, asyncio.create_task(asyncio.sleep(50)))
        return leaderless, server.emptied

    leaderless, emptied = among_processes(scenario())
    assert leaderless <= 15 + 3 * 2.2
    assert all(whose == by for whose, by in emptied)
