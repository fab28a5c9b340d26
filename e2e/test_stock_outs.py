"""A pool that cannot deliver stops counting, replicas go elsewhere, and it is believed again later."""

import contextlib
from collections.abc import Iterator

import pytest

from e2e.kubectl import wait_for
from e2e.member import NODE_CLASS, Member, node_pool, without_nodes
from e2e.scene import Scene
from e2e.workloads import AGGREGATED, deployment, policy

OURS = "karpool-scheduler"
BOTH = ["elastic", "static"]
# Quick to give up on a pool, and quick to try it again.
IMPATIENT = (
    "--node-capacity-providers=karpenter",
    "--failure-threshold=8s",
    "--recovery-interval=25s",
)

# Room that would have to be bought counts like room that is there; by default the latter is filled first.
BY_TOTAL = ("--room-order=by-total",)


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


def _limits(member: Member, cpu: str) -> None:
    member.kubectl.apply(node_pool(types=("m5.large",), limits={"cpu": cpu}))


def _placed(scene: Scene, namespace: str, name: str, replicas: int, cpu: str = "500m") -> dict[str, int]:
    """A workload, and where it goes. Answers about one size are kept for a second: another asks anew."""
    scene.control.kubectl.apply(deployment(name, namespace, replicas, cpu))
    binding = f"{name}-deployment"
    return wait_for(f"{name} placed", lambda: scene.control.placements(namespace).get(binding)) or {}


def test_a_pool_whose_limits_are_taken_away_stops_counting_and_recovers(scene: Scene, empty: Member) -> None:
    _limits(empty, "0")
    scene.estimators("karpool", BOTH, IMPATIENT)
    scene.scheduler("karpool", BY_TOTAL)
    namespace = scene.namespace()
    scene.control.kubectl.apply(policy("all", namespace, BOTH, AGGREGATED, OURS))
    assert _placed(scene, namespace, "none", 4) == {"static": 4}
    _limits(empty, "64")
    assert _placed(scene, namespace, "room", 6, "600m") == {"elastic": 6}
    empty.wait_running(namespace, 6)


def test_a_pool_whose_machines_cannot_be_made_stops_counting_and_recovers(
    scene: Scene, empty: Member
) -> None:
    _limits(empty, "64")
    scene.estimators("karpool", BOTH, IMPATIENT)
    scene.scheduler("karpool", BY_TOTAL)
    namespace = scene.namespace()
    scene.control.kubectl.apply(policy("all", namespace, BOTH, AGGREGATED, OURS))
    with _without_node_class(empty):
        wait_for("the pool is not ready", lambda: not _ready(empty))
        assert _placed(scene, namespace, "none", 4) == {"static": 4}
    wait_for("the pool is ready", lambda: _ready(empty))
    assert _placed(scene, namespace, "room", 6, "600m") == {"elastic": 6}
    empty.wait_running(namespace, 6)


def test_replicas_that_wait_for_a_pool_that_launches_nothing_move(
    scene: Scene, empty: Member, static: Member
) -> None:
    _limits(empty, "64")
    scene.estimators("karpool", BOTH, IMPATIENT)
    scene.scheduler("karpool", BY_TOTAL)
    quick = ["--unschedulable-threshold=15s", "--descheduling-interval=3s"]
    descheduler = scene.descheduler("karpool", quick)
    namespace = scene.namespace()
    scene.control.kubectl.apply(policy("all", namespace, BOTH, AGGREGATED, OURS))
    with _without_new_claims(empty):
        assert _placed(scene, namespace, "web", 6) == {"elastic": 6}
        static.wait_running(namespace, 6)
        wait_for("moved", lambda: scene.control.placements(namespace)["web-deployment"] == {"static": 6})
        reasons = {event["reason"] for event in empty.kubectl.items("events", "-A")}
        assert "CapacityNotCounted" in reasons
        assert not empty.kubectl.items("nodeclaims")
    descheduler.stop()  # a machine that is busy launches later than it waits
    # One node's worth is offered first; what runs on it opens the rest.
    tried = scene.namespace()
    scene.control.kubectl.apply(policy("elastic", tried, ["elastic"], AGGREGATED, OURS))
    wait_for("tried again", lambda: _placed(scene, tried, "probe", 2) == {"elastic": 2})
    empty.wait_running(tried, 2)
    wait_for("believed again", lambda: _placed_in_elastic(scene, namespace))
    empty.wait_running(namespace, 20)


def _placed_in_elastic(scene: Scene, namespace: str) -> bool:
    """More than the other member can hold: goes to this one once it counts again."""
    return _placed(scene, namespace, "later", 20) == {"elastic": 20}


def _ready(member: Member) -> bool:
    pool = member.kubectl.get("nodepool", "general")
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pool["status"].get("conditions", ()))


@contextlib.contextmanager
def _without_node_class(member: Member) -> Iterator[None]:
    member.kubectl("delete", "kwoknodeclass", "default", "--wait=false")
    try:
        yield
    finally:
        member.kubectl.apply(NODE_CLASS)


@contextlib.contextmanager
def _without_new_claims(member: Member) -> Iterator[None]:
    """The API server refuses every new claim, as an account without quota would."""
    name = "no-more-machines"
    rules = {
        "apiGroups": ["karpenter.sh"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["nodeclaims"],
    }
    kind = "admissionregistration.k8s.io/v1"
    member.kubectl.apply(
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rules]},
                "validations": [{"expression": "false", "message": "no machine of that kind is left"}],
            },
        },
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    )
    probe = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "probe"},
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            "requirements": [],
        },
    }
    try:
        wait_for("claims are refused", lambda: not member.kubectl.admits(probe))
        yield
    finally:
        kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy"
        member.kubectl("delete", kinds, name, "--ignore-not-found")
