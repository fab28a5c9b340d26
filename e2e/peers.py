"""The real systems Karpool is tried against: released Go modules, built by the Go tool chain.

Each folder under `go/` is a module file set that pins one of them and names its programs
with `tool` lines; there is no source in it. Programs are kept outside the checkout, under a
name made of what they were built from, so that an unchanged pin is never built twice.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "go"


class NoPeers(Exception):
    """The real systems cannot be had here; the text says why and what to do."""


@dataclass(frozen=True)
class Peer:
    """One pinned module: its name here, its path, and what its programs are called."""

    name: str
    module: str
    programs: tuple[str, ...]
    tags: str = ""


PEERS = (
    Peer("etcd", "go.etcd.io/etcd/server/v3", ("server",)),
    Peer(
        "kubernetes",
        "k8s.io/kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    ),
    Peer("kwok", "sigs.k8s.io/kwok", ("kwok",)),
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
)


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


def build_all(names: tuple[str, ...] = tuple(peer.name for peer in PEERS)) -> dict[str, Built]:
    """Every named peer, built now or before; raises NoPeers."""
    go = shutil.which("go")
    if go is None:
        raise NoPeers(
            "no Go tool chain: install Go 1.26 or newer (https://go.dev/dl) and run `make e2e` again"
        )
    return {peer.name: _build(go, peer) for peer in PEERS if peer.name in names}


def _build(go: str, peer: Peer) -> Built:
    folder = MODULES / peer.name
    target = cache() / f"{peer.name}-{_digest(folder, peer.tags)}"
    if not all((target / program).exists() for program in peer.programs):
        print(f"building {peer.name} ({peer.module} {_version(folder, peer)})", file=sys.stderr, flush=True)
        target.mkdir(parents=True, exist_ok=True)
        _go(
            go,
            folder,
            "build",
            "-trimpath",
            "-ldflags=-s -w",
            f"-tags={peer.tags}",
            "-o",
            f"{target}{os.sep}",
            "tool",
        )
    source = _go(go, folder, "list", "-m", "-f", "{{.Dir}}", peer.module).strip()
    return Built(peer, target, Path(source))


def _go(go: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run([go, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-8:])
        raise NoPeers(f"go {arguments[0]} in {folder} failed with code {done.returncode}:\n{tail}")
    return done.stdout


def _digest(folder: Path, tags: str) -> str:
    pinned = b"".join((folder / name).read_bytes() for name in ("go.mod", "go.sum")) + tags.encode()
    return hashlib.sha256(pinned).hexdigest()[:12]


def _version(folder: Path, peer: Peer) -> str:
    for line in (folder / "go.mod").read_text().splitlines():
        words = line.removeprefix("require ").split()
        if words[:1] == [peer.module]:
            return words[1]
    return "of an unknown version"


if __name__ == "__main__":
    try:
        for built in build_all().values():
            print(built.programs)
    except NoPeers as error:
        sys.exit(f"e2e: {error}")
