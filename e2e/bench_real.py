"""Go's programs and Karpool's side by side on real, loaded clusters: `python -m e2e.bench_real [--small]`.

Four parts: estimators (bench_real_estimators), schedulers that go by summaries and schedulers that ask Go
estimators ("asking"; both bench_real_schedulers), and packing (bench_real_packing). Each says what it
compares. Progress goes to stderr, tables as Markdown to stdout, and both with the machine and the input to
bench/results/real.json and real.md.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import karpool
from e2e import bench_real_estimators, bench_real_packing, bench_real_schedulers
from e2e.bench_real_loading import Result, say
from e2e.bench_real_showing import page
from e2e.peers import Built, NoPeers, build_all

RESULTS = Path(__file__).parents[1] / "bench" / "results"


@dataclass(frozen=True)
class Profile:
    estimators: bench_real_estimators.Size
    schedulers: bench_real_schedulers.Size
    asking: bench_real_schedulers.Size
    packing: float  # the share of each mix's pods


FULL = Profile(
    bench_real_estimators.Size(nodes=5000, pods=50_000, asks=200, seconds=6.0),
    bench_real_schedulers.Size(clusters=100, bindings=1000),
    bench_real_schedulers.Size(clusters=10, bindings=300),
    packing=1.0,
)
SMALL = Profile(
    bench_real_estimators.Size(nodes=500, pods=5000, asks=50, seconds=2.0),
    bench_real_schedulers.Size(clusters=20, bindings=200),
    bench_real_schedulers.Size(clusters=3, bindings=50),
    packing=0.2,
)


def run(
    peers: dict[str, Built], profile: Profile, chosen: list[str], mixes: Sequence[int] = ()
) -> dict[str, Any]:
    """The parts one after the other; one that fails is said to have, and the others go on."""
    parts: dict[str, Callable[[Path], Any]] = {
        "estimators": lambda place: bench_real_estimators.estimators(peers, place, profile.estimators),
        "schedulers": lambda place: bench_real_schedulers.schedulers(peers, place, profile.schedulers),
        "asking": lambda place: bench_real_schedulers.asking_schedulers(peers, place, profile.asking),
        "packing": lambda place: bench_real_packing.packing(peers, place, profile.packing, mixes),
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="karpool-bench-") as folder:
        compile_karpool()
        for name in chosen or list(parts):
            begun = time.monotonic()
            try:
                found[name] = parts[name](Path(folder) / name)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
                say(f"{name}: could not be measured: {error}")
            say(f"{name}: took {time.monotonic() - begun:.0f} s")
    return found


def compile_karpool() -> None:
    """Let programs find the bytecode of all they import, as those of an installed package do; a checkout may
    have none, and compiling takes longer than starting."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", Path(karpool.__file__).parent], check=True)


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench_real", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of everything, to try it")
    parser.add_argument("--only", action="append", choices=("estimators", "schedulers", "asking", "packing"))
    parser.add_argument(
        "--random-mixes", metavar="SEED", type=int, help="also pack fifty random mixes, from this seed on"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write real.json and real.md")
    given = parser.parse_args()
    # So that what was started is ended, whoever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench-real: told to end"))
    try:
        peers = build_all(("etcd", "kubernetes", "karpenter", "karmada"))
    except NoPeers as error:
        sys.exit(f"bench-real: {error}")
    profile = SMALL if given.small else FULL
    about = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "peers": {name: built.source.name.rpartition("@")[2] for name, built in peers.items()},
        "input": asdict(profile),
    }
    first = given.random_mixes
    mixes = () if first is None else range(first, first + 50)
    found: dict[str, Result] = run(peers, profile, given.only or [], mixes)
    document = {**about, **found}
    text = page(document)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "real.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.results / "real.md").write_text(text)
    print(text)
    return 1 if any("error" in part for part in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
