"""The copy ends up equal to the server's state, and no listener ever sees time go backwards."""

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from karpool.kube.transport_interface import HttpResponse
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import PODS, ListOptions, ObjectKey
from karpool.model.kubernetes.meta import WireObject
from tests.kube.handlers import Handlers
from tests.kube.tiny_server import Fault, TinyServer, line, status
from tests.kube.virtual import client_of, virtually

PODS_OF = "/api/v1/namespaces/default/pods"


class Journal:
    """A sink that keeps its own copy and insists on order."""

    def __init__(self):
        self.batches = []
        self.versions = {}
        self.newest = {}

    def apply(self, changes):
        self.batches.append(list(changes))
        for change in changes:
            name = change.key.name
            if change.type == "DELETED":
                assert name in self.versions, f"{name} deleted but never added"
                del self.versions[name]
                continue
            version = int(change.object.metadata.resource_version)
            assert version > self.newest.get(name, 0), f"{name}: {version} after {self.newest[name]}"
            assert (change.type == "MODIFIED") == (name in self.versions)
            self.newest[name] = self.versions[name] = version

    @property
    def types(self):
        return [(change.type, change.key.name) for batch in self.batches for change in batch]


def truth(server):
    return {
        path.rpartition("/")[2]: int(obj["metadata"]["resourceVersion"])
        for path, obj in server.objects.items()
    }


async def followed(server, life, *, wait=300.0, **settings):
    """Run an informer while `life` happens, then long enough for everything to settle."""
    journal = Journal()
    informer = Informer(client_of(server), PODS, into=WireObject, **settings)
    informer.add_sink(journal)
    running = asyncio.ensure_future(informer.run())
    try:
        await informer.synced.wait()
        await asyncio.sleep(1)  # the watch is open
        await life()
        await asyncio.sleep(wait)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return informer, journal


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "put", "remove", "cut", "compact", "wait", "lose", "garble", "repeat"]
        ),
        st.integers(0, 4),
    ),
    max_size=40,
)


class Adversary:
    """Plays steps against a server; requests and streams are disturbed on the way."""

    def __init__(self, server):
        self.server = server
        self.lost = 0
        server.fault = self.fault

    def fault(self, request):
        if self.lost:
            self.lost -= 1
            return Fault(lose_request=True) if self.lost % 2 else Fault(response=status(500, "InternalError"))
        return None

    async def play(self, steps):
        for action, number in steps:
            path = f"{PODS_OF}/p{number}"
            if action == "put":
                self.server.put(path)
            elif action == "remove" and path in self.server.objects:
                self.server.remove(path)
            elif action == "cut":
                self.server.cut()
            elif action == "compact":
                self.server.compact()
                self.server.cut()
            elif action == "wait":
                await asyncio.sleep(number)
            elif action == "lose":
                self.lost = number
            elif action == "garble":
                self.server.chunking = lambda data: [data[: len(data) // 2], b"\xff{\n"]
                await asyncio.sleep(1)
                self.server.chunking = lambda data: [data]
                self.server.cut()
            elif action == "repeat":  # everything twice, and an old event once more at the end
                self.server.chunking = lambda data: [data, data, data.splitlines(keepends=True)[0]]


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_whatever_happens_the_copy_converges(steps, keep):
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/p0")
        adversary = Adversary(server)
        informer, journal = await followed(server, lambda: adversary.play(steps), keep=keep)
        return truth(server), journal.versions, {key.name for key in informer}

    expected, seen, keys = virtually(scenario())
    assert seen == expected
    assert keys == set(expected)


def test_deletions_missed_while_disconnected_are_delivered():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/stays")
        server.put(f"{PODS_OF}/goes")

        async def life():
            server.fault = lambda request: Fault(lose_request=True)
            server.cut()
            server.remove(f"{PODS_OF}/goes")
            server.compact()
            await asyncio.sleep(10)
            server.fault = lambda request: None

        _, journal = await followed(server, life)
        return journal.types

    assert virtually(scenario())[-1] == ("DELETED", "goes")


def test_an_object_replaced_by_one_of_the_same_name_is_deleted_and_added():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/web")

        async def life():
            server.fault = lambda request: Fault(lose_request=True)
            server.cut()
            server.remove(f"{PODS_OF}/web")
            server.put(f"{PODS_OF}/web")
            server.compact()
            await asyncio.sleep(10)
            server.fault = lambda request: None

        _, journal = await followed(server, life)
        return journal.types

    assert virtually(scenario()) == [("ADDED", "web"), ("DELETED", "web"), ("ADDED", "web")]


def test_a_relist_tells_only_of_what_changed():
    async def scenario():
        server = TinyServer()
        for number in range(5):
            server.put(f"{PODS_OF}/p{number}")

        async def life():
            server.put(f"{PODS_OF}/p3")
            server.compact()
            server.cut()

        _, journal = await followed(server, life)
        return journal.types[5:]

    assert virtually(scenario()) == [("MODIFIED", "p3")]


def test_a_list_older_than_what_was_seen_is_not_believed_at_first():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/web")
        old = {"metadata": {"resourceVersion": "50"}, "items": []}
        lies = 2

        def fault(request):
            nonlocal lies
            if lies and "watch" not in dict(request.query):
                lies -= 1
                return Fault(response=HttpResponse(200, {}, msgspec.json.encode(old)))
            return None

        async def life():
            server.fault = fault
            server.compact()
            server.put(f"{PODS_OF}/web")
            server.compact()
            server.cut()

        _, journal = await followed(server, life)
        return journal.types

    assert virtually(scenario()) == [("ADDED", "web"), ("MODIFIED", "web")]


def test_a_server_that_started_afresh_is_followed_in_the_end():
    async def scenario():
        first = TinyServer()
        first.version = 5000
        first.put(f"{PODS_OF}/old")

        async def life():
            first.remove(f"{PODS_OF}/old")
            first.objects.clear()
            first.history.clear()
            first.version = 10
            first.put(f"{PODS_OF}/new")
            first.fault = lambda request: (
                Fault(response=status(504, "Timeout", causes=[{"reason": "ResourceVersionTooLarge"}]))
                if dict(request.query).get("resourceVersion", "0") > "1000" and first.version < 100
                else None
            )
            first.cut()

        informer, journal = await followed(first, life)
        return [key.name for key in informer], journal.versions

    assert virtually(scenario()) == (["new"], {"new": 11})


def test_a_listener_that_raises_harms_nobody_else():
    class Faulty:
        def apply(self, changes):
            raise RuntimeError("faulty")

    async def scenario():
        server = TinyServer()
        journal = Journal()
        informer = Informer(client_of(server), PODS, into=WireObject)
        informer.add_sink(Faulty())
        informer.add_sink(journal)
        running = asyncio.ensure_future(informer.run())
        await informer.synced.wait()
        server.put(f"{PODS_OF}/web")
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return journal.types

    assert virtually(scenario()) == [("ADDED", "web")]


def test_handlers_are_told_what_was_before():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/web")
        said = []
        informer = Informer(client_of(server), PODS, into=WireObject)
        informer.add_sink(
            Handlers(
                lambda new: said.append(("add", new.metadata.resource_version)),
                lambda old, new: said.append(
                    ("update", old.metadata.resource_version, new.metadata.resource_version)
                ),
                lambda key, last: said.append(("delete", str(key), last.metadata.resource_version)),
            )
        )
        running = asyncio.ensure_future(informer.run())
        await informer.synced.wait()
        server.put(f"{PODS_OF}/web")
        server.remove(f"{PODS_OF}/web")
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return said

    assert virtually(scenario()) == [
        ("add", "101"),
        ("update", "101", "102"),
        ("delete", "default/web", "103"),
    ]


def test_a_late_listener_is_told_of_what_is_there():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/web")
        informer, _ = await followed(server, lambda: asyncio.sleep(0))
        late = Journal()
        informer.add_sink(late)
        return late.types, informer.get(ObjectKey("default", "web")).name, len(informer)

    assert virtually(scenario()) == ([("ADDED", "web")], "web", 1)


def test_an_unreadable_deletion_still_deletes():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/web")

        async def life():
            gone = {
                "metadata": {"name": "web", "namespace": "default", "resourceVersion": "900", "labels": 1}
            }
            body = line("DELETED", gone)
            left = [Fault(response=HttpResponse(200, {}, body))]
            server.fault = lambda request: left.pop() if left else None
            server.cut()

        _, journal = await followed(server, life, wait=1.0)
        return journal.types

    assert virtually(scenario()) == [("ADDED", "web"), ("DELETED", "web")]


def test_staleness_grows_while_the_server_is_away():
    async def scenario():
        server = TinyServer()

        async def life():
            server.fault = lambda request: Fault(lose_request=True)
            server.cut()

        informer = Informer(client_of(server), PODS, into=WireObject)
        before = informer.staleness()
        informer, _ = await followed(server, life, wait=100.0)
        return before, informer.staleness()

    before, after = virtually(scenario())
    assert before == float("inf")
    assert after == pytest.approx(101.0)


def test_a_forbidden_kind_is_asked_for_less_and_less():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=status(403, "Forbidden", "no list on pods"))
        informer = Informer(client_of(server), PODS, into=WireObject)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await informer.run()
        return len(server.requests), str(informer.last_error), informer.synced.is_set()

    asked, reason, synced = virtually(scenario())
    assert asked < 100
    assert "403 Forbidden: no list on pods" in reason
    assert not synced


@pytest.mark.parametrize(
    ("optional", "troubles", "warnings"),
    [
        pytest.param(False, [404], ["404"], id="missing"),
        pytest.param(False, [404, 403, 404], ["404", "403", "404"], id="something else is wrong"),
        pytest.param(True, [404], [], id="missing where it may be"),
        pytest.param(True, [404, 403, 404], ["403"], id="closed where it may be missing"),
    ],
)
def test_the_same_trouble_is_said_once_however_long_it_lasts(optional, troubles, warnings):
    reasons = {404: "NotFound", 403: "Forbidden"}

    async def scenario():
        server = TinyServer()
        informer = Informer(client_of(server), PODS, into=WireObject, optional=optional)
        running = asyncio.create_task(informer.run())
        for code in troubles:
            server.fault = lambda request, code=code: Fault(response=status(code, reasons[code]))
            await asyncio.sleep(3600)
        running.cancel()
        return len(server.requests)

    with capture_logs() as logs:
        asked = virtually(scenario())
    said = [log["reason"] for log in logs if log["log_level"] == "warning"]
    assert asked > 30 * len(troubles)
    assert [code for each in said for code in ("404", "403") if code in each] == warnings


def test_the_selection_is_used_for_list_and_watch():
    async def scenario():
        server = TinyServer()
        await followed(server, lambda: asyncio.sleep(0), selection=ListOptions("default", "app=web"))
        return [(request.path, dict(request.query)["labelSelector"]) for request in server.requests]

    asked = virtually(scenario())
    assert len(asked) >= 2
    assert set(asked) == {(PODS_OF, "app=web")}


class Strict(WireObject, frozen=True):
    """Of which one field can be wrong."""

    status: dict[str, str] | None = None


class Unreadable(Journal):
    """Also told of objects that cannot be read."""

    takes_unreadable = True

    def __init__(self):
        super().__init__()
        self.told = []

    def apply(self, changes):
        self.told += [(change.key.name, change.raw) for change in changes if change.type == "UNREADABLE"]


@pytest.mark.parametrize("relist", [False, True], ids=["on the watch", "at a relist"])
@pytest.mark.parametrize("known", [False, True], ids=["new", "known before"])
def test_an_object_that_cannot_be_decoded_is_there_all_the_same(relist, known):
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/other")
        if known:
            server.put(f"{PODS_OF}/p")
        plain, full = Journal(), Unreadable()
        informer = Informer(client_of(server), PODS, into=Strict, keep=False)
        informer.add_sink(plain)
        informer.add_sink(full)
        running = asyncio.ensure_future(informer.run())
        await informer.synced.wait()
        await asyncio.sleep(1)
        if relist:
            server.fault = lambda request: Fault(lose_request=True)
            server.cut()
        server.put(f"{PODS_OF}/p", status="none")
        if relist:
            server.compact()
            server.fault = lambda request: None
        await asyncio.sleep(300)
        held = dict(informer.unreadable)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return plain.types, full.told, held

    types, told, held = virtually(scenario())
    assert ("DELETED", "p") not in types
    assert [name for name, _ in told] == ["p"]
    assert b'"none"' in told[0][1]
    assert list(held) == [ObjectKey("default", "p")]


class OfWholeKind(Unreadable):
    """Also told of a kind that may not be listed."""

    takes_whole_kind = True

    def apply(self, changes):
        self.told += [(change.type, change.key.name) for change in changes]


def test_who_cares_is_told_of_a_kind_that_may_not_be_listed_and_when_it_may():
    async def scenario():
        server = TinyServer()
        server.put(f"{PODS_OF}/p")
        server.fault = lambda request: Fault(response=status(403, "Forbidden", "no"))
        plain, full = Unreadable(), OfWholeKind()
        informer = Informer(client_of(server), PODS, into=Strict, keep=False)
        informer.add_sink(plain)
        informer.add_sink(full)
        running = asyncio.ensure_future(informer.run())
        await asyncio.sleep(100)
        server.fault = lambda request: None
        await informer.synced.wait()
        server.fault = lambda request: Fault(response=status(403, "Forbidden", "no"))
        server.cut()  # what was listed once grows old instead
        await asyncio.sleep(100)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return plain.told, full.told

    plain, full = virtually(scenario())
    assert plain == []
    assert full == [("UNREADABLE", "*"), ("ADDED", "p"), ("DELETED", "*")]
