"""Many workloads at once, and the leading scheduler ends in the middle: nobody is given what is not there.

A second scheduler waits for the lease in every scenario. The first dies, stands still and wakes
up too late, or is asked to stop.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import pytest

from e2e.karmada import SYSTEM
from e2e.kubectl import Object, condition, wait_for
from e2e.member import Member, node_pool, without_nodes
from e2e.processes import Program
from e2e.scene import OVERCOMMIT, Make, Scene
from e2e.workloads import AGGREGATED, deployment, policy

OURS = "karpool-scheduler"
HAND_OVER_SECONDS = 20.0
BURST_SECONDS = 5.0
End = Literal["killed", "paused", "stopped"]


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


@pytest.mark.parametrize(("make", "end"), [("karpool", "paused"), ("go", "stopped")])
def test_existing_nodes_are_given_away_once(scene: Scene, static: Member, make: Make, end: End) -> None:
    """Three machines of four cores hold 24 halves; fourteen workloads ask for three halves each."""
    scene.estimators(make, ["static"], [OVERCOMMIT])
    namespace = scene.namespace()
    _burst(scene, namespace, ["static"], 14, fitting=8, end=end)
    static.wait_running(namespace, 24)


def test_nodes_that_are_still_to_come_are_given_away_once(scene: Scene, empty: Member) -> None:
    """Four m5.large of three halves each: twelve, which is four workloads.

    Nodes are limited, not cores: kwok's nodes report as capacity only what was asked of them, so
    that Karpenter, and we, see some of a limit on cores come back once they are there.
    """
    empty.kubectl.apply(node_pool(types=("m5.large",), limits={"nodes": "4"}))
    scene.estimators("karpool", ["elastic"], [OVERCOMMIT, "--node-capacity-providers=karpenter"])
    namespace = scene.namespace()
    _burst(scene, namespace, ["elastic"], 8, fitting=4, end="killed")
    empty.wait_running(namespace, 12)
    assert len(empty.kubectl.items("nodeclaims")) == 4


def test_forty_deployments_of_one_replica_find_room_for_42_at_once(scene: Scene, empty: Member) -> None:
    """21 m5.large hold two of these each: nobody is refused, and each waits for its own decision only."""
    empty.kubectl.apply(node_pool(types=("m5.large",), limits={"nodes": "21"}))
    scene.estimators("karpool", ["elastic"], [OVERCOMMIT, "--node-capacity-providers=karpenter"])
    scheduler = scene.scheduler("karpool")
    namespace = scene.namespace()
    kubectl = scene.control.kubectl
    kubectl.apply(policy("all", namespace, ["elastic"], AGGREGATED, OURS))
    kubectl.apply(*(deployment(f"w{number}", namespace, 1, "900m") for number in range(40)))
    wait_for("all are placed", lambda: len(scene.control.placements(namespace)) == 40)
    assert "not enough" not in scheduler.text()
    bindings = _bindings(scene, namespace)
    assert max(_waited(binding) for binding in bindings) <= BURST_SECONDS
    empty.wait_running(namespace, 40)
    assert len(empty.kubectl.items("nodeclaims")) <= 21


def _waited(binding: Object) -> float:
    """From the binding's creation to its place, by the API server's and the scheduler's clocks."""
    placed = condition(binding, "Scheduled")["lastTransitionTime"]
    return (_time(placed) - _time(binding["metadata"]["creationTimestamp"])).total_seconds()


def _burst(
    scene: Scene, namespace: str, clusters: list[str], workloads: int, *, fitting: int, end: End
) -> None:
    """All at once; the leader ends with some of them placed, and the other one goes on."""
    kubectl = scene.control.kubectl
    first = scene.scheduler("karpool")
    led_by = wait_for("the first leads", lambda: _lease(scene).get("holderIdentity"))
    scene.scheduler("karpool")
    kubectl.apply(policy("all", namespace, clusters, AGGREGATED, OURS))
    kubectl.apply(*(deployment(f"w{i}", namespace, 3, "500m") for i in range(workloads)))
    wait_for("the first placed", lambda: scene.control.placements(namespace), every=0.01)
    silent_since = _leave(scene, first, end)
    taken = wait_for("the other leads", lambda: _lease_of_another(scene, str(led_by)))
    assert (_time(taken["acquireTime"]) - silent_since).total_seconds() < HAND_OVER_SECONDS

    def settled() -> bool:
        bindings = [binding["metadata"]["name"] for binding in _bindings(scene, namespace)]
        done = scene.control.placements(namespace)
        refused = [name for name in bindings if name not in done and scene.control.refusal(namespace, name)]
        return len(done) == fitting and len(done) + len(refused) == workloads

    wait_for("every workload placed or refused", settled, otherwise=lambda: _seen(scene, namespace))
    if end == "paused":
        before = _generations(scene, namespace)
        first.go_on()
        wait_for("it knows that it leads no more", lambda: "leadership lost" in first.text())
        assert _generations(scene, namespace) == before


def _leave(scene: Scene, leader: Program, end: End) -> datetime:
    """Ends the leader in one of three ways; when it was last heard of."""
    if end == "killed":
        leader.kill()
    elif end == "paused":
        leader.pause()
    else:
        leader.ask_to_stop()
        wait_for("it ended", lambda: leader.code is not None)
        assert leader.code == 0, leader.tail()
    return _time(_lease(scene)["renewTime"])


def _lease(scene: Scene) -> Object:
    leases = scene.control.kubectl.items("leases", "-n", SYSTEM)
    found: list[Object] = [lease["spec"] for lease in leases if lease["metadata"]["name"] == OURS]
    return found[0] if found else {}


def _lease_of_another(scene: Scene, former: str) -> Object:
    lease = _lease(scene)
    return lease if lease.get("holderIdentity") not in (None, "", former) else {}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _bindings(scene: Scene, namespace: str) -> list[Object]:
    return scene.control.kubectl.items("resourcebindings", "-n", namespace)


def _generations(scene: Scene, namespace: str) -> dict[str, int]:
    """How often anybody changed what is wanted of each binding."""
    found = _bindings(scene, namespace)
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}


def _seen(scene: Scene, namespace: str) -> str:
    return f"of {len(_bindings(scene, namespace))} placed {scene.control.placements(namespace)}"
