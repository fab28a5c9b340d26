"""A run depends on its seed and on nothing else: not on the process, and not on how strings hash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.determinism_scenario import NODES

ROOT = Path(__file__).parents[2]


def start(seed: int, hash_seed: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.determinism_scenario", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
@pytest.mark.timeout(180)  # two processes that each simulate a busy hour
def test_two_processes_that_hash_differently_agree_on_every_byte() -> None:
    runs = [start(7, "1"), start(7, "2")]
    digests = []
    try:
        for run in runs:
            out, _ = run.communicate(timeout=170)
            assert run.returncode == 0
            digests.append(out.splitlines()[-1].split())
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert int(digests[0][0]) >= NODES
    assert digests[0] == digests[1]
