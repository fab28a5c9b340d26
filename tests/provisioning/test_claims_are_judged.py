"""What the monitor says of claims does not depend on the order in which it hears, nor on hearing twice."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.model.karpenter.objects import INITIALIZED, NODEPOOL, CompiledPool, Disruption, NodeClaim
from karpool.model.kubernetes.api_resources import PODS, ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.claims.claim_monitor import PATIENCE_SECONDS, ClaimMonitor
from karpool.provisioning.claims.claim_progress import ClaimStage, progress_of, stage_of
from karpool.provisioning.claims.node_readiness import emptiness_warning, readiness
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.placeholder import Placeholder
from karpool.provisioning.placeholders.pod_events import AutoscalerEventLog
from karpool.provisioning.placeholders.writes import DeleteBackoff

START = 1_700_000_000.0


class Now:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


def claim(name: str = "gpu-1", deleting: float | None = None, **reached: float) -> NodeClaim:
    """`reached`: seconds after creation at which Launched, Registered, Initialized became true."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": rfc3339(START + after)}
        for kind, after in reached.items()
    ]
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "creationTimestamp": rfc3339(START)}
    metadata["labels"] = {NODEPOOL: "gpu"}
    if deleting is not None:
        metadata["deletionTimestamp"] = rfc3339(START + deleting)
    status = {"conditions": conditions, "providerID": f"cloud://{name}" if reached else ""}
    return decode({"metadata": metadata, "status": status}, NodeClaim)


def refusal(name: str = "gpu-1", at: float = 2.0) -> KubeEvent:
    about = {"kind": "NodeClaim", "name": name, "uid": f"uid-{name}"}
    return decode(
        {
            "metadata": {"name": f"{name}.1", "namespace": "default"},
            "involvedObject": about,
            "reason": "InsufficientCapacityError",
            "message": "none left",
            "lastTimestamp": rfc3339(START + at),
        },
        KubeEvent,
    )


def node(name: str, provider_id: str, **labels: str) -> Node:
    return decode({"metadata": {"name": name, "labels": labels}, "spec": {"providerID": provider_id}}, Node)


def test_stages_in_the_order_of_a_life() -> None:
    lives = [
        (claim(), ClaimStage.CREATED),
        (claim(Launched=3), ClaimStage.REGISTERING),
        (claim(Launched=3, Registered=20), ClaimStage.REGISTERING),
        (claim(Launched=3, Registered=20, Initialized=40), ClaimStage.READY),
        (claim(Launched=3, deleting=900), ClaimStage.FAILED),
        (claim(Launched=3, Registered=20, Initialized=40, deleting=90), ClaimStage.READY),
    ]
    assert [stage_of(each) for each, _ in lives] == [stage for _, stage in lives]
    launching = {"metadata": {"name": "x"}, "status": {"conditions": [{"type": "Launched"}]}}
    assert stage_of(decode(launching, NodeClaim)) is ClaimStage.LAUNCHING


def test_moments_of_every_stage_and_of_the_end_are_read() -> None:
    lives = progress_of(claim(Launched=3, Registered=23), START + 100)
    assert (lives.launched, lives.registered, lives.initialized) == (START + 3, START + 23, None)
    assert lives.ended is None
    assert progress_of(claim(Launched=3, deleting=50), START + 60).ended == START + 50


Step = tuple[str, Any]


def heard(monitor: ClaimMonitor, clock: Now, steps: list[Step]) -> None:
    for what, value in steps:
        if what == "claim":
            monitor.put_claim(ObjectKey("", value.name), value)
        elif what == "gone":
            monitor.drop_claim(ObjectKey("", value))
        elif what == "event":
            monitor.put_event(ObjectKey("default", value.name), value)
        elif what == "node":
            monitor.put_node(ObjectKey("", value.name), value)


@settings(max_examples=60)
@given(st.data())
def test_the_event_of_a_stock_out_may_come_before_between_or_after(data: st.DataObject) -> None:
    clock, steps = Now(), [("claim", claim()), ("gone", "gpu-1")]
    for _ in range(data.draw(st.integers(1, 3))):
        steps.insert(data.draw(st.integers(0, len(steps))), ("event", refusal()))
    monitor = ClaimMonitor(clock)
    heard(monitor, clock, steps)
    found = monitor.progress("gpu-1")
    assert found is not None and found.ending is LaunchReason.STOCK_OUT and found.message == "none left"
    clock.at += PATIENCE_SECONDS
    monitor.tick()
    failing = [each.pool for each in monitor.failures.current(clock.at)]
    assert failing and set(failing) == {"gpu"}


@settings(max_examples=60)
@given(st.permutations(["claim", "node", "claim-again", "event"]))
def test_a_claim_that_had_a_node_was_never_out_of_stock(order: list[str]) -> None:
    clock = Now()
    steps: dict[str, Step] = {
        "claim": ("claim", claim(Launched=3, Registered=20)),
        "claim-again": ("claim", claim(Launched=3, Registered=20, Initialized=40)),
        "node": ("node", node("n-1", "cloud://gpu-1")),
        "event": ("event", refusal()),
    }
    monitor = ClaimMonitor(clock)
    heard(monitor, clock, [steps[each] for each in order])
    assert monitor.claim_of("n-1") == "gpu-1"
    found = monitor.progress("gpu-1")
    assert found is not None and found.node == "n-1" and found.ended is None and found.ending is None
    heard(monitor, clock, [("gone", "gpu-1")])
    clock.at += 100
    found = monitor.progress("gpu-1")
    assert found is not None and found.ending is LaunchReason.REMOVED and found.gone


def test_verdicts_wait_for_the_explanation_and_then_do_without() -> None:
    clock = Now()
    monitor = ClaimMonitor(clock)
    heard(monitor, clock, [("claim", claim()), ("gone", "gpu-1")])
    early = monitor.progress("gpu-1")
    assert early is not None and early.stage is ClaimStage.FAILED and early.ending is None
    clock.at += PATIENCE_SECONDS
    late = monitor.progress("gpu-1")
    assert late is not None and late.ending is LaunchReason.CLAIM_LOST
    assert monitor.progress("never-heard-of") is None


def test_launches_and_registrations_that_karpenter_gave_up_are_told_apart() -> None:
    cases: list[tuple[dict[str, Any], int, LaunchReason]] = [
        ({}, 300, LaunchReason.LAUNCH_TIMEOUT),
        ({"Launched": 3.0}, 900, LaunchReason.REGISTRATION_TIMEOUT),
        ({"Launched": 3.0}, 400, LaunchReason.CLAIM_LOST),
    ]
    for reached, age, expected in cases:
        clock = Now()
        monitor = ClaimMonitor(clock)
        heard(monitor, clock, [("claim", claim(**reached))])
        clock.at += age
        heard(monitor, clock, [("claim", claim(deleting=age, **reached)), ("gone", "gpu-1")])
        clock.at += PATIENCE_SECONDS
        found = monitor.progress("gpu-1")
        assert found is not None and found.ending is expected, (reached, age)


def test_memory_is_bounded_and_what_lives_is_never_forgotten() -> None:
    clock = Now()
    monitor = ClaimMonitor(clock)
    heard(monitor, clock, [("claim", claim("alive"))])
    for number in range(6000):
        name = f"gpu-{number}"
        heard(monitor, clock, [("claim", claim(name)), ("event", refusal(name)), ("gone", name)])
    assert monitor.progress("alive") is not None
    assert monitor.progress("gpu-0") is None and monitor.progress("gpu-5999") is not None


def said(reason: str, message: str, at: float, component: str = "karpenter", uid: str = "pod-1") -> KubeEvent:
    return decode(
        {
            "metadata": {"name": "e", "namespace": "ns"},
            "involvedObject": {"kind": "Pod", "name": "p", "uid": uid},
            "reason": reason,
            "message": message,
            "lastTimestamp": rfc3339(START + at),
            "source": {"component": component},
        },
        KubeEvent,
    )


@settings(max_examples=50)
@given(st.permutations(range(4)))
def test_the_latest_words_about_a_pod_win_in_any_order(order: list[int]) -> None:
    events = [
        said("FailedScheduling", "Failed to schedule pod, no room", 1),
        said("Nominated", "Pod should schedule on: nodeclaim/gpu-1", 5),
        said("Nominated", "Pod should schedule on: nodeclaim/gpu-2, node/n-2", 9),
        said("FailedScheduling", "0/3 nodes are available", 20, "default-scheduler"),
    ]
    words = AutoscalerEventLog(Now())
    for index in order:
        words.put(ObjectKey("ns", "e"), events[index])
    found = words.events_of("pod-1")
    assert found.coming is not None and (found.coming.claim, found.coming.node) == ("gpu-2", "n-2")
    assert not found.latest_is_refusal, "kube-scheduler says only that there is no room now"
    refused = said("NotTriggerScaleUp", "pod didn't trigger scale-up", 30, "cluster-autoscaler")
    words.put(ObjectKey("ns", "e"), refused)
    assert words.events_of("pod-1").latest_is_refusal
    assert words.events_of("other").coming is None


def placeholder(deleting: float | None = None) -> Placeholder:
    deleting_since = None if deleting is None else START + deleting
    return Placeholder(
        PODS,
        ObjectKey("ns", "p"),
        "uid-1",
        "r",
        1,
        0,
        RequestPurpose.SCALE_UP,
        START,
        deleting_since=deleting_since,
    )


@settings(max_examples=60)
@given(st.lists(st.floats(0.0, 30.0), max_size=60))
def test_no_object_is_deleted_more_than_once_in_five_seconds(pauses: list[float]) -> None:
    """S19, also for a pod that never goes; and the tries become rare."""
    pace, now, tried = DeleteBackoff(), START, []
    for pause in pauses:
        now += pause
        if pace.is_due(placeholder(), now):
            assert now >= pace.next_at(placeholder()) - 1e-6
            pace.tried(placeholder(), now)
            tried.append(now)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert all(gap >= min(60.0, 5.0 * 2**number) for number, gap in enumerate(gaps))


def test_who_was_restarted_sees_that_a_deletion_was_asked_for() -> None:
    assert not DeleteBackoff().is_due(placeholder(deleting=0), START + 4)
    assert DeleteBackoff().is_due(placeholder(deleting=0), START + 5)
    assert DeleteBackoff().is_due(placeholder(), START)


def test_age_counts_from_creation_whether_bound_or_not() -> None:
    assert not placeholder().is_overdue(START + 2399, 2400)
    assert placeholder().is_overdue(START + 2400, 2400)


def test_a_node_is_ready_for_us_in_this_order() -> None:
    def shown(**changes: Any) -> Node:
        labels = {NODEPOOL: "gpu", INITIALIZED: "true"} | changes.pop("labels", {})
        conditions = [{"type": "Ready", "status": changes.pop("ready", "True")}]
        devices = changes.pop("devices", "8")
        raw = {"metadata": {"name": "n", "labels": labels} | changes.pop("metadata", {})}
        raw |= {"spec": changes.pop("spec", {})}
        raw |= {"status": {"conditions": conditions, "allocatable": {"nvidia.com/gpu": devices}}}
        return decode(raw, Node)

    expected = {"nvidia.com/gpu": 8}
    assert readiness(shown(), expected) is None
    assert readiness(None, expected).reason is LaunchReason.NODE_MISSING
    assert readiness(shown(ready="False"), expected).reason is LaunchReason.NODE_NOT_READY
    assert readiness(shown(labels={INITIALIZED: ""}), expected).reason is LaunchReason.NODE_NOT_INITIALIZED
    seven = readiness(shown(devices="7"), expected)
    assert seven.reason is LaunchReason.DEVICES_MISSING and "7 of 8 nvidia.com/gpu" in seven.detail
    assert readiness(shown(devices="zero"), expected).reason is LaunchReason.DEVICES_MISSING
    going = shown(metadata={"deletionTimestamp": rfc3339(START)})
    assert readiness(going, expected).reason is LaunchReason.NODE_GOING
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    assert readiness(shown(spec={"taints": [taint]}), expected).reason is LaunchReason.NODE_GOING


def test_a_pool_that_removes_empty_nodes_too_soon_is_warned_about() -> None:
    def warning(after: str) -> str | None:
        return emptiness_warning(CompiledPool("gpu", disruption=Disruption(consolidate_after=after)), 120)

    assert warning("180s") is None and warning("Never") is None
    assert "set it to 180s" in (warning("30s") or "")
    assert "consolidateAfter" in (warning("soon") or "")
