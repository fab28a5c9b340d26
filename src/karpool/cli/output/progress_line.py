"""Lines for people, and below them one that says how far something has come.

The last line is drawn again after every other one, and is only there in a terminal. Without
colour where somebody asked for none (NO_COLOR) or nothing would show it.
"""

import os
import shutil
import time
from collections.abc import Callable
from typing import TextIO

import click

from karpool.cli.output.text import printable_lines

BAR = 24
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
        self._what = what
        self.draw()

    def ended(self) -> None:
        self._done += 1
        self.draw()

    def draw(self) -> None:
        if self.is_live:
            self._write(_CLEAR + self.line(shutil.get_terminal_size().columns))

    def line(self, width: int) -> str:
        filled = BAR * self._done // max(self._total, 1)
        seconds = int(self._clock() - self._began)
        bar = "━" * filled + "─" * (BAR - filled)
        text = f"{bar} {self._done}/{self._total}  {seconds // 60}:{seconds % 60:02}  {self._what}"
        return text[: max(width - 1, 0)]  # a line that wraps could not be taken away again

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
