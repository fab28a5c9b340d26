"""`python -m e2e.peers` where Go is missing, too old, slow or failing; and programs end with their run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Stands in for Go: says its version, "builds" what the module's tools are called, and counts how often.
GO = """#!/bin/sh
case "$1" in
env) echo "go${FAKE_VERSION:-1.99.0}";;
list) pwd;;
build)
  echo "$PWD" >> "$FAKE_BUILDS"
  echo some/package >&2
  [ -z "$FAKE_SLOW" ] || exec sleep 60
  [ -z "$FAKE_FAILS" ] || { echo "no space left" >&2; exit 1; }
  while [ "$1" != "-o" ]; do shift; done
  for each in server kube-apiserver kube-controller-manager kube-scheduler kubectl kwok helm dra \\
    aggregated-apiserver controller-manager descheduler scheduler scheduler-estimator webhook
  do : > "$2$each"; done;;
esac
"""


class Building:
    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._bin.mkdir()
        self.builds = folder / "builds"
        self.cache = folder / "cache"
        self.builds.touch()

    def with_go(self) -> "Building":
        go = self._bin / "go"
        go.write_text(GO)
        go.chmod(0o755)
        return self

    def run(self, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "e2e.peers"],
            cwd=ROOT,
            env={
                "PATH": f"{self._bin}:/usr/bin:/bin" if self._bin.joinpath("go").exists() else str(self._bin),
                "HOME": str(self.cache),
                "KARPOOL_E2E_CACHE": str(self.cache),
                "FAKE_BUILDS": str(self.builds),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )


@pytest.fixture
def building(tmp_path: Path) -> Building:
    return Building(tmp_path)


def test_a_missing_tool_chain_is_named_with_the_version_that_is_needed(building: Building) -> None:
    done = building.run()
    assert done.returncode == 1
    assert "no Go tool chain" in done.stderr and "https://go.dev/dl" in done.stderr


def test_a_tool_chain_that_is_too_old_is_named(building: Building) -> None:
    done = building.with_go().run(FAKE_VERSION="1.20.4")
    assert done.returncode == 1
    assert "is Go 1.20.4: install Go 1." in done.stderr and "https://go.dev/dl" in done.stderr


def test_what_is_built_is_not_built_again(building: Building) -> None:
    first = building.with_go().run()
    assert first.returncode == 0, first.stderr
    built = building.builds.read_text().splitlines()
    assert len(built) == len(set(built)) == len(first.stdout.splitlines())
    assert "building etcd (go.etcd.io/etcd/server/v3 v3." in first.stderr
    assert building.run().stdout == first.stdout
    assert building.builds.read_text().splitlines() == built


def test_a_build_that_fails_leaves_nothing_that_looks_built(building: Building) -> None:
    failed = building.with_go().run(FAKE_FAILS="yes")
    assert failed.returncode == 1 and "no space left" in failed.stderr
    assert building.run().returncode == 0


def test_a_build_ends_when_its_time_is_over_and_says_how_to_go_on(building: Building) -> None:
    done = building.with_go().run(FAKE_SLOW="yes", KARPOOL_E2E_BUILD_SECONDS="2")
    assert done.returncode == os.EX_TEMPFAIL
    assert "run it again: it goes on from there" in done.stderr


_STARTS = """
import sys, time
from pathlib import Path
from e2e.processes import Program
started = Program("sleeper", ["/bin/sleep", "60"], Path(sys.argv[1]))
print(started.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to the one that started it")
def test_programs_end_with_the_run_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        os.kill(pid, 0)
        run.kill()
    end = time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < end, "it outlives the run that started it"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """A zombie that nobody has waited for does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
