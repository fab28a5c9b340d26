import asyncio

import pytest

from karpool.kube.event_recorder import OBJECT_BURST, EventRecorder, ObjectReference, ref
from karpool.kube.transport.rest import NEVER
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.meta import ObjectMeta, WireObject
from tests.kube.tiny_server import Fault, TinyServer, status
from tests.kube.virtual import client_of, virtually

POD = ObjectReference("v1", "Pod", "default", "web", "uid-1")
NODE = ObjectReference("v1", "Node", "", "n1")


def recorder_of(server, **settings):
    draws = iter(range(1, 10**6))
    client = client_of(server, retry=NEVER, chance=lambda: next(draws) / 10**6)
    return EventRecorder(client, "karpool-estimator", **settings)


def events(server):
    return [obj for path, obj in server.objects.items() if "/events/" in path]


def writes(server):
    return [request.method for request in server.requests]


def test_an_event_says_who_what_and_when_as_kubectl_shows_it():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        recorder.record(POD, "Warning", "FailedScheduling", "0/3 nodes fit")
        await recorder.flush()
        return events(server)

    (event,) = virtually(scenario())
    assert event["kind"] == "Event"
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "uid-1",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == (
        "Warning",
        "FailedScheduling",
        "0/3 nodes fit",
        1,
    )
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-01T00:00:00Z"
    assert event["source"] == {"component": "karpool-estimator"}


def test_the_same_statement_within_the_window_is_one_event_that_counts():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        for _ in range(3):
            recorder.record(POD, "Normal", "Nominated", "node n1")
            await recorder.flush()
            await asyncio.sleep(60)
        return events(server), writes(server)

    (event,), methods = virtually(scenario())
    assert (event["count"], event["lastTimestamp"]) == (3, "2026-01-01T00:02:00Z")
    assert methods == ["POST", "PATCH", "PATCH"]


def test_repetitions_before_the_write_cost_nothing():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        for _ in range(500):
            recorder.record(POD, "Normal", "Nominated", "node n1")
        await recorder.flush()
        return events(server)[0]["count"], writes(server)

    assert virtually(scenario()) == (500, ["POST"])


def test_after_the_window_a_new_event_is_written():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server, window_seconds=600)
        for _ in range(2):
            recorder.record(POD, "Normal", "Nominated", "node n1")
            await recorder.flush()
            await asyncio.sleep(601)
        return [event["count"] for event in events(server)]

    assert virtually(scenario()) == [1, 1]


def test_an_event_that_expired_on_the_server_is_written_anew():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        recorder.record(POD, "Normal", "Nominated", "node n1")
        await recorder.flush()
        server.objects.clear()
        recorder.record(POD, "Normal", "Nominated", "node n1")
        await recorder.flush()
        return writes(server), len(events(server))

    assert virtually(scenario()) == (["POST", "PATCH", "POST"], 1)


def test_one_noisy_object_does_not_silence_another():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        for number in range(OBJECT_BURST + 10):
            recorder.record(POD, "Normal", "Tried", f"attempt {number}")
        recorder.record(NODE, "Normal", "Cordoned", "by hand")
        await recorder.flush()
        return len(events(server)), recorder.dropped

    assert virtually(scenario()) == (OBJECT_BURST + 1, 10)


def test_events_about_cluster_scoped_objects_live_in_default():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        recorder.record(NODE, "Normal", "Cordoned", "by hand")
        await recorder.flush()
        return events(server)[0]["metadata"]["namespace"]

    assert virtually(scenario()) == "default"


@pytest.mark.parametrize(
    "fault",
    [Fault(lose_request=True), Fault(response=status(403, "Forbidden")), Fault(response=status(500, "x"))],
    ids=["unreachable", "forbidden", "500"],
)
def test_a_failing_server_never_reaches_the_caller(fault):
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: fault
        recorder = recorder_of(server)
        async with asyncio.timeout(100):
            running = asyncio.ensure_future(recorder.run())
            recorder.record(POD, "Normal", "Nominated", "node n1")
            await asyncio.sleep(10)
            server.fault = lambda request: None
            recorder.record(POD, "Normal", "Nominated", "node n2")
            await asyncio.sleep(10)
            running.cancel()
        return recorder.dropped, [event["message"] for event in events(server)]

    assert virtually(scenario()) == (1, ["node n2"])


def test_what_waits_is_bounded():
    async def scenario():
        recorder = recorder_of(TinyServer(), pending_limit=5)
        for number in range(20):
            recorder.record(NODE._replace(name=f"n{number}"), "Normal", "Seen", "once")
        return recorder.dropped

    assert virtually(scenario()) == 15


def test_a_long_message_is_cut_between_characters():
    async def scenario():
        server = TinyServer()
        recorder = recorder_of(server)
        recorder.record(POD, "Normal", "R" * 500, "é" * 5000)
        await recorder.flush()
        return events(server)[0]

    event = virtually(scenario())
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("é...")
    assert len(event["reason"]) == 128


def test_a_reference_is_made_from_an_object():
    pod = WireObject(metadata=ObjectMeta(name="web", namespace="default", uid="uid-1"))

    assert ref(PODS, pod) == POD
    assert ref(NODES, {"metadata": {"name": "n1"}}) == NODE


def test_what_was_said_long_ago_is_forgotten():
    async def scenario():
        recorder = recorder_of(TinyServer())
        for number in range(100):
            recorder.record(POD._replace(name=f"web-{number}"), "Normal", "Placed", "here")
        await recorder.flush()
        many = len(recorder._written), len(recorder._limits)
        await asyncio.sleep(4 * 3600)
        recorder.record(NODE, "Normal", "Placed", "here")
        await recorder.flush()
        return many, (len(recorder._written), len(recorder._limits))

    assert virtually(scenario()) == ((100, 100), (1, 1))
