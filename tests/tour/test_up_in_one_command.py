"""`karpool up` as people run it: in a terminal, in a pipe, ended half-way, with a port that is taken."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from karpool.cli.main import run

KARPOOL = [sys.executable, "-m", "karpool.cli.main"]
ADDRESS = r"https?://127\.0\.0\.1:\d+/?"
pytestmark = pytest.mark.timeout(200)


@contextmanager
def started(folder: Path, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen([*KARPOOL, "up", *arguments], env=environment, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream: IO[bytes], text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        line = stream.readline()
        assert line, seen.decode()
        seen += line
    return seen


def is_open(address: str) -> bool:
    host, port = re.fullmatch(r"https?://([^:/]+):(\d+)/?", address).groups()  # type: ignore[union-attr]
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.long
def test_every_promise_of_the_tour_is_kept_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with started(
        tmp_path, "-o", "json", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = process.communicate(timeout=180)

    assert process.returncode == 0, err.decode()
    said = json.loads(out)
    assert said["kept"] is True
    kept = {each["chapter"]: [promise["kept"] for promise in each["promises"]] for each in said["chapters"]}
    assert kept == {
        "from-zero": [True] * 2,
        "burst": [True] * 3,
        "stock-out": [True] * 3,
        "gpu-fraction": [True] * 3,
        "balance": [True] * 3,
    }
    addresses = re.findall(ADDRESS, err.decode())
    assert len(addresses) == 6  # five API servers and the dashboard
    assert [address for address in addresses if is_open(address)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_ended_half_way_it_leaves_nothing(tmp_path: Path) -> None:
    with started(
        tmp_path, "--chapter", "stock-out", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        said = read_until(process.stderr, b"1/1").decode()
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read().decode()

        assert process.wait(timeout=30) == 130
    assert "Traceback" not in rest
    assert [each for each in re.findall(ADDRESS, said) if is_open(each)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_in_a_terminal_it_stays_for_kubectl_and_the_browser(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with started(
            tmp_path, "--chapter", "gpu-fraction", stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            said = _read_terminal(ours, "Ctrl-C ends it")
            kubeconfig = Path(re.search(r"export KUBECONFIG=(\S+)", said)[1])  # type: ignore[index]
            page = re.search(r"Open (http\S+)", said)[1]  # type: ignore[index]
            with urllib.request.urlopen(f"{page}api/v1/fleet") as answer:
                fleet = json.load(answer)
            contexts = re.findall(r"^- ?name: (\w+)|name: (\w+)$", kubeconfig.read_text(), re.MULTILINE)
            process.send_signal(signal.SIGINT)

            assert process.wait(timeout=30) == 0
    finally:
        os.close(ours)
    assert {"karmada", "virginia", "oregon", "ireland", "tokyo"} <= {
        name for context in contexts for name in context
    }
    assert {"virginia", "oregon", "ireland", "tokyo"} <= set(re.findall(r"\w+", json.dumps(fleet)))
    assert list(tmp_path.iterdir()) == []


def _read_terminal(terminal: int, text: str) -> str:
    seen = b""
    while text.encode() not in seen:
        ready, _, _ = select.select([terminal], [], [], 100)
        assert ready, seen.decode(errors="replace")
        seen += os.read(terminal, 65536)
    return seen.decode()


def test_a_port_that_is_taken_is_said_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert run(["up", "--once", "--port", str(port)], "karpool") == 1

    said = capsys.readouterr().err
    assert f"error: cannot serve the dashboard on port {port}: address already in use" in said
    assert "choose another --port" in said


def test_a_kubeconfig_that_is_somebody_elses_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "config"
    theirs.write_text("apiVersion: v1\nkind: Config\nclusters: []\nusers: []\n")

    assert run(["up", "--once", "--write-kubeconfig", str(theirs)], "karpool") == 1

    assert f"{theirs}" in capsys.readouterr().err
    assert theirs.read_text().startswith("apiVersion: v1\nkind: Config\nclusters: []")


def test_an_unknown_chapter_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--chapter", "the-end"], "karpool") == 2

    assert "'the-end' is not one of from-zero, burst, stock-out" in capsys.readouterr().err
