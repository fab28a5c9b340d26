"""The same script against the embedded API server and the real one: what differs is known and explained."""

import asyncio
from pathlib import Path
from typing import Any

from e2e.components import karpool_command
from e2e.fleet import Fleet
from e2e.processes import Program
from e2e.side_by_side import NAMESPACE, play, setting_up, steps
from karpool.kube.config import kubeconfig
from karpool.kube.transport.http import HttpTransport

# What the embedded server does differently, with the reason; docs/apiserver.md has the same table.
EXPLAINED = {
    "unknown path": "404 with a Status that says what to look at; the real one sends plain text",
    "pod without containers": "422 for the same field, as too short and not as missing",
    "pod with two containers of a name": "422, naming the container and not its name",
    "delete a pod at once": "the pod is returned as it was, without a grace period of 0",
    "read its scale": "zero replicas are written as 0, not left out",
    "change what cannot change": "422 for the field, without what else would be wrong afterwards",
    "replace it without a version": "a custom resource may be replaced without its version",
}
Answers = dict[str, tuple[int, Any]]


def test_answers_are_the_same_but_for_what_is_explained(whole: Fleet, place: Path) -> None:
    config = place / "embedded.kubeconfig"
    program = Program(
        "karpool apiserver",
        karpool_command("apiserver", f"--write-kubeconfig={config}"),
        place / "embedded.log",
    )
    try:
        program.wait_until(config.exists)
        embedded = asyncio.run(_all(config))
        real = asyncio.run(_all(whole.static.server.kubeconfig()))
    finally:
        program.stop()
        kinds = (("namespace", NAMESPACE), ("crd", "widgets.e2e.karpool.dev"))
        for kind, name in kinds:
            whole.static.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")
    different = {name: (embedded[name], real[name]) for name in real if embedded[name] != real[name]}
    unexplained = {name: both for name, both in different.items() if name not in EXPLAINED}
    assert unexplained == {}, "\n".join(
        f"{n}:\n  embedded {a}\n  real     {b}" for n, (a, b) in unexplained.items()
    )
    assert set(EXPLAINED) <= set(different), "explained, and no longer different"


async def _all(config: Path) -> Answers:
    transport = HttpTransport(kubeconfig.load(config))
    try:
        for step in setting_up():
            await play(transport, step)
        await asyncio.sleep(2)  # a service account, and a kind that is served
        return {step.name: await play(transport, step) for step in steps()}
    finally:
        await transport.close()
