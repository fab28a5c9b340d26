"""Stores the history of a fleet in one SQLite file, so that a restarted dashboard has it.

A file that is not ours, or has another version, is refused at the start. If writing fails later, it is logged
once and the dashboard continues from memory.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from karpool.dashboard.pages.time_series import RANGES, StoredStep
from karpool.model.errors import Invalid

log = structlog.get_logger(__name__)

VERSION = 1  # of the table and the order of its series
_APPLICATION = 0x4B61_7270  # "Karp"
_TABLE = """CREATE TABLE IF NOT EXISTS steps (step_seconds INTEGER NOT NULL, step INTEGER NOT NULL,
 cluster TEXT NOT NULL, looks INTEGER NOT NULL, sums TEXT NOT NULL, PRIMARY KEY (step_seconds, step, cluster))
 WITHOUT ROWID"""
_SUMS = msgspec.json.Decoder(tuple[float, ...])


class HistoryFile:
    """The open file. Raises Invalid for a file that cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_broken = False
        try:
            self._file = sqlite3.connect(path, timeout=2.0, isolation_level=None)
            self._prepare()
        except sqlite3.Error as error:
            raise Invalid("history-file", str(path), f"cannot be used: {error}") from None

    def _prepare(self) -> None:
        (application,) = self._file.execute("PRAGMA application_id").fetchone()
        (version,) = self._file.execute("PRAGMA user_version").fetchone()
        (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and (application, version) != (_APPLICATION, VERSION):
            self._file.close()
            raise Invalid("history-file", str(self._path), "is not a history file; choose another path")
        # Losing the last seconds in a machine failure is acceptable; a damaged file is not.
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.execute(f"PRAGMA application_id={_APPLICATION}")
        self._file.execute(f"PRAGMA user_version={VERSION}")
        self._file.execute(_TABLE)

    def steps(self) -> Iterator[StoredStep]:
        for step_seconds, step, cluster, looks, sums in self._file.execute("SELECT * FROM steps"):
            with suppress(msgspec.MsgspecError):  # a row that was edited by hand
                yield StoredStep(cluster, step_seconds, step, looks, _SUMS.decode(sums))

    def keep(self, steps: Sequence[StoredStep]) -> None:
        rows = [
            (step.step_seconds, step.step, step.cluster, step.looks, msgspec.json.encode(step.sums).decode())
            for step in steps
        ]
        try:
            self._file.execute("BEGIN")
            self._file.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?)", rows)
            for known in RANGES:
                present = (step.step for step in steps if step.step_seconds == known.step_seconds)
                oldest = (known.step_seconds, max(present, default=0) - known.steps)
                self._file.execute("DELETE FROM steps WHERE step_seconds = ? AND step <= ?", oldest)
            self._file.execute("COMMIT")
            self._is_broken = False
        except sqlite3.Error as error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            if not self._is_broken:
                log.warning("history is not written", path=str(self._path), error=str(error))
            self._is_broken = True

    def close(self) -> None:
        self._file.close()
