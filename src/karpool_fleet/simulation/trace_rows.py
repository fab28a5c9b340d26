"""Reads rows of third-party CSV files, with or without gzip, one at a time and in bounded memory.

Every row has exactly the fields of the header; each problem is one FleetError with the file and the first
line of the row. Progress is measured in bytes of the file.
"""

import csv
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from karpool_fleet.clusters.strict_file import FleetError

BYTES_MAX = 512 * 2**20  # uncompressed
LINE_MAX = 256 * 2**10
COLUMNS_SHOWN = 20
_NAME_SHOWN = 40
_TELL_EVERY = 4096  # rows between two progress reports
_BOM = b"\xef\xbb\xbf"
_MIB = 2**20
Row = Mapping[str, str]
Rows = Iterator[tuple[int, Row]]
Progress = Callable[[float], None]


class Table:
    """The header of an open file, and its rows with their first lines."""

    def __init__(
        self, path: Path, raw: io.BufferedReader, stream: io.BufferedIOBase, progress: Progress
    ) -> None:
        self._path, self._raw, self._progress = path, raw, progress
        self._size = os.fstat(raw.fileno()).st_size
        self._line = 0  # last line that was read
        self._reader = csv.reader(self._lines(stream), strict=True)
        self._read = iter(self._checked())
        _, names = next(self._read, (1, []))
        if not names:
            raise FleetError(f"{path}: is empty; a trace begins with a line of column names")
        self.header: Sequence[str] = [name.strip() for name in names]
        if len(set(self.header)) < len(self.header):
            twice = next(column for column in self.header if self.header.count(column) > 1)
            raise FleetError(f"{path}:1: has the column {shown([twice])!r} twice; leave one of them out")

    def rows(self, select: Mapping[str, str]) -> Rows:
        """Yield the rows that have these values. Raises FleetError."""
        if missing := sorted(set(select) - set(self.header)):
            raise FleetError(
                f"{self._path}: select: has no column {missing[0]!r}; there are {shown(self.header)}"
            )
        conditions = [(self.header.index(name), value) for name, value in select.items()]
        for number, (line, values) in enumerate(self._read):
            if number % _TELL_EVERY == 0 and self._size:
                self._progress(min(self._raw.tell() / self._size, 1.0))
            if len(values) != len(self.header):
                raise FleetError(
                    f"{self._path}:{line}: has {len(values)} fields, and the header has {len(self.header)}"
                )
            if all(values[index] == value for index, value in conditions):
                yield line, dict(zip(self.header, values, strict=True))

    def _checked(self) -> Iterator[tuple[int, list[str]]]:
        line = 1
        try:
            for values in self._reader:
                if values:
                    yield line, values
                line = self._line + 1
        except csv.Error as error:
            reason = "lines end with CR alone" if "new-line" in str(error) else str(error)
            raise FleetError(f"{self._path}:{line}: is not CSV: {reason}") from None
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise FleetError(
                f"{self._path}:{self._line}: is not a text file in UTF-8: byte 0x{byte:02x}; give a CSV file"
            ) from None
        except (OSError, EOFError, zlib.error) as error:
            raise FleetError(f"{self._path}:{self._line + 1}: cannot be read further: {error}") from None

    def _lines(self, stream: io.BufferedIOBase) -> Iterator[str]:
        left = BYTES_MAX
        while data := stream.readline(LINE_MAX):
            self._line += 1
            left -= len(data)
            if left < 0:
                raise FleetError(f"{self._path}: is larger than {BYTES_MAX // _MIB} MiB; cut it into parts")
            if len(data) == LINE_MAX:
                size = f"{LINE_MAX // 1024} KiB"
                raise FleetError(f"{self._path}:{self._line}: is a line of {size} or more; give a CSV file")
            yield (data.removeprefix(_BOM) if self._line == 1 else data).decode()


@contextmanager
def opened(path: Path, progress: Progress = lambda share: None) -> Iterator[Table]:
    """Open a file. Raises FleetError."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise FleetError(f"{path}: {error.strerror}; give the path of a CSV file") from None
    except ValueError:  # an invalid file name
        raise FleetError(f"{shown([str(path)])}: is not the name of a file") from None
    with raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=raw) if packed else raw as stream:
            yield Table(path, raw, stream, progress)


def can_be_read_twice(path: Path) -> bool:
    """Whether a file can be read twice: a pipe cannot, and a missing file fails both times."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return True


def shown(names: Sequence[str]) -> str:
    """Format column names for a message: a few, short, and safe for a terminal."""
    few = [name[:_NAME_SHOWN] for name in names[:COLUMNS_SHOWN]]
    return ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in few)
