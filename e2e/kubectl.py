"""kubectl against one cluster, for tests: what is applied, read back and waited for."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Object = dict[str, Any]
T = TypeVar("T")
# Long enough for a machine that is busy with something else: waiting costs nothing when all is well.
PATIENCE = float(os.environ.get("KARPOOL_E2E_PATIENCE") or 180)


class Kubectl:
    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._command = [
            str(program),
            f"--kubeconfig={kubeconfig}",
            "--cache-dir=" + str(kubeconfig.parent / "cache"),
        ]

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Its output; an error raises with what it said."""
        done = self.run(*arguments, stdin=stdin)
        if done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def apply(self, *objects: Mapping[str, Any]) -> None:
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(document))

    def admits(self, obj: Mapping[str, Any]) -> bool:
        """Whether the server would take it."""
        text = json.dumps(obj)
        return self.run("create", "--dry-run=server", "-f", "-", stdin=text).returncode == 0

    def get(self, *arguments: str) -> Object:
        found: Object = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def items(self, *arguments: str) -> list[Object]:
        found: list[Object] = self.get(*arguments)["items"]
        return found


def condition(obj: Object, kind: str) -> Object:
    """The condition of that type, or an empty one."""
    found = obj.get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})


def wait_for(
    what: str,
    look: Callable[[], T],
    deadline: float = PATIENCE,
    every: float = 0.2,
    otherwise: Callable[[], str] = str,
) -> T:
    """The first true value of `look`; raises with what `otherwise` says when there is none in time."""
    end = time.monotonic() + deadline
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline:.0f} s; last seen {found!r} {otherwise()}")
        time.sleep(every)
