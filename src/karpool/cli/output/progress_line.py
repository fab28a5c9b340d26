"""Lines for people, and below them one that says how far something has come.

The last line is drawn again after every other one, and is only there in a terminal. Without
colour where somebody asked for none (NO_COLOR) or nothing would show it.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

import click

from karpool.cli.output.text import printable, printable_lines

BAR = 24
QUIET_SECONDS = 0.4  # what takes no longer needs no line
_TICK_SECONDS = 0.5
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """`with` takes the line away at the end."""

    def __init__(
        self, stream: TextIO, total: int, what: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self.is_live and not os.environ.get("NO_COLOR")
        self._stream, self._clock = stream, clock
        self._total, self._done, self._what = total, 0, what
        self._began = clock()

    def __enter__(self) -> "ProgressLine":
        self.draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._write(_CLEAR)

    def say(self, text: str, *, colour: str | None = None, bold: bool | None = None) -> None:
        text = printable_lines(text)
        shown = click.style(text, fg=colour, bold=bold) if self._colours else text
        self._write(f"{_CLEAR if self.is_live else ''}{shown}\n")
        self.draw()

    def begins(self, what: str) -> None:
        self._what = printable(what)
        self.draw()

    def ended(self) -> None:
        self._done += 1
        self.draw()

    def draw(self) -> None:
        if self.is_live:
            self._write(_CLEAR + self.line(shutil.get_terminal_size().columns))

    def line(self, width: int) -> str:
        seconds = int(self._clock() - self._began)
        text = f"{seconds // 60}:{seconds % 60:02}  {self._what}"
        if self._total:
            filled = BAR * min(self._done, self._total) // self._total
            bar = "━" * filled + "─" * (BAR - filled)
            text = f"{bar} {self._done}/{self._total}  {text}"
        return text[: max(width - 1, 0)]  # a line that wraps could not be taken away again

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def working(what: str, total: int = 0, *, looking: Callable[[], str] | None = None) -> Iterator[ProgressLine]:
    """On stderr, where that is a terminal: what is being done, how far it is and for how long, as soon as it
    takes longer than a moment. Time goes on in it whatever the work does. `looking` says how far work is that
    does not say so itself."""
    line = ProgressLine(sys.stderr, total, printable(what))
    if not line.is_live:
        yield line
        return
    line.is_live = False
    ended = Event()

    def tick() -> None:
        wait = QUIET_SECONDS
        while not ended.wait(wait):
            line.is_live, wait = True, _TICK_SECONDS
            if looking is not None:
                line.begins(looking())
            else:
                line.draw()

    ticking = Thread(target=tick, name="progress", daemon=True)
    ticking.start()
    try:
        yield line
    finally:
        ended.set()
        ticking.join()
        line.__exit__()
