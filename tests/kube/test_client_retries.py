import asyncio
from contextlib import suppress

import pytest

from karpool.kube.errors import ApiUnreachable, Conflict, LeadershipLost, NotFound, ServerFault, Throttled
from karpool.kube.transport.rest import RetryPolicy
from karpool.kube.transport_interface import HttpResponse
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool_fleet.clusters.clock import LoopClock
from tests.kube.tiny_server import Fault, TinyServer, status
from tests.kube.virtual import client_of, virtually

POD = "/api/v1/namespaces/default/pods/web"


def failing(times, fault):
    """The first `times` requests go wrong."""
    left = [fault] * times
    return lambda request: left.pop() if left else None


BUSY = Fault(response=status(503, "ServiceUnavailable"))
THROTTLED = Fault(response=HttpResponse(429, {"retry-after": "5"}, b""))
LOST = Fault(lose_answer=True)
UNSENT = Fault(lose_request=True)


@pytest.mark.parametrize("fault", [BUSY, THROTTLED, LOST, UNSENT], ids=["503", "429", "lost", "unsent"])
def test_a_read_is_repeated_until_it_succeeds(fault):
    async def scenario():
        server = TinyServer()
        server.put(POD)
        server.fault = failing(3, fault)
        pod = await client_of(server).get(PODS, "web", namespace="default")
        return pod["metadata"]["name"], len(server.requests)

    assert virtually(scenario()) == ("web", 4)


@pytest.mark.parametrize(
    ("fault", "error", "attempts"),
    [
        pytest.param(BUSY, ServerFault, 1, id="503 may have been carried out"),
        pytest.param(LOST, ApiUnreachable, 1, id="a lost answer may have been carried out"),
        pytest.param(THROTTLED, None, 2, id="429 was not carried out"),
        pytest.param(UNSENT, None, 2, id="nothing was sent"),
    ],
)
def test_a_create_is_repeated_only_when_it_cannot_have_happened(fault, error, attempts):
    async def scenario():
        server = TinyServer()
        server.fault = failing(1, fault)
        creation = client_of(server).create(PODS, {"metadata": {"name": "web", "namespace": "default"}})
        if error is None:
            await creation
        else:
            with pytest.raises(error):
                await creation
        return len(server.requests)

    assert virtually(scenario()) == attempts


def test_retry_after_is_waited_for():
    async def scenario():
        server = TinyServer()
        server.put(POD)
        server.fault = failing(1, THROTTLED)
        clock = LoopClock()
        await client_of(server, clock=clock).get(PODS, "web", namespace="default")
        return clock.monotonic()

    assert virtually(scenario()) == pytest.approx(5.0)


def test_attempts_are_bounded():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: BUSY
        with pytest.raises(ServerFault):
            await client_of(server, retry=RetryPolicy(attempts=3)).get(PODS, "web", namespace="default")
        return len(server.requests)

    assert virtually(scenario()) == 3


def test_a_wait_beyond_the_deadline_is_left_to_the_caller():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=HttpResponse(429, {"retry-after": "3600"}, b""))
        clock = LoopClock()
        with pytest.raises(Throttled) as caught:
            await client_of(server, clock=clock).get(PODS, "web", namespace="default")
        return caught.value.retry_after, clock.monotonic()

    assert virtually(scenario()) == (3600.0, 0.0)


@pytest.mark.parametrize("code", [404, 409])
def test_an_answer_about_the_object_is_not_repeated(code):
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=status(code, "NotFound" if code == 404 else "Conflict"))
        with pytest.raises((NotFound, Conflict)):
            await client_of(server).get(PODS, "web", namespace="default")
        return len(server.requests)

    assert virtually(scenario()) == 1


def test_a_hanging_server_costs_one_timeout_per_attempt():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(wait_before=1000.0)
        clock = LoopClock()
        client = client_of(server, clock=clock, timeout=2.0, retry=RetryPolicy(attempts=2))
        with pytest.raises(ApiUnreachable):
            await client.get(NODES, "n")
        return clock.monotonic()

    assert 4.0 <= virtually(scenario()) < 5.0


def test_json_patches_are_not_repeated_but_merge_patches_are():
    async def scenario(how, patch):
        server = TinyServer()
        server.put(POD)
        server.fault = failing(1, LOST)
        with suppress(ApiUnreachable):
            await client_of(server).patch(PODS, "web", patch, namespace="default", how=how)
        return len(server.requests)

    assert virtually(scenario("json", [{"op": "add", "path": "/spec/x/-", "value": 1}])) == 1
    assert virtually(scenario("merge", {"spec": {}})) == 2


def test_an_eviction_that_a_budget_forbids_is_reported_at_once():
    async def scenario():
        server = TinyServer()
        refusal = status(
            429, "TooManyRequests", causes=[{"reason": "DisruptionBudget", "message": "needs 2"}]
        )
        server.fault = lambda request: Fault(response=refusal)
        with pytest.raises(Throttled) as caught:
            await client_of(server).evict("web", namespace="default")
        return caught.value.has_cause("DisruptionBudget"), len(server.requests)

    assert virtually(scenario()) == (True, 1)


def test_every_attempt_is_observed():
    async def scenario():
        server = TinyServer()
        server.put(POD)
        server.fault = failing(1, BUSY)
        seen = []
        await client_of(server, observe=seen.append).get(PODS, "web", namespace="default")
        return [(attempt.method, attempt.code) for attempt in seen]

    assert virtually(scenario()) == [("GET", 503), ("GET", 200)]


def test_a_lease_client_does_not_queue_behind_bulk_work():
    async def scenario():
        server = TinyServer()
        server.put(POD)
        clock = LoopClock()
        client = client_of(server, clock=clock, qps=1, burst=1)
        bulk = [asyncio.ensure_future(client.get(PODS, "web", namespace="default")) for _ in range(10)]
        await asyncio.sleep(0)
        await client.without_limit().get(PODS, "web", namespace="default")
        urgent_at = clock.monotonic()
        await asyncio.gather(*bulk)
        return urgent_at, clock.monotonic()

    urgent_at, bulk_at = virtually(scenario())
    assert urgent_at == 0
    assert bulk_at == pytest.approx(9.0)


def test_the_deadline_also_cuts_the_attempt_under_way():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(wait_before=1000.0)
        clock = LoopClock()
        client = client_of(server, clock=clock, timeout=30.0, retry=RetryPolicy(deadline=40.0))
        with pytest.raises(ApiUnreachable):
            await client.get(NODES, "n")
        return clock.monotonic()

    assert virtually(scenario()) <= 41.0


def test_what_a_server_warns_of_is_said_once(capsys):
    async def scenario():
        server = TinyServer()
        answer = HttpResponse(200, {"warning": '299 - "unknown field \\"spec.typo\\""'}, b"{}")
        server.fault = lambda request: Fault(response=answer)
        client = client_of(server)
        for _ in range(3):
            await client.get(PODS, "web", namespace="default")

    virtually(scenario())
    said = capsys.readouterr()  # on either stream: another test may have set logging up
    assert (said.out + said.err).count("unknown field") == 1


@pytest.mark.parametrize("fault", [THROTTLED, UNSENT], ids=["429", "unsent"])
def test_whoever_lost_the_lease_while_waiting_does_not_send_a_write_again(fault):
    """As a process that was stopped between two attempts."""

    async def scenario():
        server = TinyServer()
        server.fault = failing(1, fault)
        leads = iter((True, False))

        def check():
            if not next(leads):
                raise LeadershipLost("no longer leads")

        client = client_of(server).fenced(check)
        with pytest.raises(LeadershipLost):
            await client.create(PODS, {"metadata": {"name": "web", "namespace": "default"}})
        return len(server.requests), list(server.objects)

    assert virtually(scenario()) == (1, [])


def test_who_may_not_write_may_read():
    async def scenario():
        server = TinyServer()
        server.put(POD)

        def check():
            raise LeadershipLost("no longer leads")

        return await client_of(server).fenced(check).get(PODS, "web", namespace="default")

    assert virtually(scenario())["metadata"]["name"] == "web"


def test_a_write_that_queued_is_checked_when_its_turn_comes():
    async def scenario():
        server = TinyServer()
        clock = LoopClock()
        leads_until = 0.5

        def check():
            if clock.monotonic() > leads_until:
                raise LeadershipLost("no longer leads")

        client = client_of(server, clock=clock, qps=1, burst=1).fenced(check)
        writes = [
            client.create(PODS, {"metadata": {"name": name, "namespace": "default"}}) for name in ("a", "b")
        ]
        return await asyncio.gather(*writes, return_exceptions=True), len(server.objects)

    answers, written = virtually(scenario())
    assert written == 1 and [isinstance(answer, LeadershipLost) for answer in answers] == [False, True]
