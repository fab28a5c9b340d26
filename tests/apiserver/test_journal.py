import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from karpool_fleet.apiserver.storage import journal_file
from karpool_fleet.apiserver.storage.journal import Journal
from karpool_fleet.apiserver.storage.journal_file import JournalError

FIRST = [b"one", b"", b'{"kind":"Pod"}']
SECOND = [b"two" * 50, b"\xffKJ\n"]
SEAL = len(journal_file.frame(()))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "data")
    yield opened
    opened.close()


def written(directory: Path, *flushes: list[bytes]) -> Path:
    """A closed journal with one frame per flush."""
    opened = Journal(directory)
    for records in flushes:
        for record in records:
            opened.append(record)
        opened.flush()
    opened.close()
    return directory / "journal"


def contents(directory: Path) -> list[bytes]:
    opened = Journal(directory)
    try:
        return list(opened.replay())
    finally:
        opened.close()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    written(tmp_path, FIRST)
    written(tmp_path, SECOND)

    assert contents(tmp_path) == FIRST + SECOND


def test_numbers_count_up_and_durable_follows(journal: Journal) -> None:
    assert [journal.append(record) for record in FIRST] == [1, 2, 3]
    assert journal.durable == 0
    journal.flush()
    assert journal.durable == 3


async def test_waiters_share_writes(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = []
    append = journal_file.JournalFile.append
    monkeypatch.setattr(
        journal_file.JournalFile,
        "append",
        lambda self, records: (flushes.append(len(records)), append(self, records)),
    )

    async def write(number: int) -> None:
        await journal.flush_to(journal.append(b"%d" % number))

    async with asyncio.TaskGroup() as group:
        for number in range(500):
            group.create_task(write(number))

    assert sum(flushes) == 500
    assert len(flushes) < 10
    assert list(journal.replay()) == [b"%d" % number for number in range(500)]


async def test_a_waiter_that_comes_while_a_write_lands_is_served(journal: Journal) -> None:
    """The write is done and nobody has heard of it yet: awaiting it would never let anybody hear of it."""
    first = asyncio.ensure_future(journal.flush_to(journal.append(b"a")))
    await asyncio.sleep(0)
    flight = journal._flight
    assert flight is not None
    while not flight.done():  # noqa: ASYNC110 - an event would be set after the moment that is meant
        await asyncio.sleep(0)
    await journal.flush_to(journal.append(b"b"))
    await first
    assert journal.durable == 2


async def test_a_waiter_that_gives_up_does_not_take_the_others_with_it(journal: Journal) -> None:
    number = journal.append(b"x")
    impatient = asyncio.ensure_future(journal.flush_to(number))
    patient = asyncio.ensure_future(journal.flush_to(number))
    await asyncio.sleep(0)

    impatient.cancel()
    await asyncio.wait([impatient, patient])

    assert impatient.cancelled()
    assert patient.exception() is None
    assert journal.durable == 1


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), max_size=5))
@settings(max_examples=25, deadline=None)
def test_replay_gives_what_was_appended(flushes: list[list[bytes]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        written(Path(name), *flushes)
        assert contents(Path(name)) == [record for records in flushes for record in records]


@pytest.mark.long
def test_a_journal_cut_anywhere_keeps_every_whole_flush(tmp_path: Path) -> None:
    path = written(tmp_path, FIRST)
    first_sealed = path.stat().st_size
    written(tmp_path, SECOND)
    whole = path.read_bytes()
    first_end, second_end = first_sealed - SEAL, len(whole) - SEAL
    start = first_end - len(journal_file.frame(FIRST))
    ends = [start, first_end, first_sealed, second_end, len(whole)]

    for length in range(start, len(whole) + 1):
        path.write_bytes(whole[:length])
        with capture_logs() as logs:
            found = contents(tmp_path)
        assert found == (FIRST + SECOND if length >= second_end else FIRST if length >= first_end else [])
        torn = length not in ends
        assert [line["event"].startswith("incomplete write") for line in logs] == [True] * torn
        assert path.stat().st_size == max(end for end in ends if end <= length)


def test_writing_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    path = written(tmp_path, FIRST, SECOND)
    os.truncate(path, path.stat().st_size - SEAL - 1)

    written(tmp_path, [b"later"])

    assert contents(tmp_path) == [*FIRST, b"later"]


def test_a_flush_whose_blocks_arrived_out_of_order_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, FIRST)
    end = path.stat().st_size
    written(tmp_path, SECOND)
    data = bytearray(path.read_bytes()[:-SEAL])  # what was not synced has no seal
    data[end : end + 20] = bytes(20)
    path.write_bytes(data)

    assert contents(tmp_path) == FIRST


@pytest.mark.long
def test_a_flush_that_overwrote_the_seal_in_part_is_dropped(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    for records in (FIRST, SECOND):
        for record in records:
            opened.append(record)
        opened.flush()
    opened.close()
    path = tmp_path / "journal"
    whole = path.read_bytes()[:-SEAL]
    start = len(whole) - len(journal_file.frame(SECOND))  # where the seal of the first flush was

    for kept in range(len(journal_file.frame(SECOND))):
        for seal in (b"", journal_file.frame(())):
            data = bytearray(whole)
            data[start : start + kept] = seal[:kept].ljust(kept, b"\0")
            path.write_bytes(data)
            assert contents(tmp_path) == (FIRST + SECOND if data == whole else FIRST)


def test_a_tail_of_zeros_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, FIRST)
    with path.open("ab") as file:
        file.write(bytes(4096))

    assert contents(tmp_path) == FIRST


@pytest.mark.parametrize("flushes_after", [True, False])
def test_damage_in_an_acknowledged_flush_is_refused_at_every_byte(
    tmp_path: Path, flushes_after: bool
) -> None:
    """Also in the last: what was acknowledged is never called an interrupted write."""
    path = written(tmp_path, FIRST)
    end = path.stat().st_size - SEAL
    start = end - len(journal_file.frame(FIRST))
    if flushes_after:
        written(tmp_path, [b"last"])
    good = path.read_bytes()

    for place in range(start, end):
        data = bytearray(good)
        data[place] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(JournalError) as caught:
            Journal(tmp_path)
        assert str(path) in str(caught.value)
        assert f"damaged at byte {start} " in str(caught.value)
        assert "restore the file from a backup, or move it away" in str(caught.value)
        assert path.read_bytes() == data


def test_damage_at_the_end_of_a_snapshot_is_refused(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    asyncio.run(opened.compact(FIRST))
    opened.close()
    path = tmp_path / "journal"
    data = bytearray(path.read_bytes())
    data[data.index(b"Pod")] ^= 1
    path.write_bytes(data)

    with pytest.raises(JournalError, match="damaged at byte"):
        Journal(tmp_path)


def test_compaction_replaces_the_history(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    for number in range(100):
        opened.append(b"%d" % number)
    opened.flush()
    before = opened.size_bytes

    asyncio.run(opened.compact([b"state"]))
    opened.append(b"after")
    opened.close()

    assert contents(tmp_path) == [b"state", b"after"]
    assert (tmp_path / "journal").stat().st_size < before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "lock"]


async def test_nothing_appended_during_a_compaction_is_lost(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    state: list[bytes] = []
    rounds = 30

    async def write(count: int) -> None:
        for _ in range(count):
            record = b"%d" % len(state)
            state.append(record)
            await opened.flush_to(opened.append(record))

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(write(rounds))
        for _ in range(5):
            await write(3)
            await opened.compact(list(state))
    opened.close()

    assert contents(tmp_path) == state
    assert len(state) == 4 * rounds + 15


async def test_a_cancelled_compaction_loses_nothing(tmp_path: Path) -> None:
    for steps in range(6):
        directory = tmp_path / str(steps)
        opened = Journal(directory)
        await opened.flush_to(opened.append(b"a"))
        compaction = asyncio.ensure_future(opened.compact([b"a"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        opened.append(b"b")
        compaction.cancel()
        await asyncio.wait([compaction])
        await opened.flush_to(opened.append(b"c"))
        opened.close()

        assert contents(directory) == [b"a", b"b", b"c"]


async def test_one_compaction_at_a_time(journal: Journal) -> None:
    running = asyncio.ensure_future(journal.compact([]))
    await asyncio.sleep(0)

    with pytest.raises(JournalError, match="already running"):
        await journal.compact([])
    await running


def test_large_snapshots_span_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "_SNAPSHOT_FRAME_BYTES", 10)
    records = [b"%d" % number for number in range(50)]
    opened = Journal(tmp_path)
    asyncio.run(opened.compact(records))
    opened.close()

    assert contents(tmp_path) == records


def test_leftovers_of_an_interrupted_compaction_are_removed(tmp_path: Path) -> None:
    written(tmp_path, FIRST)
    (tmp_path / "journal.new-3").write_bytes(b"half")

    assert contents(tmp_path) == FIRST
    assert not (tmp_path / "journal.new-3").exists()


def test_a_second_process_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    try:
        with pytest.raises(JournalError, match=f"in use by process {os.getpid()}; stop it"):
            Journal(tmp_path)
    finally:
        opened.close()

    assert contents(tmp_path) == []


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_version_is_refused(tmp_path: Path, version: int) -> None:
    (tmp_path / "journal").write_bytes(journal_file.header(version))

    with pytest.raises(JournalError, match=f"format version {version}, this program reads version 1"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "is not a journal", id="empty"),
        pytest.param(b"something else entirely, and long", "is not a journal", id="another file"),
        pytest.param(journal_file.header()[:-1] + b"\0", "damaged at byte 0", id="header damaged"),
    ],
)
def test_a_file_that_is_not_a_journal_is_left_alone(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "journal").write_bytes(data)

    with pytest.raises(JournalError, match=message):
        Journal(tmp_path)
    assert (tmp_path / "journal").read_bytes() == data


def test_a_pipe_in_the_place_of_the_journal_gets_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal")

    with pytest.raises(JournalError, match="journal: is not a regular file; move it"):
        Journal(tmp_path)


async def test_a_full_disk_stops_writing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Journal(tmp_path)
    await opened.flush_to(opened.append(b"safe"))
    size = (tmp_path / "journal").stat().st_size
    write = os.pwrite

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if offset >= size - SEAL + 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:5], offset)

    monkeypatch.setattr(os, "pwrite", full)
    number = opened.append(b"lost")
    for _ in range(2):
        with pytest.raises(JournalError, match="no space left on device; no more writes are accepted"):
            await opened.flush_to(number)
    with pytest.raises(JournalError, match="make room or repair the disk, then restart"):
        opened.append(b"more")
    opened.close()
    monkeypatch.undo()

    assert contents(tmp_path) == [b"safe"]


async def test_a_compaction_without_room_leaves_the_old_file_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Journal(tmp_path)
    opened.append(b"a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(JournalError, match="not compacted, the old file stays in use"):
            await opened.compact([b"state"])
    opened.append(b"b")
    opened.close()

    assert contents(tmp_path) == [b"a", b"b"]


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="make it writable, or use another data directory"):
        Journal(tmp_path / "file" / "data")

    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(JournalError, match="read-only file system; make it writable"):
        Journal(tmp_path / "data")


def test_a_record_beyond_all_bounds_is_refused(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karpool_fleet.apiserver.storage.journal.MAX_RECORD_BYTES", 10)

    with pytest.raises(JournalError, match="11 bytes is larger than 10"):
        journal.append(b"x" * 11)


async def test_a_closed_journal_accepts_nothing(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(b"pending")
    opened.close()
    opened.close()

    with pytest.raises(JournalError, match="closed"):
        opened.append(b"x")
    assert contents(tmp_path) == [b"pending"]


WRITER = """
import asyncio, sys
from pathlib import Path
from karpool_fleet.apiserver.storage.journal import Journal

async def main():
    journal = Journal(Path(sys.argv[1]))
    state = []
    async def write(writer):
        for number in range(1_000_000):
            record = f"{writer}-{number}".encode()
            state.append(record)
            await journal.flush_to(journal.append(record))
            print(record.decode(), flush=True)
    async def compact():
        while True:
            await journal.compact(list(state))
            await asyncio.sleep(0.005)
    async with asyncio.TaskGroup() as group:
        for writer in range(4):
            group.create_task(write(writer))
        group.create_task(compact())

asyncio.run(main())
"""


@pytest.mark.parametrize("acknowledged", [1, 37, 400])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, acknowledged: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            promised = [process.stdout.readline().strip() for _ in range(acknowledged)]
        finally:
            process.send_signal(signal.SIGKILL)
        promised += process.stdout.read().split("\n")[:-1]

    found = {record.decode() for record in contents(tmp_path)}
    assert promised[0].count("-") == 1
    assert set(promised) <= found
