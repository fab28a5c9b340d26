"""An append-only journal: a flushed record survives kill -9 and a power cut.

Records are opaque bytes. Concurrent flushes share one write and one fsync, done outside the event loop. A
write that a crash interrupts is dropped at the next start; it was never acknowledged. Other damage is
refused. A data directory belongs to one process at a time. `journal_file` has the format.
"""

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from karpool_fleet.apiserver.storage.journal_file import (
    JournalError,
    JournalFile,
    create_snapshot,
    lock_directory,
    put_in_place,
)

__all__ = ["MAX_RECORD_BYTES", "Journal", "JournalError"]

FILE = "journal"
MAX_RECORD_BYTES = 64 * 1024 * 1024  # far above any object; more is a bug


class Journal:
    """`append` numbers a record, `flush_to` makes it durable, `replay` reads all durable records.

    Its methods belong to one thread, usually the event loop's; another thread writes the files. After a
    failed write nothing more is accepted, because memory and disk no longer agree until a restart.
    """

    def __init__(self, directory: Path, *, fsync: bool = True) -> None:
        """Open or create the journal of a data directory; raises JournalError.

        Without `fsync` records survive the end of the process, not that of the machine.
        """
        self._lock = lock_directory(directory)
        try:
            self._file = JournalFile.open(directory / FILE, fsync=fsync)
        except BaseException:
            self._lock.close()
            raise
        self._fsync = fsync
        self._pending: deque[bytes] = deque()
        self._appended = 0
        self._durable = 0
        self._tail: list[bytes] | None = None  # records appended since a running compaction began
        self._failure = ""
        self._numbers = itertools.count(1)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._flight: asyncio.Future[None] | None = None

    @property
    def durable(self) -> int:
        """The number of the last record of this process that is safe."""
        return self._durable

    @property
    def size_bytes(self) -> int:
        """The size of the file; compact when it outgrows the state it describes."""
        return self._file.size

    def replay(self) -> Iterator[bytes]:
        """Every durable record in order: the last compaction's, then those appended since."""
        return self._file.records()

    def append(self, record: bytes) -> int:
        """Queue a record and return its number; it is safe once `flush_to(number)` returned."""
        self._check_usable()
        if len(record) > MAX_RECORD_BYTES:
            raise JournalError(
                f"a record of {len(record)} bytes is larger than {MAX_RECORD_BYTES}; not stored"
            )
        # The tail first: once the record is pending the worker may write it at any moment,
        # and a compaction must find in the tail whatever the old file has.
        if (tail := self._tail) is not None:
            tail.append(record)
        self._pending.append(record)
        self._appended += 1
        return self._appended

    async def flush_to(self, number: int) -> None:
        """Return when all records up to `number` are safe; raises JournalError."""
        while self._durable < number:
            self._check_usable()
            flight = self._flight
            if flight is None:
                flight = self._flight = asyncio.wrap_future(self._worker.submit(self._write_pending))
                flight.add_done_callback(self._landed)
            # A cancelled waiter must not cancel the write that others wait for. And `wait` lets the loop go
            # on: awaiting a finished flight whose callback has not run yet would spin for ever.
            await asyncio.wait([flight])
            flight.result()

    def flush(self) -> None:
        """Make every record safe before returning; for callers without an event loop."""
        if self._durable < self._appended:
            self._check_usable()
            self._worker.submit(self._write_pending).result()

    async def compact(self, records: Iterable[bytes]) -> None:
        """Replace the history by `records`, the whole state as of this call.

        Appending and flushing go on meanwhile. When it fails for lack of space the old
        file stays in use.
        """
        snapshot, upto, tail = self._begin_compaction(records)
        try:
            await self.flush_to(upto)
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(None, self._write_snapshot, snapshot)
            temporary = await asyncio.shield(writing)
        except BaseException:
            self._tail = None
            raise
        await asyncio.shield(asyncio.wrap_future(self._submit_switch(temporary, tail, upto)))

    def close(self) -> None:
        """Flush pending records and unlock the directory."""
        try:
            if not self._failure:
                self.flush()
        finally:
            self._worker.shutdown(wait=True)
            if self._failure != _CLOSED:
                self._file.close()
                self._lock.close()
            self._failure = _CLOSED

    def _check_usable(self) -> None:
        if self._failure:
            raise JournalError(self._failure)

    def _landed(self, flight: "asyncio.Future[None]") -> None:
        self._flight = None
        if not flight.cancelled():
            flight.exception()  # waiters see it; retrieved here in case all of them left

    def _begin_compaction(self, records: Iterable[bytes]) -> tuple[list[bytes], int, list[bytes]]:
        self._check_usable()
        if self._tail is not None:
            raise JournalError("a compaction is already running; wait for it")
        tail: list[bytes] = []
        self._tail = tail
        return list(records), self._appended, tail

    def _submit_switch(self, temporary: Path, tail: list[bytes], upto: int) -> "Future[None]":
        return self._worker.submit(self._switch, temporary, tail, upto)

    # Below: run by threads. Only the worker touches `_file` and `_durable`.

    def _write_pending(self) -> None:
        batch = [self._pending.popleft() for _ in range(len(self._pending))]
        if not batch:
            return
        self._check_usable()
        try:
            self._file.append(batch)
        except OSError as error:
            self._fail(error)
        self._durable += len(batch)

    def _write_snapshot(self, records: list[bytes]) -> Path:
        temporary = self._file.path.with_name(f"{FILE}.new-{next(self._numbers)}")
        try:
            descriptor = create_snapshot(temporary, records)
            try:
                if self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._not_compacted(error) from error
        return temporary

    def _switch(self, temporary: Path, tail: list[bytes], upto: int) -> None:
        """Bring the new file up to date with the old one and take its place."""
        try:
            replacement = JournalFile.open_at_end(temporary, fsync=self._fsync)
            try:
                if written := tail[: self._durable - upto]:
                    replacement.append(written)
            except OSError:
                replacement.close()
                raise
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._not_compacted(error) from error
        finally:
            self._tail = None
        try:
            put_in_place(temporary, self._file.path, fsync=self._fsync)
        except OSError as error:
            replacement.close()
            self._fail(error)
        self._file.close()
        replacement.path = self._file.path
        self._file = replacement

    def _not_compacted(self, error: OSError) -> JournalError:
        reason = (error.strerror or str(error)).lower()
        return JournalError(f"{self._file.path}: {reason}; not compacted, the old file stays in use")

    def _fail(self, error: OSError) -> NoReturn:
        reason = (error.strerror or str(error)).lower()
        self._failure = (
            f"{self._file.path}: {reason}; no more writes are accepted, all acknowledged ones are safe: "
            "make room or repair the disk, then restart"
        )
        raise JournalError(self._failure) from error


_CLOSED = "the journal is closed"
