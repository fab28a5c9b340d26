"""A line that says how far something is: in terminals only, never in the way of other lines."""

import io
from threading import Event

import pytest

from karpool.cli.cluster_source import list_cluster
from karpool.cli.inspect import plan
from karpool.cli.output import progress_line
from karpool.cli.output.progress_line import BAR, ProgressLine, working
from karpool.cluster.cluster import Cluster
from karpool.consolidation.methods.method import SearchProgress
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.view import ASPECTS, view_of
from karpool.provisioning.market_file import market_of
from tests.consolidation.cluster_objects import flat, node, pod, pool
from tests.dashboard.fleets import clusters_of, nodes_and_pods


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Drawn(Terminal):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = Event()

    def flush(self) -> None:
        self.drawn.set()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_in_a_pipe_there_are_only_the_lines() -> None:
    stream = io.StringIO()

    with ProgressLine(stream, 2, "the tour") as line:
        line.say("first", colour="red", bold=True)
        line.ended()

    assert stream.getvalue() == "first\n"


def test_in_a_terminal_it_is_below_the_lines_and_gone_at_the_end() -> None:
    now, stream = [0.0], Terminal()

    with ProgressLine(stream, 2, "the tour", clock=lambda: now[0]) as line:
        line.begins("a burst")
        now[0] = 75.0
        line.ended()
        line.say("said", colour="green")

    last = f"{'━' * (BAR // 2)}{'─' * (BAR // 2)} 1/2  1:15  a burst"
    assert stream.getvalue().endswith(f"\r\x1b[K\x1b[32msaid\x1b[0m\n\r\x1b[K{last}\r\x1b[K")


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()

    ProgressLine(stream, 1, "the tour").say("said", colour="green", bold=True)

    assert "said\n" in stream.getvalue()
    assert "\x1b[32m" not in stream.getvalue()


def test_it_never_wraps() -> None:
    line = ProgressLine(Terminal(), 3, "a long title " * 20)

    assert [len(line.line(width)) for width in (0, 1, 20, 80)] == [0, 0, 19, 79]


def test_what_takes_a_moment_needs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)

    with working("reading east", 3) as line:
        line.begins("reading east: 500 pods")
        line.ended()

    assert stream.getvalue() == ""


def test_what_takes_longer_says_what_it_is_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Drawn()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_line, "QUIET_SECONDS", 0.0)

    with working("searching\x1b[2J", 2) as line:
        assert stream.drawn.wait(20), "nothing was drawn beside the work"
        line.ended()

    shown = stream.getvalue()
    assert "1/2  0:00  searching?[2J" in shown
    assert shown.endswith("\r\x1b[K")  # nothing of it stays


def test_in_a_pipe_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_line, "QUIET_SECONDS", 0.0)

    with working("reading", 2) as line:
        line.ended()

    assert stream.getvalue() == ""


async def test_reading_a_cluster_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(ProgressLine, "begins", lambda line, what: said.append(what))
    monkeypatch.setattr("karpool.kube.api.reader.PAGE_SIZE", 20)
    async with clusters_of({"east": nodes_and_pods(30, seed=1)}) as clusters:
        await list_cluster(clusters["east"].client("reader"), Cluster(ASPECTS))

    assert [what for what in said if what.endswith(" nodes")] == [
        "reading east: nodes",
        "reading east: 20 nodes",
        "reading east: 30 nodes",
    ]


def test_work_that_cannot_say_how_far_it_is_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Drawn()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_line, "QUIET_SECONDS", 0.0)

    with working("searching", looking=lambda: "looked at 7 of 9"):
        assert stream.drawn.wait(20), "nothing was drawn beside the work"

    assert "0:00  looked at 7 of 9" in stream.getvalue()


def test_a_search_says_how_many_candidates_it_looked_at_and_what_is_saved() -> None:
    pods = (pod(f"on-{number}", f"node-{number}", cpu="300m") for number in range(12))
    objects = flat(pool(), *(node(f"node-{number}") for number in range(12)), *pods)
    cluster = Cluster(ASPECTS, market=market_of(None, "us-east-1"))
    cluster.load(objects, 0.0)
    progress = SearchProgress()
    before = plan.said(progress, 12, 5.0)
    found = plan_consolidation(view_of(cluster.snapshot(0.0), 0.0), progress=progress)

    assert before == "searching among 12 nodes; 5 s at most"
    assert progress.passes > 1
    assert 0 < progress.looked_at <= progress.candidates <= 12
    assert progress.savings_per_hour == pytest.approx(found.savings_per_hour, rel=0.2)
    assert plan.said(progress, 12, None).startswith(
        f"looked at {progress.looked_at} of {progress.candidates} candidate"
    )
