"""A line that says how far something is: in terminals only, never in the way of other lines."""

import io

import pytest

from karpool.cli.output.progress_line import BAR, ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
