"""A controller as a process of its own: started, killed, stopped, woken, starved, given a wrong clock.

Processes are forked from one that has imported everything, so that a restart costs little; each is a
process all the same, with its own memory, sockets and signals, and runs the command that people run.
"""

import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

_PRELOADED = (
    "karpool.cli.main",
    "karpool.cli.run.serving",
    "karpool.consolidation.process",
    "karpool.estimator.process",
    "karpool.gpu.process",
    "karpool.scheduler.descheduler_process",
    "karpool.scheduler.process",
    "tests.chaos.processes.replica_process",
)


@dataclass(frozen=True)
class Limits:
    """What the operating system grants; 0: as much as there is."""

    files: int = 0  # open file descriptors
    memory: int = 0  # bytes of data
    disk: int = 0  # bytes of one file, the log's: writing more fails as on a full disk


UNLIMITED = Limits()


def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(_PRELOADED))
    return made


class WallClock:
    """How wrong the wall clock of one replica is; shared with its process through a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(struct.pack("d", 0.0))

    def set(self, seconds: float) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("d", seconds))


class ReplicaProcess:
    """One replica, in one life after the other."""

    def __init__(
        self, of: ForkServerContext, name: str, command: Sequence[str], folder: Path, clock: WallClock
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name.replace('/', '-')}.log"
        self.clock = clock
        self.limits = UNLIMITED
        self.lives = 0
        self.exits: list[int | None] = []  # of lives that are over
        self.is_stopped = False
        self._context = of
        self._process: ForkServerProcess | None = None

    def start(self, limits: Limits = UNLIMITED) -> None:
        assert not self.is_running, f"{self.name} runs already"
        self.limits, self.is_stopped = limits, False
        self.lives += 1
        self._process = self._context.Process(
            target=run_command, args=(self.command, str(self.log), limits, str(self.clock.path)), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        if self._process is None:
            return False
        if self._process.is_alive():
            return True
        self.exits.append(self._process.exitcode)
        self._process.close()
        self._process = None
        return False

    def send(self, number: signal.Signals) -> bool:
        """False when it had ended already."""
        if not self.is_running:
            return False
        os.kill(self.pid, number)
        return True

    def kill(self) -> bool:
        return self.send(signal.SIGKILL)

    def stop(self) -> bool:
        """Stands still until `wake`."""
        self.is_stopped = self.send(signal.SIGSTOP)
        return self.is_stopped

    def wake(self) -> bool:
        self.is_stopped = False
        return self.send(signal.SIGCONT)

    def join(self) -> None:
        if self._process is not None:
            self._process.join()

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def run_command(command: Sequence[str], log: str, limits: Limits, clock: str) -> None:
    """In the new process; does not return."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with whoever started it
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    _wrong_clock(clock)
    for kind, amount in (
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_FSIZE, limits.disk),
    ):
        if amount:
            resource.setrlimit(kind, (amount, amount))
    from karpool.cli.main import run

    code = 1
    try:
        code = run(command, "karpool")
    finally:
        os._exit(code)  # nothing of the process that it was forked from has to be tidied up


def _wrong_clock(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    shared = mmap.mmap(descriptor, 8, prot=mmap.PROT_READ)
    os.close(descriptor)
    right = time.time

    def wrong() -> float:
        offset: float = struct.unpack("d", shared[:8])[0]
        return right() + offset

    time.time = wrong
