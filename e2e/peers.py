"""The real systems Karpool is tried against: released Go modules, built by the Go tool chain.

Each folder under `go/` is a module file set that pins one of them and names its programs
with `tool` lines; there is no source in it. `KARPOOL_E2E_PEERS=previous` takes those under
`go/previous` instead, where there is one: the systems Karpool was tried against before.
Programs are kept outside the checkout, under a name made of what they were built from, so that
an unchanged pin is never built twice. A build that was interrupted goes on where it
stopped: Go keeps what it fetched and compiled.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MODULES = Path(__file__).parent / "go"
NEWEST, PREVIOUS = "newest", "previous"
DEFAULT = NEWEST
LIMIT_SECONDS = 45 * 60.0  # for all of them; `KARPOOL_E2E_BUILD_SECONDS`
_QUIET_SECONDS = 15.0  # between two lines of progress
_TAIL_LINES = 12
_FIRST_TO_FETCH = (1, 21)  # the first Go that fetches the Go a module asks for


class NoPeers(Exception):
    """The real systems cannot be had here; the text says why and what to do."""


class NotYet(NoPeers):
    """The time for building is over; another run goes on from there."""


@dataclass(frozen=True)
class Peer:
    """One pinned module: its name here, its path without the major version, and its programs' names."""

    name: str
    module: str
    programs: tuple[str, ...]
    tags: str = ""


PEERS = (
    Peer("etcd", "go.etcd.io/etcd/server", ("server",)),
    Peer(
        "kubernetes",
        "k8s.io/kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    ),
    Peer("kwok", "sigs.k8s.io/kwok", ("kwok",)),
    Peer("helm", "helm.sh/helm", ("helm",)),
    Peer("karpenter", "sigs.k8s.io/karpenter", ("kwok",)),
    Peer(
        "karmada",
        "github.com/karmada-io/karmada",
        (
            "aggregated-apiserver",
            "controller-manager",
            "descheduler",
            "scheduler",
            "scheduler-estimator",
            "webhook",
        ),
        tags="kubernetes_protomessage_one_more_release",  # as upstream: its wire format embeds them
    ),
    Peer("dra", "k8s.io/dynamic-resource-allocation", ("dra",)),  # a program of ours around the module
)


NAMES = tuple(peer.name for peer in PEERS)


@dataclass(frozen=True)
class Go:
    """The program, and which Go it is to be (GOTOOLCHAIN)."""

    program: str
    tool_chain: str


@dataclass(frozen=True)
class Built:
    """Where a peer's programs and the files of its module are."""

    peer: Peer
    programs: Path
    source: Path

    def program(self, name: str) -> Path:
        return self.programs / name


def cache() -> Path:
    """Outside the checkout: `KARPOOL_E2E_CACHE`, or below the user's cache directory."""
    if chosen := os.environ.get("KARPOOL_E2E_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "karpool-e2e"


def chosen_set() -> str:
    """Which systems: `KARPOOL_E2E_PEERS`, newest or previous."""
    chosen = os.environ.get("KARPOOL_E2E_PEERS", "") or DEFAULT
    if chosen not in (NEWEST, PREVIOUS):
        raise NoPeers(f"KARPOOL_E2E_PEERS={chosen!r} is neither {NEWEST} nor {PREVIOUS}")
    return chosen


def folder_of(peer: Peer) -> Path:
    """The module files of a peer in the chosen set; what did not change is in both sets."""
    previous = MODULES / PREVIOUS / peer.name
    return previous if chosen_set() == PREVIOUS and previous.is_dir() else MODULES / peer.name


def versions() -> dict[str, str]:
    """What the chosen set pins, by peer."""
    return {peer.name: _pin(peer)[1] for peer in PEERS}


def build_all(names: tuple[str, ...] = NAMES) -> dict[str, Built]:
    """Every named peer, built now or before; raises NoPeers."""
    chosen_set()
    go = shutil.which("go")
    if unknown := set(names) - set(NAMES):
        raise NoPeers(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    wanted = [peer for peer in PEERS if peer.name in names]
    if go is None:
        raise NoPeers(
            f"no Go tool chain on PATH: install Go {_needed(wanted)} or newer (https://go.dev/dl) "
            "and run `make e2e` again"
        )
    end = time.monotonic() + _limit()
    installed = _installed(go, end)
    return {peer.name: _built(Go(go, _tool_chain(installed, peer)), peer, end) for peer in wanted}


def _limit() -> float:
    given = os.environ.get("KARPOOL_E2E_BUILD_SECONDS", "")
    try:
        return float(given) if given else LIMIT_SECONDS
    except ValueError:
        raise NoPeers(f"KARPOOL_E2E_BUILD_SECONDS={given!r} is no number of seconds") from None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two runs at once would write the same files; the second waits and finds them built."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process is building in {cache()}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(go: str, end: float) -> str:
    """The Go that is here; asked outside any module, which could ask for another."""
    version = _go(Go(go, "local"), Path(go).parent, end, "env", "GOVERSION").strip().removeprefix("go")
    if _numbers(version) < _FIRST_TO_FETCH:
        raise NoPeers(f"{go} is Go {version}: install Go {_needed(list(PEERS))} or newer (https://go.dev/dl)")
    return version


def _tool_chain(installed: str, peer: Peer) -> str:
    """Images of Go forbid it to fetch another Go (GOTOOLCHAIN=local); a module that needs one names which."""
    needed = _go_line(peer)
    return "local" if _numbers(installed) >= _numbers(needed) else f"go{needed}"


def _needed(wanted: list[Peer]) -> str:
    return max((_go_line(peer) for peer in wanted), key=_numbers, default="1.24")


def _go_line(peer: Peer) -> str:
    found = re.search(r"^go (\S+)$", (folder_of(peer) / "go.mod").read_text(), re.MULTILINE)
    return found.group(1) if found else "1.24"  # the first that knows `tool` lines


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _built(go: Go, peer: Peer, end: float) -> Built:
    folder, (module, _) = folder_of(peer), _pin(peer)
    target = cache() / f"{peer.name}-{_digest(folder, peer.tags)}"
    if _missing(peer, target):
        with _alone():
            if _missing(peer, target):
                _build(go, peer, target, end)
    source = _go(go, folder, end, "list", "-m", "-f", "{{.Dir}}", module).strip()
    if not source:
        _go(go, folder, end, "mod", "download", module)
        source = _go(go, folder, end, "list", "-m", "-f", "{{.Dir}}", module).strip()
    return Built(peer, target, Path(source))


def _missing(peer: Peer, target: Path) -> list[str]:
    return [program for program in peer.programs if not (target / program).exists()]


def _build(go: Go, peer: Peer, target: Path, end: float) -> None:
    """Programs appear in their place only when they are whole."""
    started = time.monotonic()
    folder = folder_of(peer)
    _say(f"building {peer.name} ({' '.join(_pin(peer))})")
    fresh = target.with_name(f"{target.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    out = f"{fresh}{os.sep}"
    flags = ("-v", "-trimpath", "-ldflags=-s -w", f"-tags={peer.tags}", "-o", out, "tool")
    _go(go, folder, end, "build", *flags, progress=peer.name)
    target.mkdir(exist_ok=True)
    for program in fresh.iterdir():
        program.replace(target / program.name)
    fresh.rmdir()
    if missing := _missing(peer, target):
        raise NoPeers(f"{folder}/go.mod names no tool that builds {', '.join(missing)}")
    _say(f"built {peer.name} in {time.monotonic() - started:.0f} s")


def _go(go: Go, folder: Path, end: float, *arguments: str, progress: str = "") -> str:
    """Its output; says how far it is where `progress` names what is built, and ends it at `end`."""
    said: list[str] = []
    with subprocess.Popen(
        [go.program, *arguments],
        cwd=folder,
        env={**os.environ, "GOTOOLCHAIN": go.tool_chain},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it starts compilers, which have to end with it
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        listening = threading.Thread(target=_follow, args=(process.stderr, said, progress), daemon=True)
        listening.start()
        try:
            with _ended_at(process, end) as late:
                output = process.stdout.read()
                code = process.wait()
        except BaseException:
            _end(process)
            raise
        listening.join()
    if late.is_set():
        raise NotYet(
            f"go {arguments[0]} of {folder.name} was not done when the time for building "
            f"({_limit():.0f} s, KARPOOL_E2E_BUILD_SECONDS) was over; run it again: it goes on from there"
        )
    if code:
        tail = "\n".join(said[-_TAIL_LINES:])
        raise NoPeers(f"go {arguments[0]} in {folder} failed with code {code}:\n{tail}")
    return output


@contextlib.contextmanager
def _ended_at(process: "subprocess.Popen[str]", end: float) -> Iterator[threading.Event]:
    late = threading.Event()

    def stop() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(max(0.0, end - time.monotonic()), stop)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _follow(stream: IO[str], said: list[str], progress: str) -> None:
    """Keeps the end of what it says; with `-v` that is a line for each package."""
    spoken = time.monotonic()
    fetched = compiled = 0
    for line in stream:
        said.append(line.rstrip())
        del said[: -4 * _TAIL_LINES]
        fetched += line.startswith("go: downloading")
        compiled += not line.startswith(("go: ", "#", "\t"))
        if progress and time.monotonic() - spoken >= _QUIET_SECONDS:
            spoken = time.monotonic()
            _say(f"building {progress}: {fetched} modules fetched, {compiled} packages compiled")


def _say(text: str) -> None:
    print(f"e2e: {text}", file=sys.stderr, flush=True)


def _digest(folder: Path, tags: str) -> str:
    files = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]
    pinned = b"".join(file.read_bytes() for file in files) + tags.encode()
    return hashlib.sha256(pinned).hexdigest()[:12]


def _pin(peer: Peer) -> tuple[str, str]:
    """The module's path with its major version, and its version."""
    folder = folder_of(peer)
    for line in (folder / "go.mod").read_text().splitlines():
        words = line.removeprefix("require ").split()
        if len(words) > 1 and re.fullmatch(re.escape(peer.module) + r"(/v\d+)?", words[0]):
            return words[0], words[1]
    raise NoPeers(f"{folder}/go.mod requires no {peer.module}")


if __name__ == "__main__":
    try:
        for built in build_all(tuple(sys.argv[1:]) or NAMES).values():
            print(built.programs)
    except NotYet as error:
        _say(str(error))
        sys.exit(os.EX_TEMPFAIL)
    except NoPeers as error:
        sys.exit(f"e2e: {error}")
    except KeyboardInterrupt:
        sys.exit("e2e: interrupted; run it again: it goes on from there")
