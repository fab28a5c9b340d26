"""Programs that run while a test needs them, with their logs kept and their end made sure of."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class DidNotStart(Exception):
    """A program ended, or did not become ready before its deadline; the text shows its last lines."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """One running program, in a process group of its own so that nothing it starts outlives it."""

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._output = log.open("ab")
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], deadline: float = 60.0) -> None:
        """Until `ready` says so; raises DidNotStart."""
        end = time.monotonic() + deadline
        while not ready():
            if self._process.poll() is not None:
                raise DidNotStart(f"{self.name} ended with code {self._process.returncode}:\n{self.tail()}")
            if time.monotonic() > end:
                raise DidNotStart(f"{self.name} was not ready after {deadline:.0f} s:\n{self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """At once, as a crash would."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def stop(self, grace: float = 15.0) -> int:
        """Asked to end, then made to; returns the exit code."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
        self._output.close()
        return self._process.returncode

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(line[:400] for line in self.text().splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def answers(url: str, ca: Path | None = None, token: str = "") -> Callable[[], bool]:
    """Whether a GET of `url` is answered with 200 now."""
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})

    def ask() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=2, context=context) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    return ask
