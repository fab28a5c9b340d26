"""Programs that run while a test needs them, with their logs kept and their end made sure of.

Each runs in a process group of its own, and ends with the process that started it however
that ends: Linux kills it when a test run is killed before it could clean up.
"""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 180.0  # on a machine that is busy with something else; waiting costs nothing when all is well
_HANDED_OUT: set[int] = set()
# Becomes the program it is given, after asking the kernel to kill it when the parent ends.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class DidNotStart(Exception):
    """A program ended, or did not become ready before its deadline; the text shows its last lines."""


def free_port() -> int:
    """One that nobody listens on now, and that was not handed out before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _HANDED_OUT:
            _HANDED_OUT.add(port)
            return port


def _tied(command: Sequence[str | Path]) -> list[str]:
    words = [str(word) for word in command]
    if sys.platform != "linux":
        return words
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *words]


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
            _tied(command),
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

    def wait_until(self, ready: Callable[[], bool], deadline: float = START_SECONDS) -> None:
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
        self.send(signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def pause(self) -> None:
        """Stands still, as under a debugger or on a machine that hangs; see `go_on`."""
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        self.send(signal.SIGTERM)

    def stop(self, grace: float = 30.0) -> int:
        """Asked to end, then made to; returns the exit code."""
        if self._process.poll() is None:
            self.ask_to_stop()
            self.go_on()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
            self._signal_group(signal.SIGKILL)  # whatever is left of it
            self._process.wait()
        self._output.close()
        return self._process.returncode

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(line[:400] for line in self.text().splitlines()[-lines:])

    def send(self, number: signal.Signals) -> None:
        """To all of its group, while it runs: afterwards the number may be another's."""
        if self._process.poll() is None:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def answers(url: str, ca: Path | None = None, token: str = "", code: int = 200) -> Callable[[], bool]:
    """Whether a GET of `url` is answered with that code now."""
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})

    def ask() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as response:
                return bool(response.status == code)
        except urllib.error.HTTPError as error:
            with error:
                return error.code == code
        except OSError:
            return False

    return ask
