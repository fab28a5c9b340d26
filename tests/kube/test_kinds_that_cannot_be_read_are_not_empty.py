"""A kind that exists and cannot be listed means "not ready", never "none"; a frozen picture grows old."""

import asyncio
from types import SimpleNamespace

import pytest

from karpool.cluster.changes import PutDropSink
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.readiness import ManagerStatus
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.meta import WireObject
from tests.kube.tiny_server import Fault, TinyServer, status
from tests.kube.virtual import client_of, virtually

POD = "/api/v1/namespaces/default/pods/p"


async def followed(life, *others, **declared):
    """`others` read the same kind, each as it declares."""
    server = TinyServer()
    sink = PutDropSink(lambda key, obj: None, lambda key: None)
    readers = [WatchedKind(PODS, WireObject, sink, **reader) for reader in (declared, *others)]
    informers = InformerSet(client_of(server), readers)
    running = asyncio.ensure_future(informers.run())
    try:
        await life(server)
        return informers.not_ready(), informers.staleness(), informers.unseen()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def answering(code, reason):
    async def life(server):
        server.fault = lambda request: Fault(response=status(code, reason))
        await asyncio.sleep(30)

    return life


def then(code, reason, *, with_objects=True):
    """First well, then an hour like this."""

    async def life(server):
        if with_objects:
            server.put(POD)
        await asyncio.sleep(30)
        server.fault = lambda request: Fault(response=status(code, reason))
        server.cut()
        await asyncio.sleep(3600)

    return life


def test_a_kind_that_is_not_served_has_no_objects():
    not_ready, staleness, unseen = virtually(followed(answering(404, "NotFound"), optional=True))
    assert (not_ready, staleness, unseen) == (None, 0.0, [])


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (503, "ServiceUnavailable")])
def test_one_that_is_served_and_cannot_be_listed_is_waited_for(code, reason):
    not_ready, staleness, _ = virtually(followed(answering(code, reason), optional=True))
    assert "pods were not listed yet" in not_ready
    assert staleness == float("inf")


def test_who_needs_the_kind_waits_for_one_that_is_not_served():
    assert virtually(followed(answering(404, "NotFound")))[0] is not None


def test_a_kind_that_only_refines_may_be_closed_and_that_is_said():
    not_ready, staleness, unseen = virtually(
        followed(answering(403, "Forbidden"), optional=True, refines=True)
    )
    assert (not_ready, staleness) == (None, 0.0)
    assert "pods" in unseen[0]


def test_a_kind_that_only_refines_and_fails_is_waited_for():
    failing = answering(503, "ServiceUnavailable")
    assert virtually(followed(failing, optional=True, refines=True))[0] is not None


@pytest.mark.parametrize("refines", [False, True])
def test_rights_that_are_withdrawn_make_the_picture_old(refines):
    not_ready, staleness, _ = virtually(followed(then(403, "Forbidden"), optional=True, refines=refines))
    assert not_ready is None
    assert staleness > 3500


def test_a_kind_that_goes_away_with_its_objects_is_not_believed():
    assert virtually(followed(then(404, "NotFound"), optional=True))[1] > 3500
    assert virtually(followed(then(404, "NotFound", with_objects=False), optional=True))[1] == 0.0


def test_who_needs_a_kind_waits_for_it_though_another_does_not():
    can_do_without = {"optional": True, "refines": True}
    assert virtually(followed(answering(404, "NotFound"), {}, optional=True))[0] is not None
    not_ready, _, unseen = virtually(
        followed(answering(403, "Forbidden"), {"optional": True}, **can_do_without)
    )
    assert not_ready is not None
    assert unseen == []


def test_a_picture_is_as_old_as_the_kind_that_has_waited_longest():
    def told(seconds):
        return SimpleNamespace(staleness=lambda: seconds)

    informers = InformerSet(client_of(TinyServer()), [])
    informers._followers = [told(5.0), told(90.0), told(7.0)]
    assert informers.staleness() == 90.0

    status_ = ManagerStatus(60.0)
    status_.informers = [told(1.0), informers, told(2.0)]
    assert status_.staleness() == 90.0
    assert status_.is_stale()
    for bound in (90.0, 0.0):  # exactly the bound is not beyond it; without one, no age is too old
        lenient = ManagerStatus(bound)
        lenient.informers = status_.informers
        assert not lenient.is_stale()


@pytest.mark.parametrize(
    ("clusters", "waits"),
    [
        ([("", False)], False),
        ([("pods", False)], True),
        ([("pods", True)], True),  # the only one
        ([("pods", True), ("", False)], False),  # it cannot be reached, and the other can
        ([("pods", False), ("", False)], True),  # it is still listing
        ([("pods", True), ("nodes", False), ("", False)], True),
        ([("pods", True), ("nodes", True)], True),
    ],
)
def test_a_cluster_that_cannot_be_reached_holds_up_no_other(clusters, waits):
    status_ = ManagerStatus()
    status_.informers = [
        SimpleNamespace(not_ready=lambda reason=reason: reason or None, failing=failing)
        for reason, failing in clusters
    ]
    assert (status_.not_ready() is not None) == waits


def test_who_waits_for_a_fresh_picture_is_woken_by_a_stop():
    async def waiting(*, stopped):
        status_, stop = ManagerStatus(60.0), Stop()
        ages = [90.0, 90.0] if not stopped else []
        status_.informers = [SimpleNamespace(staleness=lambda: ages.pop() if ages else 90.0 * stopped)]
        if stopped:
            asyncio.get_running_loop().call_later(5.0, stop.set)
        return await status_.fresh(stop)

    assert virtually(waiting(stopped=True)) is False
    assert virtually(waiting(stopped=False)) is True
