"""Reads cluster objects from a file: our snapshots, or manifests as kubectl prints them.

Snapshots are checked for format, version and completeness. Manifests may be YAML or JSON, one document or
many, a List or JSON lines, with or without gzip. Memory is bounded by the largest object for snapshots, and
by the file for manifests.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from karpool.kube.api.decoding import (
    Object,
    Report,
    SkippedObject,
    Undecodable,
    decode,
    log_bad_objects,
    raw_identity,
)
from karpool.kube.errors import SnapshotError
from karpool.model import safe_yaml

FORMAT = "karpool-snapshot"
VERSION = 1
HEADER_LIMIT = 64 * 1024
LINE_LIMIT = 16 * 1024 * 1024
TOTAL_LIMIT = 8 * 1024 * 1024 * 1024  # uncompressed; 500,000 pods are about 2 GiB
MANIFEST_LIMIT = 512 * 1024 * 1024
ABSENT = "this cluster does not have it"  # why a kind is not in a file: the cluster does not serve it


class SnapshotHeader(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    format: str
    version: int
    taken_at: str = ""
    server_version: str = ""
    cluster: str = ""
    context: str = ""


class SkippedKind(msgspec.Struct, frozen=True):
    resource: str
    reason: str


class SnapshotFooter(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    end: bool
    objects: int
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    skipped: list[SkippedKind] = msgspec.field(default_factory=list)


class _Kind(msgspec.Struct, rename="camel"):
    api_version: str | None = None
    kind: str | None = None
    end: bool | None = None
    items: list[msgspec.Raw] | None = None


class ObjectFile:
    """A file of objects. `header` is None for manifests; `footer` is set after the last object."""

    def __init__(self, path: Path, *, report: Report = log_bad_objects) -> None:
        self.path = path
        self.footer: SnapshotFooter | None = None
        self._report = report
        # The file is read twice, which is impossible with a pipe.
        if path.exists() and not (path.is_file() or path.is_dir()):
            self._fail("is not a regular file; save it to one first")
        self._compressed = self._begins(b"\x1f\x8b")
        self.header = self._read_header()

    def objects(self) -> Iterator[Object]:
        """Yield every object as a dict. Raises SnapshotError at the first sign of damage."""
        for raw in self._raw_objects():
            yield from self._decoded(raw, dict)

    def _decoded(self, raw: bytes | msgspec.Raw, into: type[Any]) -> Iterator[Any]:
        try:
            yield decode(raw, into)
        except Undecodable as error:
            named = _kind_of(raw).kind or "object"
            self._report([SkippedObject(named, _name_of(raw), str(error))])

    def _raw_objects(self) -> Iterator[bytes | msgspec.Raw]:
        return self._manifest_objects() if self.header is None else self._snapshot_objects()

    # Snapshots

    def _read_header(self) -> SnapshotHeader | None:
        with self._opened() as file:
            try:
                first = file.readline(HEADER_LIMIT)
            except (OSError, EOFError, zlib.error):
                self._fail("is damaged; copy it again")
        try:
            header = msgspec.json.decode(first, type=SnapshotHeader)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        if header.format != FORMAT:
            return None
        if header.version > VERSION:
            self._fail(
                f"was written by a newer version (format {header.version}, this one reads {VERSION}); upgrade"
            )
        return header

    def _snapshot_objects(self) -> Iterator[bytes]:
        count = total = 0
        with self._opened() as file:
            total += len(self._line(file, 0))
            while line := self._line(file, count + 1):
                total += len(line)
                if total > TOTAL_LIMIT:
                    self._fail(f"holds more than {TOTAL_LIMIT} bytes")
                if line.startswith(b'{"end":'):
                    self.footer = self._read_footer(line, count)
                    if self._line(file, count + 2):  # reading on also verifies the last checksum
                        self._fail("goes on after its last line; take the snapshot again")
                    return
                count += 1
                yield line
        self._fail(f"ends after {count} objects without its last line; take the snapshot again")

    def _read_footer(self, line: bytes, count: int) -> SnapshotFooter:
        try:
            footer = msgspec.json.decode(line, type=SnapshotFooter)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._fail("has an unreadable last line; take the snapshot again")
        if footer.objects != count:
            self._fail(f"holds {count} objects but should hold {footer.objects}; take the snapshot again")
        return footer

    def _line(self, file: IO[bytes], number: int) -> bytes:
        try:
            line = file.readline(LINE_LIMIT + 1)
        except (OSError, EOFError, zlib.error):
            self._fail(f"is damaged after line {number}; copy it or take the snapshot again")
        if len(line) > LINE_LIMIT:
            self._fail(f"line {number + 1} is longer than {LINE_LIMIT} bytes")
        return line

    # Manifests

    def _manifest_objects(self) -> Iterator[bytes | msgspec.Raw]:
        data = self._whole()
        if not data.strip():
            self._fail("is empty; expected a snapshot or manifests")
        good = 0
        for number, document in enumerate(self._documents(data), 1):
            kind = _kind_of(document)
            if kind.kind and kind.api_version:
                good += 1
                yield from self._unpacked(document, kind)
            else:
                self._report([SkippedObject("document", str(number), "has no kind or no apiVersion")])
        if not good:
            self._fail("holds no document with kind and apiVersion; expected Kubernetes objects")

    def _documents(self, data: bytes) -> Iterator[bytes]:
        if data.lstrip()[:1] == b"{" and (documents := _json_documents(data)) is not None:
            yield from documents
            return
        try:
            for document in safe_yaml.load_documents(data):
                yield msgspec.json.encode(document)
        except safe_yaml.UnusableYaml as error:
            self._fail(f"{error}; expected a snapshot or manifests in YAML or JSON")
        except msgspec.MsgspecError as error:
            self._fail(f"holds a value that JSON cannot: {error}")

    def _unpacked(self, document: bytes, kind: _Kind) -> Iterator[bytes | msgspec.Raw]:
        """Yield the object, or the items of a List; items of typed lists get their kind."""
        assert kind.kind is not None
        if not kind.kind.endswith("List"):
            yield document
            return
        for raw in kind.items or ():
            if kind.kind == "List" or _kind_of(raw).kind:
                yield raw
            else:
                identity = {"apiVersion": kind.api_version, "kind": kind.kind.removesuffix("List")}
                for item in self._decoded(raw, dict):
                    yield msgspec.json.encode({**identity, **item})

    def _whole(self) -> bytes:
        with self._opened() as file:
            try:
                data = file.read(MANIFEST_LIMIT + 1)
            except (OSError, EOFError, zlib.error):
                self._fail("is damaged; copy it again")
        if len(data) > MANIFEST_LIMIT:
            self._fail(f"is larger than {MANIFEST_LIMIT} bytes; use karpool snapshot instead")
        return data

    # The file

    def _opened(self) -> IO[bytes]:
        try:
            # The caller closes it and handles its own errors.
            file: Any = gzip.open(self.path, "rb") if self._compressed else self.path.open("rb")  # noqa: SIM115
        except OSError as error:
            self._fail(f"{error.strerror}; check the path")
        opened: IO[bytes] = file
        return opened

    def _begins(self, magic: bytes) -> bool:
        self._compressed = False
        with self._opened() as file:
            try:
                return file.read(len(magic)) == magic
            except OSError as error:
                self._fail(f"{error.strerror}; expected a file")

    def _fail(self, message: str) -> NoReturn:
        raise SnapshotError(f"{self.path}: {message}")


def read_objects(path: Path, *, report: Report = log_bad_objects) -> Iterator[Object]:
    """Yield all objects of a snapshot or of manifests as dicts."""
    return ObjectFile(path, report=report).objects()


def _json_documents(data: bytes) -> list[bytes] | None:
    """Return the JSON documents of a file: one, or one per line. None if it is not JSON."""
    if _is_json(data):
        return [data]
    lines = [line for line in data.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all(map(_is_json, lines)) else None


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _kind_of(raw: bytes | msgspec.Raw) -> _Kind:
    try:
        return msgspec.json.decode(raw, type=_Kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _Kind()


def _name_of(raw: bytes | msgspec.Raw) -> str:
    identity = raw_identity(raw)
    return str(identity.key) if identity else "without a readable name"
