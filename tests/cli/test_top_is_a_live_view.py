"""`karpool top nodes --watch` in a terminal: bars, orders, what came and went, keys."""

import io
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from karpool.cli.inspect.top_live import keys_of
from karpool.cli.output.live_view import (
    CAME_SECONDS,
    WENT_SECONDS,
    NodeChurn,
    ViewedNode,
    ViewPosition,
    ordered,
    picture,
)

ROOT = Path(__file__).parent.parent.parent


def node(name, cpu=500, price=0.1, pods=1, labels=None):
    document = {
        "pool": "general",
        "type": "m7i.large",
        "zone": "us-east-1a",
        "capacityType": "spot",
        "requested": {"cpu": cpu, "memory": 1 << 30},
        "allocatable": {"cpu": 1000, "memory": 4 << 30},
        "pods": pods,
        "slots": 29,
        "pricePerHour": price,
    }
    return ViewedNode(name, document, labels or {})


def drawn(nodes, position=None, churn=None, width=120, height=24, labels=(), about=("east: 2 nodes",)):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(
        picture(
            about,
            nodes,
            churn or NodeChurn(),
            position or ViewPosition(),
            width=width,
            height=height,
            label_columns=labels,
        )
    )
    return console.file.getvalue().splitlines()


def rows_of(lines):
    return [line for line in lines if "%" in line and "/29" in line]


def test_a_row_says_how_full_a_node_is_and_what_it_costs():
    lines = drawn([node("a", labels={"team": "red"})], labels=("example.com/team", "team"))
    assert lines[0].startswith("east: 2 nodes")
    row = rows_of(lines)[0]
    for text in ("a", "general", "m7i.large", "us-east-1a", "50%", "25%", "1/29", "0.100", "spot", "red"):
        assert text in row
    assert row.count("█") == 6 + 3
    assert "TEAM" in next(line for line in lines if line.startswith("NAME"))


def test_an_unknown_price_is_no_price_of_zero():
    assert "?" in rows_of(drawn([node("a", price=None)]))[0]
    assert [n.name for n in ordered([node("a", price=None), node("b", price=0.0)], ViewPosition(7))] == [
        "b",
        "a",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 250])
def test_lines_fit_whatever_the_width(width):
    lines = drawn(
        [node(f"ip-10-0-{i}.eu-central-1.compute.internal") for i in range(50)], width=width, height=20
    )
    assert len(lines) <= 20
    assert max(map(len, lines)) <= width


def test_sixty_columns_still_show_every_share_and_price():
    row = rows_of(drawn([node("ip-10-0-1")], width=60))[0]
    assert "50%" in row
    assert "25%" in row
    assert "0.100" in row


def test_numbers_begin_with_the_largest_and_names_with_the_first():
    nodes = [node("b", cpu=100, price=0.3), node("a", cpu=900, price=0.2), node("c", cpu=500, price=0.1)]

    def names(position):
        return "".join(node.name for node in ordered(nodes, position))

    assert names(ViewPosition()) == "abc"
    assert names(ViewPosition(reverse=True)) == "cba"
    assert names(ViewPosition(sort=4)) == "acb"
    assert names(ViewPosition(sort=4, reverse=True)) == "bca"
    assert names(ViewPosition(sort=7)) == "bac"


def test_keys_move_within_what_there_is():
    position = ViewPosition()
    for _ in range(100):
        position = position.pressed("down", rows=30, height=20)
    assert position.top == 30 - 13
    assert position.pressed("end", 30, 20) == position
    assert position.pressed("pageup", 30, 20).top == 4
    assert position.pressed("home", 30, 20).top == 0
    assert position.pressed("down", 3, 20).top == 0
    assert position.pressed("x", 30, 20) == position
    assert position.pressed("s", 30, 20) == ViewPosition(sort=1)
    assert ViewPosition().pressed("S", 30, 20).sort == 7
    shown = rows_of(drawn([node(f"n{i:02}") for i in range(30)], position, height=20))
    assert [row.split()[0] for row in shown] == [f"n{i:02}" for i in range(17, 30)]


def test_what_came_and_what_went_is_seen_for_a_while():
    churn = NodeChurn()
    churn.see([node("a"), node("b")], 0.0)
    assert not churn.came
    churn.see([node("b"), node("c")], 1.0)
    assert set(churn.came) == {"c"}
    assert set(churn.went) == {"a"}
    lines = drawn([node("b"), node("c")], churn=churn)
    assert [row.split()[0] for row in rows_of(lines)] == ["a", "b", "c"]
    assert any("+1 -1" in line for line in lines)
    churn.see([node("b"), node("c")], 1.0 + WENT_SECONDS)
    assert not churn.went
    assert churn.came
    churn.see([node("a"), node("b"), node("c")], 1.0 + CAME_SECONDS)
    assert set(churn.came) == {"a"}


def test_hostile_names_are_text():
    lines = drawn(
        [node("[red]x[/red]\x1b]0;t\x07", labels={"l": "\u202eevil"})], labels=("l",), about=["\x1b[2J"]
    )
    text = "\n".join(lines)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_keys_of_a_terminal():
    assert keys_of(b"qsr") == ["q", "s", "r"]
    assert keys_of(b"\x1b[A\x1b[6~j") == ["up", "pagedown", "j"]
    assert keys_of(b"\x1b") == ["\x1b"]
    assert keys_of(b"\x1bOP") == []  # F1


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on PATH; install it to try the view itself")
@pytest.mark.timeout(180)
def test_the_view_itself(tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "kind: Fleet\nclusters:\n  - {name: east, autoscaler: none, nodes: [{type: m7i.large, count: 30}]}\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src", "TERM": "screen", "TMUX_TMPDIR": str(tmp_path)}
    program = [sys.executable, "-m", "karpool"]
    serving = subprocess.Popen(
        [*program, "cluster", "start", "-f", str(fleet), "--write-kubeconfig", str(tmp_path / "kube.yaml")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def tmux(*words):
        done = subprocess.run(
            ["tmux", *words], env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    def until(what):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            screen = tmux("capture-pane", "-p", "-t", "view")
            if what(screen):
                return screen
            time.sleep(0.2)
        raise AssertionError(f"not seen within a minute:\n{screen}")

    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "kube.yaml").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        watching = " ".join([*program, "top", "nodes", "-w", "--kubeconfig", str(tmp_path / "kube.yaml")])
        tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-s",
            "view",
            "-x",
            "120",
            "-y",
            "20",
            f"{watching}; exec cat",
        )
        screen = until(lambda seen: "of 30" in seen)
        assert "1-13 of 30" in screen
        assert "NAME▼" in screen
        tmux("send-keys", "-t", "view", "s")
        until(lambda seen: "by POOL▼" in seen)
        tmux("send-keys", "-t", "view", "NPage")
        until(lambda seen: "14-26 of 30" in seen)
        tmux("resize-window", "-t", "view", "-x", "60", "-y", "12")
        until(lambda seen: "-18 of 30" in seen and "ZONE" not in seen)
        tmux("send-keys", "-t", "view", "q")
        until(lambda seen: "of 30" not in seen)
    finally:
        tmux("kill-server")
        serving.terminate()
        serving.wait(timeout=30)
