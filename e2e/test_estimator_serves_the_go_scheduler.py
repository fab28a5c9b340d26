"""An unmodified karmada-scheduler places the same replicas with either estimator behind it."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.components import EstimatorPki, estimator, scheduler
from e2e.karmada import Karmada
from e2e.kubectl import wait_for
from e2e.member import Member
from e2e.peers import Built
from e2e.workloads import AGGREGATED, DYNAMIC, deployment, policy

Namespaces = Callable[[], str]


def placements(control: Karmada, namespace: str) -> dict[str, dict[str, int]]:
    return {
        binding["metadata"]["name"]: {
            target["name"]: target.get("replicas", 0) for target in binding["spec"].get("clusters") or ()
        }
        for binding in control.kubectl.items("resourcebindings", "-n", namespace)
        if any(c["type"] == "Scheduled" for c in binding.get("status", {}).get("conditions", ()))
    }


def place_with(
    go: Built | None,
    control: Karmada,
    members: dict[str, Member],
    pki: EstimatorPki,
    logs: Path,
    namespace: str,
    scheduling: dict[str, object],
    peers: dict[str, Built],
    flags: tuple[str, ...] = (),
) -> dict[str, dict[str, int]]:
    with contextlib.ExitStack() as running:
        for name, one in members.items():
            served = estimator(go, one.server, pki, logs / f"{name}.log", flags if go is None else ())
            running.callback(served.program.stop)
            control.estimator_at(name, served.port)
        chosen = scheduler(peers["karmada"], control.server, pki, logs / "scheduler.log")
        running.callback(chosen.stop)
        control.kubectl.apply(policy("all", namespace, tuple(members), scheduling))
        for number, replicas in enumerate((7, 3, 1)):
            control.kubectl.apply(deployment(f"w{number}", namespace, replicas, cpu="300m"))
            wait_for(
                f"binding {number} scheduled",
                lambda wanted=number + 1: len(placements(control, namespace)) == wanted,
            )
        return placements(control, namespace)


@pytest.mark.parametrize("scheduling", [DYNAMIC, AGGREGATED], ids=["dynamic", "aggregated"])
def test_placements_are_those_with_karmadas_own_estimator(
    control: Karmada,
    static: Member,
    pki: EstimatorPki,
    place: Path,
    namespace: Namespaces,
    peers: dict[str, Built],
    scheduling: dict[str, object],
) -> None:
    theirs = place_with(
        peers["karmada"], control, {"static": static}, pki, place / "go", namespace(), scheduling, peers
    )
    ours = place_with(None, control, {"static": static}, pki, place / "ours", namespace(), scheduling, peers)
    assert theirs == ours
    assert sum(theirs["w0-deployment"].values()) == 7
