"""A simulation depends on its scenario and seed alone: not on the process, nor on how strings hash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.small import text

ROOT = Path(__file__).parents[2]


def start(folder: Path, name: str, hash_seed: str, seed: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "karpool.cli.main", "simulate", str(folder / "s.yaml"), "-o", "json"]
    return subprocess.Popen(
        [*command, "--decisions", str(folder / f"{name}.log"), "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.long
@pytest.mark.timeout(240)  # three processes that simulate a quarter of an hour of all controllers
def test_every_byte_of_log_and_report_is_the_same_and_another_seed_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text())
    runs = {"one": ("1", 5), "two": ("271828", 5), "other": ("1", 6)}
    started = {name: start(tmp_path, name, *given) for name, given in runs.items()}
    reports = {}
    try:
        for name, run in started.items():
            reports[name], errors = run.communicate(timeout=230)
            assert run.returncode == 0, errors[-2000:]
    finally:
        for run in started.values():
            run.kill()
            run.wait()
    logs = {name: (tmp_path / f"{name}.log").read_bytes() for name in runs}
    assert logs["one"].count(b"\n") > 100
    for decision in (b'"placed"', b'"bound"', b'"node"', b'"claim"', b'"event"'):
        assert b'"decision":' + decision in logs["one"]
    assert logs["one"] == logs["two"]
    assert reports["one"] == reports["two"]
    assert logs["other"] != logs["one"]
