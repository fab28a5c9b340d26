"""The Go estimator and Karpool's, asked the same over mutual TLS about the same loaded cluster."""

from collections.abc import Callable, Iterator
from functools import partial

import grpc
import pytest

from e2e.asking import Asker, assumed, component, replica
from e2e.kubectl import Object, wait_for
from e2e.member import Member
from e2e.scene import OVERCOMMIT, Make, Scene
from e2e.workloads import AGGREGATED, HELD_BACK, deployment, policy

Pair = dict[Make, Asker]
HALF, BIG = replica("500m"), replica("1500m", "1Gi")


@pytest.fixture
def pair(scene: Scene, static: Member) -> Iterator[Pair]:
    """Both, on a member that runs something and cannot run all of it."""
    namespace = scene.namespace()
    waiting = deployment("waiting", namespace, 2, "40")
    waiting["metadata"]["labels"] = {"app": "waiting"}
    static.kubectl.apply(deployment("running", namespace, 5, "700m"), waiting)
    wait_for("five run", lambda: len(static.pods(namespace, phase="Running")) == 5)
    askers: Pair = {}
    for make in ("go", "karpool"):
        scene.estimators(make, ["static"], [OVERCOMMIT])
        askers[make] = Asker("static", scene.estimator_ports["static"], scene.pki)
    yield askers
    for asker in askers.values():
        asker.close()


def test_every_method_gives_the_same_answer(pair: Pair, scene: Scene, static: Member) -> None:
    questions: dict[str, Callable[[Asker], int]] = {
        "halves": lambda one: one.replicas(HALF),
        "big ones": lambda one: one.replicas(BIG),
        "much memory": lambda one: one.replicas(replica("100m", "6Gi")),
        "on one node": lambda one: one.replicas(replica("100m", **{"kubernetes.io/hostname": "static-1"})),
        "nowhere": lambda one: one.replicas(replica("100m", zone="no-such")),
        "beside promised halves": lambda one: one.replicas(HALF, [assumed(4, HALF)]),
        "beside promised big ones": lambda one: one.replicas(HALF, [assumed(2, BIG), assumed(3, HALF)]),
        "beside more than there is": lambda one: one.replicas(HALF, [assumed(900, HALF)]),
        "sets": lambda one: one.sets([component("a", 1, BIG), component("b", 2, HALF)]),
        "sets beside promises": lambda one: one.sets(
            [component("a", 1, BIG), component("b", 2, HALF)], [assumed(2, BIG)]
        ),
    }
    answers = {
        make: {name: question(asker) for name, question in questions.items()} for make, asker in pair.items()
    }
    assert answers["karpool"] == answers["go"]
    assert answers["go"]["halves"] > answers["go"]["beside promised halves"] > 0
    assert answers["go"]["nowhere"] == 0


def test_replicas_that_wait_too_long_are_counted_alike(pair: Pair, static: Member) -> None:
    pods = static.kubectl.items("pods", "-A", "-l", "app=waiting")
    namespace = pods[0]["metadata"]["namespace"]

    def both() -> list[int]:
        return [pair[make].unschedulable("waiting", namespace, 1) for make in ("go", "karpool")]

    wait_for("both see two", lambda: both() == [2, 2])
    assert [pair[make].unschedulable("waiting", namespace, 3600) for make in ("go", "karpool")] == [0, 0]
    assert [pair[make].unschedulable("running", namespace, 1) for make in ("go", "karpool")] == [0, 0]


def test_kinds_that_the_go_estimator_refuses_are_counted_too(pair: Pair, static: Member) -> None:
    (namespace,) = {
        each["metadata"]["namespace"]
        for each in static.kubectl.items("deployments", "-A", "-l", "app=waiting")
    }
    static.kubectl.apply(*(_waiting(kind, namespace) for kind in OTHERS))
    for kind, group in OTHERS.items():
        wait_for(f"a {kind} waits", partial(_counted, pair["karpool"], kind, group, namespace))
        with pytest.raises(grpc.RpcError, match="not supported"):
            _counted(pair["go"], kind, group, namespace)


OTHERS = {"StatefulSet": "apps/v1", "ReplicaSet": "apps/v1", "Job": "batch/v1"}


def _counted(asker: Asker, kind: str, group: str, namespace: str) -> bool:
    return asker.unschedulable(f"huge-{kind.lower()}", namespace, 1, kind=kind, group=group) == 1


def _waiting(kind: str, namespace: str) -> Object:
    """A workload of that kind whose only pod fits nowhere."""
    made = deployment(f"huge-{kind.lower()}", namespace, 1, "40")
    made |= {"kind": kind, "apiVersion": OTHERS[kind]}
    if kind == "Job":
        template = made["spec"]["template"]
        template["spec"]["restartPolicy"] = "Never"
        made["spec"] = {"template": template}
    return made


def test_the_go_scheduler_is_protected_by_our_estimator(scene: Scene) -> None:
    """Each of three machines holds one replica; two are promised to a workload that never arrives.

    By the summary, (12 - 6) / 3 cores, two more would fit: only an estimator that takes promises off
    node by node knows that one does.
    """
    scene.estimators("karpool", ["static"], [OVERCOMMIT])
    scene.scheduler("go", [f"{OVERCOMMIT},CustomizedClusterResourceModeling=false"])
    namespace = scene.namespace()
    kubectl = scene.control.kubectl
    kubectl.apply(policy("all", namespace, ["static"], AGGREGATED, **HELD_BACK))
    kubectl.apply(deployment("first", namespace, 2, "3"))
    wait_for("first placed", lambda: "first-deployment" in scene.control.placements(namespace))
    kubectl.apply(deployment("second", namespace, 2, "3"))
    wait_for("second refused", lambda: scene.control.refusal(namespace, "second-deployment"))
    kubectl.apply(deployment("third", namespace, 1, "3"))
    wait_for("third placed", lambda: "third-deployment" in scene.control.placements(namespace))
