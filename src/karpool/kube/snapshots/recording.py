"""Recordings: the state of a cluster and all later changes, in a file that is only appended to.

The format is gzip'd JSON lines. The first line is a header. Every other line has `t`, in seconds since the
start, and either `put` (the new state of an object), `gone` (a deleted object), or neither (nothing had
changed at that time). Each write is a gzip member of its own, so that a file whose writer was killed can be
read up to its last whole line. Secrets are never read; values that may be secret are removed (`redaction`).
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from karpool.cluster.changes import DELETED, ObjectChange
from karpool.cluster.kinds import LIVE_PODS
from karpool.kube.api.decoding import Object
from karpool.kube.errors import SnapshotError
from karpool.kube.snapshots.reader import HEADER_LIMIT, LINE_LIMIT, TOTAL_LIMIT, ObjectFile
from karpool.kube.snapshots.redaction import redact
from karpool.kube.watched import WatchedKind
from karpool.model.errors import Invalid
from karpool.model.kubernetes import api_resources as api
from karpool.model.kubernetes.api_resources import ALL, ApiResource
from karpool.model.kubernetes.times import parse_rfc3339

FORMAT = "karpool-recording"
VERSION = 1
# Nodes and pods are required to replay a cluster; the other kinds are optional.
REQUIRED = (api.NODES, api.PODS)
RECORDED = (
    *REQUIRED,
    api.NAMESPACES,
    api.NODEPOOLS,
    api.NODECLAIMS,
    api.NODEOVERLAYS,
    api.DEPLOYMENTS,
    api.REPLICASETS,
    api.STATEFULSETS,
    api.DAEMONSETS,
    api.JOBS,
    api.PDBS,
    api.PRIORITYCLASSES,
    api.RESOURCEQUOTAS,
    api.PVCS,
    api.PVS,
    api.STORAGECLASSES,
)
KEPT_METADATA = (
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "creationTimestamp",
)
_ANNOTATION_MAX = 4096  # longer values are documents of their own and do not concern capacity
# Status fields that decide where pods can run; counters and heartbeats change all the time.
_STATUS: dict[str, tuple[str, ...]] = {
    "Node": ("capacity", "allocatable", "conditions"),
    "Pod": ("phase", "startTime", "conditions"),
    "NodeClaim": ("providerID", "nodeName", "capacity", "allocatable", "conditions", "lastPodEventTime"),
    "Job": ("succeeded", "failed", "startTime", "completionTime", "conditions"),
    "PersistentVolumeClaim": ("phase",),
    "PersistentVolume": ("phase",),
}
_CONDITION = ("type", "status", "lastTransitionTime")


class RecordingHeader(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    format: str
    version: int
    started_at: str = ""
    cluster: str = ""
    context: str = ""


class RecordedName(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    api_version: str
    kind: str
    name: str
    namespace: str = ""


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    t: float
    put: Object | None = None
    gone: RecordedName | None = None


# Writing


class Recorder:
    """Turns informer events into lines; `now` is in seconds, and 0 while kinds are listed.

    An update that changes none of the recorded fields writes no line.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.changes = 0
        self._now = now
        self._digests: dict[tuple[ApiResource, str, str], bytes] = {}
        self._lines: list[bytes] = []

    def watches(self) -> list[WatchedKind[Any]]:
        return [
            WatchedKind(
                resource,
                dict,
                _KindSink(self, resource),
                LIVE_PODS if resource == api.PODS else ALL,
                optional=resource not in REQUIRED,
                refines=resource not in REQUIRED,
            )
            for resource in RECORDED
        ]

    def apply(self, resource: ApiResource, changes: Sequence[ObjectChange[Object]]) -> None:
        for change in changes:
            key = (resource, change.key.namespace, change.key.name)
            if change.type == DELETED:
                if self._digests.pop(key, None) is not None:
                    self._add(RecordedChange(t=self._now(), gone=_name(resource, change)))
            elif change.object is not None:
                essential = essentials(resource, change.object)
                digest = hashlib.blake2b(_encode(essential), digest_size=12).digest()
                if self._digests.get(key) != digest:
                    self._digests[key] = digest
                    self._add(RecordedChange(t=self._now(), put=essential))

    def _add(self, change: RecordedChange) -> None:
        self.changes += 1
        self._lines.append(_encode(change))

    def written(self) -> bytes:
        """Return all lines since the last call and the current time, as a gzip member."""
        lines, self._lines = self._lines, []
        lines.append(_encode(RecordedChange(t=self._now())))
        return packed(lines)


@dataclass(frozen=True)
class _KindSink:
    recorder: Recorder
    resource: ApiResource

    def apply(self, changes: Sequence[ObjectChange[Object]], /) -> None:
        self.recorder.apply(self.resource, changes)


_encode = msgspec.json.Encoder(order="deterministic").encode


def packed(lines: Iterable[bytes]) -> bytes:
    return gzip.compress(b"".join(line + b"\n" for line in lines), compresslevel=6, mtime=0)


def header_line(header: RecordingHeader) -> bytes:
    return _encode(header)


def _name(resource: ApiResource, change: ObjectChange[Object]) -> RecordedName:
    return RecordedName(
        api_version=resource.api_version,
        kind=resource.kind,
        name=change.key.name,
        namespace=change.key.namespace,
    )


def essentials(resource: ApiResource, obj: Object) -> Object:
    """Return the part of an object that a recording keeps."""
    cleaned = redact(obj)
    metadata = {key: value for key in KEPT_METADATA if (value := cleaned.get("metadata", {}).get(key))}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        metadata["annotations"] = {
            name: text for name, text in annotations.items() if len(str(text)) <= _ANNOTATION_MAX
        }
    kept: Object = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    kept |= {
        key: value
        for key, value in cleaned.items()
        if key not in ("apiVersion", "kind", "metadata", "status", "data")
    }
    status = cleaned.get("status")
    if isinstance(status, dict) and (essential := _essential_status(resource.kind, status)):
        kept["status"] = essential
    return kept


def _essential_status(kind: str, status: Object) -> Object:
    kept = {key: status[key] for key in _STATUS.get(kind, ()) if key in status}
    if isinstance(kept.get("conditions"), list):
        kept["conditions"] = [
            {key: condition[key] for key in _CONDITION if key in condition}
            for condition in kept["conditions"]
            if isinstance(condition, dict)
        ]
    return kept


# Reading


class Recording:
    """A file of `karpool record`. After reading, `cut` is True if its last line is incomplete."""

    def __init__(self, path: Path) -> None:
        """Raises SnapshotError."""
        self.path = path
        self.cut = False
        first = next(self._lines(HEADER_LIMIT), b"")
        try:
            self.header = msgspec.json.decode(first, type=RecordingHeader)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            self.header = RecordingHeader(format="", version=0)
        if self.header.format != FORMAT:
            raise SnapshotError(f"{path}: is not a recording; `karpool record` writes one")
        if self.header.version > VERSION:
            raise SnapshotError(
                f"{path}: was written by a newer version (format {self.header.version}, this one reads "
                f"{VERSION}); upgrade"
            )

    @property
    def started_at(self) -> float | None:
        try:
            return parse_rfc3339(self.header.started_at)
        except (Invalid, ValueError):
            return None

    def changes(self) -> Iterator[RecordedChange]:
        """Yield changes in order of time.

        Raises SnapshotError for a file that no recorder can have written.
        """
        decoder = msgspec.json.Decoder(RecordedChange)
        at, lines = 0.0, self._lines(LINE_LIMIT)
        next(lines, None)
        for number, line in enumerate(lines, 2):
            try:
                change = decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise SnapshotError(f"{self.path}:{number}: is not a change: {error}") from None
            if not at <= change.t < 1e10:
                raise SnapshotError(f"{self.path}:{number}: t: {change.t:g}: time goes back; it was {at:g}")
            at = change.t
            if change.put is not None and not _is_named(change.put):
                raise SnapshotError(
                    f"{self.path}:{number}: put: needs apiVersion, kind and metadata.name, as text"
                )
            yield change

    def _lines(self, limit: int) -> Iterator[bytes]:
        """Yield whole lines. A file that ends within a gzip member was cut; wrong bytes mean damage."""
        total = number = 0
        try:
            with gzip.open(self.path, "rb") as file:
                while line := file.readline(limit + 1):
                    number += 1
                    total += len(line)
                    if len(line) > limit or total > TOTAL_LIMIT:
                        what = (
                            f"line {number} is longer than {limit}" if len(line) > limit else "has too many"
                        )
                        raise SnapshotError(f"{self.path}: {what} bytes")
                    if not line.endswith(b"\n"):
                        self.cut = True
                        return
                    yield line
        except EOFError:
            self.cut = True
        except (gzip.BadGzipFile, zlib.error):
            raise SnapshotError(f"{self.path}: is damaged after line {number}; copy it again") from None
        except OSError as error:
            raise SnapshotError(f"{self.path}: {error.strerror or error}; check the path") from None


def _is_named(obj: Object) -> bool:
    metadata = obj.get("metadata")
    return (
        isinstance(obj.get("apiVersion"), str)
        and isinstance(obj.get("kind"), str)
        and isinstance(metadata, dict)
        and isinstance(metadata.get("name"), str)
        and bool(metadata["name"])
    )


@dataclass(frozen=True)
class SavedCluster:
    """The state of a cluster at one moment; `taken_at` is None if the file has no time."""

    objects: Sequence[Object]
    taken_at: float | None = None
    name: str = ""


def is_recording(path: Path) -> bool:
    try:
        Recording(path)
    except SnapshotError:
        return False
    return True


def read_saved_cluster(path: Path) -> SavedCluster:
    """Read a snapshot, manifests, or the first state of a recording. Raises SnapshotError."""
    if not is_recording(path):
        file = ObjectFile(path)
        objects = [obj for obj in file.objects() if _is_named(obj)]
        header = file.header
        taken = parse_rfc3339(header.taken_at) if header is not None and header.taken_at else None
        return SavedCluster(objects, taken, header.cluster if header is not None else "")
    recording = Recording(path)
    first = (change.put for change in _at_start(recording) if change.put is not None)
    return SavedCluster(list(first), recording.started_at, recording.header.cluster)


def _at_start(recording: Recording) -> Iterator[RecordedChange]:
    for change in recording.changes():
        if change.t > 0:
            return
        yield change
