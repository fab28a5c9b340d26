"""The journal's bytes on disk: header, frames, and what to make of damage.

    file    = header frame*
    header  = "karpool journal\\n", version u32, crc32 of both u32
    frame   = mark, payload length u64, crc32 of length and payload u32, payload
    payload = (record length u32, record)*             all numbers little endian

A frame holds what one flush made durable, and is written only after the frame before
it is safe. A bad last frame is therefore an interrupted flush; a bad frame with a
good one after it is damage. Once a frame is safe an empty one, the seal, is put behind
it, which the next frame overwrites: damage in the last acknowledged frame is damage too.
The seal is not synced; a power cut may take it, and nothing else. The mark holds a byte
that UTF-8 text never does, so that a record cannot be mistaken for a frame.
"""

import errno
import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path

import structlog

from karpool.kube.errors import KubeError

log = structlog.get_logger(__name__)

VERSION = 1
MAGIC = b"karpool journal\n"
MARK = b"\xffKJ\n"
_HEADER = struct.Struct("<16sII")
_FRAME = struct.Struct("<4sQI")
_LENGTH = struct.Struct("<Q")
_RECORD = struct.Struct("<I")
_SNAPSHOT_FRAME_BYTES = 4 * 1024 * 1024


class JournalError(KubeError):
    """The journal cannot be used, or no longer; says which file, why, and what to do."""


def header(version: int = VERSION) -> bytes:
    start = _HEADER.pack(MAGIC, version, 0)[:-4]
    return start + zlib.crc32(start).to_bytes(4, "little")


def frame(records: Iterable[bytes]) -> bytes:
    parts = [part for record in records for part in (_RECORD.pack(len(record)), record)]
    payload = b"".join(parts)
    return _FRAME.pack(MARK, len(payload), _checksum(payload)) + payload


def _checksum(payload: bytes | memoryview) -> int:
    # The length is part of it, so that a stretch of zeros is not a row of empty frames.
    return zlib.crc32(payload, zlib.crc32(_LENGTH.pack(len(payload))))


_SEAL = frame(())


class JournalFile:
    """One open journal file; `size` is where its last good frame ends."""

    def __init__(self, path: Path, descriptor: int, size: int, *, fsync: bool) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._fsync = fsync

    @classmethod
    def open(cls, path: Path, *, fsync: bool = True) -> "JournalFile":
        """Open a journal, or create it; drops an interrupted last flush and refuses damage."""
        try:
            for leftover in path.parent.glob(f"{path.name}.new-*"):
                leftover.unlink()
            if not path.exists():
                write_snapshot(path, (), fsync=fsync)
            elif not path.is_file():  # a pipe would be waited for
                raise JournalError(f"{path}: is not a regular file; move it, or use another data directory")
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            end = _checked_end(path, descriptor)
            if fsync:
                _sync(descriptor)  # the seal may not be durable: the next frame must not follow a hole
            return cls(path, descriptor, end, fsync=fsync)
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open_at_end(cls, path: Path, *, fsync: bool) -> "JournalFile":
        """Open a file that was written a moment ago, without reading it again; raises OSError."""
        descriptor = os.open(path, os.O_RDWR)
        return cls(path, descriptor, os.fstat(descriptor).st_size, fsync=fsync)

    def records(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(_HEADER.size)
            while file.tell() < self.size:
                _, length, _ = _FRAME.unpack(file.read(_FRAME.size))
                yield from _split(file.read(length))

    def append(self, records: Iterable[bytes]) -> None:
        """Write one frame over the seal of the last, make it durable and seal it; raises OSError."""
        data = frame(records)
        _write_all(self._descriptor, data, self.size)
        if self._fsync:
            _sync(self._descriptor)
        self.size += len(data)
        _write_all(self._descriptor, _SEAL, self.size)

    def close(self) -> None:
        os.close(self._descriptor)


def write_snapshot(path: Path, records: Iterable[bytes], *, fsync: bool = True) -> None:
    """Write a complete journal under a temporary name and put it at `path`; raises OSError."""
    temporary = path.with_name(f"{path.name}.new-0")
    descriptor = create_snapshot(temporary, records)
    try:
        if fsync:
            _sync(descriptor)
        put_in_place(temporary, path, fsync=fsync)
    finally:
        os.close(descriptor)


def create_snapshot(path: Path, records: Iterable[bytes]) -> int:
    """Write a new file that holds `records`; returns its open descriptor, not yet synced."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        offset = _write_all(descriptor, header(), 0)
        batch: list[bytes] = []
        weight = 0
        for record in records:
            batch.append(record)
            weight += len(record)
            if weight >= _SNAPSHOT_FRAME_BYTES:
                offset = _write_all(descriptor, frame(batch), offset)
                batch, weight = [], 0
        if batch:
            offset = _write_all(descriptor, frame(batch), offset)
        _write_all(descriptor, _SEAL, offset)
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def put_in_place(temporary: Path, path: Path, *, fsync: bool = True) -> None:
    temporary.replace(path)
    if fsync:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def lock_directory(directory: Path) -> TextIOWrapper:
    """Take a data directory for this process, creating it; closing the file gives it free."""
    path = directory / "lock"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        file.close()
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise _unusable(path, error) from error
        raise JournalError(
            f"data directory {directory} is in use by process {holder}; stop it, or use another directory"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _checked_end(path: Path, descriptor: int) -> int:
    """Where the last good frame ends, after cutting off an interrupted one."""
    size = os.fstat(descriptor).st_size
    _check_header(path, os.pread(descriptor, _HEADER.size, 0))
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
        end = _HEADER.size
        while end < size and (following := _frame_end(view, end)) is not None:
            end = following
        if end < size and (good := _next_good_frame(data, view, end)) is not None:
            raise JournalError(
                f"{path}: damaged at byte {end} (frames are good again from byte {good}); "
                "restore the file from a backup, or move it away to start empty"
            )
    if end < size:
        log.warning(
            "incomplete write dropped from the journal; it was never acknowledged",
            file=str(path),
            offset=end,
            dropped_bytes=size - end,
        )
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    return end


def _check_header(path: Path, found: bytes) -> None:
    if len(found) < _HEADER.size or not found.startswith(MAGIC):
        raise JournalError(f"{path}: is not a journal; move it away, or use another data directory")
    _, version, checksum = _HEADER.unpack(found)
    if zlib.crc32(found[:-4]) != checksum:
        raise JournalError(
            f"{path}: damaged at byte 0 (the header); restore the file from a backup, "
            "or move it away to start empty"
        )
    if version != VERSION:
        raise JournalError(
            f"{path}: has format version {version}, this program reads version {VERSION}; "
            "open it with the program that wrote it, or use another data directory"
        )


def _frame_end(view: memoryview, offset: int) -> int | None:
    """The end of the good frame at an offset; None when there is none."""
    start = offset + _FRAME.size
    if start > len(view):
        return None
    mark, length, checksum = _FRAME.unpack_from(view, offset)
    end: int = start + length
    if mark != MARK or end > len(view):
        return None
    with view[start:end] as payload:
        return end if _checksum(payload) == checksum else None


def _next_good_frame(data: mmap.mmap, view: memoryview, offset: int) -> int | None:
    while (offset := data.find(MARK, offset + 1)) >= 0:
        if _frame_end(view, offset) is not None:
            return offset
    return None


def _split(payload: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(payload):
        (length,) = _RECORD.unpack_from(payload, offset)
        offset += _RECORD.size + length
        yield payload[offset - length : offset]


def _write_all(descriptor: int, data: bytes, offset: int) -> int:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
    return offset


def _sync(descriptor: int) -> None:
    # On macOS fsync leaves data in the drive's cache; this asks the drive as well.
    if full := getattr(fcntl, "F_FULLFSYNC", None):
        fcntl.fcntl(descriptor, full)
    else:
        os.fdatasync(descriptor)


def _unusable(path: Path, error: OSError) -> JournalError:
    reason = error.strerror or str(error)
    return JournalError(f"{path}: {reason.lower()}; make it writable, or use another data directory")
