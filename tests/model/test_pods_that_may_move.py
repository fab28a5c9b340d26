"""The pod predicates of Karpenter's disruption and provisioning."""

import math

import pytest

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    eviction_cost,
    is_active,
    is_evictable,
    is_protected,
    is_provisionable,
    is_reschedulable,
    protected_seconds,
)
from tests.model.build import Raw, pod

GONE = "2026-01-01T00:00:00Z"


def owned(
    kind: str = "ReplicaSet", api: str = "apps/v1", *, phase: str = "Running", leaving: bool = False
) -> Pod:
    meta: Raw = {"ownerReferences": [{"apiVersion": api, "kind": kind, "name": "x", "uid": "1"}]}
    if leaving:
        meta["deletionTimestamp"] = GONE
    return pod("p", meta=meta, status={"phase": phase})


@pytest.mark.parametrize(
    ("made", "active", "reschedulable"),
    [
        pytest.param(owned(), True, True, id="running"),
        pytest.param(pod(), True, True, id="nobody's"),
        pytest.param(owned(phase="Succeeded"), False, False, id="done"),
        pytest.param(owned(phase="Failed"), False, False, id="failed"),
        pytest.param(owned(leaving=True), False, False, id="leaving"),
        pytest.param(owned("StatefulSet"), True, True, id="StatefulSet"),
        pytest.param(
            owned("StatefulSet", leaving=True), False, True, id="StatefulSet's, leaving: it comes back"
        ),
        pytest.param(
            owned("StatefulSet", leaving=True, phase="Failed"), False, False, id="StatefulSet's, failed"
        ),
        pytest.param(owned("DaemonSet"), True, False, id="DaemonSet"),
        pytest.param(owned("DaemonSet", "example.com/v1"), True, True, id="somebody else's DaemonSet"),
        pytest.param(owned("Node", "v1"), True, False, id="mirror pod"),
    ],
)
def test_which_pods_need_a_new_place(made: Pod, active: bool, reschedulable: bool) -> None:
    assert is_active(made) is active
    assert is_reschedulable(made) is reschedulable


@pytest.mark.parametrize(
    ("made", "protected", "evictable"),
    [
        pytest.param(owned(), False, True, id="running"),
        pytest.param(owned(), True, False, id="protected"),
        pytest.param(owned("DaemonSet"), False, True, id="daemon"),
        pytest.param(owned("Node", "v1"), False, False, id="mirror"),
        pytest.param(owned(phase="Failed"), False, False, id="failed"),
        pytest.param(pod(tolerations=[{"operator": "Exists"}]), False, False, id="tolerates everything"),
        pytest.param(
            pod(
                tolerations=[{"key": "karpenter.sh/disrupted", "operator": "Exists", "effect": "NoSchedule"}]
            ),
            False,
            False,
            id="tolerates the disruption",
        ),
        pytest.param(
            pod(tolerations=[{"key": "karpenter.sh/disrupted", "operator": "Exists", "effect": "NoExecute"}]),
            False,
            True,
            id="tolerates another effect",
        ),
    ],
)
def test_which_pods_are_evicted(made: Pod, protected: bool, evictable: bool) -> None:
    assert is_evictable(made, protected=protected) is evictable


def wishing(value: str) -> Pod:
    return pod(meta={"annotations": {"karpenter.sh/do-not-disrupt": value}})


def test_a_pod_without_a_wish_is_not_protected() -> None:
    assert protected_seconds(pod()) == 0
    assert not is_protected(pod(), None)


def test_true_protects_for_ever_and_a_duration_until_it_is_over() -> None:
    assert protected_seconds(wishing("true")) == math.inf
    assert is_protected(wishing("true"), 1e9)
    assert protected_seconds(wishing("1h30m")) == 5400
    assert is_protected(wishing("1h30m"), 5399.9)
    assert not is_protected(wishing("1h30m"), 5400)
    assert is_protected(wishing("1h30m"), None)


@pytest.mark.parametrize("value", ["false", "True", "", "0s", "-5m", "30", "1d"])
def test_other_values_are_ignored_and_named(value: str) -> None:
    assert not is_protected(wishing(value), None)
    with pytest.raises(
        Invalid, match=r"metadata\.annotations\.karpenter\.sh/do-not-disrupt: .* is ignored"
    ) as caught:
        protected_seconds(wishing(value))

    assert caught.value.value == value


def pending(
    reason: str = "Unschedulable", *, nominated: str = "", meta: Raw | None = None, **spec: str
) -> Pod:
    status = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}],
        "nominatedNodeName": nominated,
    }
    return pod("p", meta=meta, status=status, **spec)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(pending(), True, id="unschedulable"),
        pytest.param(pending("SchedulingGated"), False, id="gated"),
        pytest.param(pod(), False, id="not tried yet"),
        pytest.param(pending(nodeName="n"), False, id="bound"),
        pytest.param(pending(nominated="n"), False, id="preempting"),
        pytest.param(
            pending(meta={"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet"}]}),
            False,
            id="daemon",
        ),
    ],
)
def test_for_which_pods_karpenter_makes_room(made: Pod, expected: bool) -> None:
    assert is_provisionable(made) is expected


@pytest.mark.parametrize(
    ("annotation", "priority", "cost"),
    [
        pytest.param(None, None, 1.0, id="ordinary"),
        pytest.param("-134217728", None, 0.0, id="free"),
        pytest.param("134217728", None, 2.0, id="double"),
        pytest.param("1207959552", None, 10.0, id="the cap"),
        pytest.param("2147483647", None, 10.0, id="beyond the cap"),
        pytest.param(None, 10**9, 10.0, id="highest user priority"),
        pytest.param(None, -(10**9), -10.0, id="lowest priorities"),
        pytest.param(None, -33554432, 0.0, id="placeholder"),
        pytest.param("1e6", 0, 1.0 + 1e6 / 2**27, id="written as a float"),
        pytest.param("much", None, 1.0, id="unreadable"),
        pytest.param("nan", None, 1.0, id="not a number"),
        pytest.param("1e9999", None, 10.0, id="infinite"),
    ],
)
def test_what_it_costs_to_evict_a_pod(annotation: str | None, priority: int | None, cost: float) -> None:
    meta: Raw = (
        {"annotations": {"controller.kubernetes.io/pod-deletion-cost": annotation}} if annotation else {}
    )

    assert eviction_cost(pod("p", meta=meta, priority=priority)) == cost
