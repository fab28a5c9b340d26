"""Writes the state of a cluster into one file, for planning elsewhere.

The file is gzip'd JSON lines: a header, one line per object, and a footer that proves completeness. The file
appears under its name only when it is complete. Secrets are never read, and values that may be secret are
removed (`redaction`). A kind that the server lacks or forbids is noted and is not an error. `reader` reads
the file.
"""

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from karpool.cluster.kinds import ALL_KINDS
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.api.reader import EXPIRED_LIST_TRIES, PAGE_SIZE
from karpool.kube.errors import Denied, Gone, KubeError, NotFound, SnapshotError, StatusError
from karpool.kube.replaced_file import replaced_file
from karpool.kube.snapshots.reader import (
    ABSENT,
    FORMAT,
    VERSION,
    ObjectFile,
    SkippedKind,
    SnapshotFooter,
    SnapshotHeader,
    read_objects,
)
from karpool.kube.snapshots.redaction import redact
from karpool.model.kubernetes import api_resources as kinds
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions
from karpool.model.kubernetes.times import rfc3339

__all__ = [
    "ABSENT",
    "SAVED_KINDS",
    "ObjectFile",
    "SnapshotKind",
    "SnapshotSummary",
    "read_objects",
    "take_snapshot",
]


@dataclass(frozen=True, slots=True)
class SnapshotKind:
    """A kind in a snapshot: all selected objects, or one object by name."""

    resource: ApiResource
    selection: ListOptions = ALL
    name: str = ""

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}" if self.name else str(self.resource)


# Kinds that commands read in addition to those of a `Cluster`, such as Karmada's.
# Works are left out on purpose: they embed whole manifests, Secrets included.
_BESIDES = (
    kinds.KWOKNODECLASSES,
    kinds.CLUSTERS,
    kinds.RESOURCEBINDINGS,
    kinds.CLUSTERRESOURCEBINDINGS,
    kinds.PROPAGATIONPOLICIES,
    kinds.CLUSTERPROPAGATIONPOLICIES,
)
# Only events about capacity, but all objects of other kinds: finished pods show what failed.
SAVED_KINDS: tuple[SnapshotKind, ...] = tuple(
    dict.fromkeys(  # without duplicates: a kind of the cluster may also own pods
        (
            *(
                SnapshotKind(kind.resource, kind.selection if kind.resource == kinds.EVENTS else ALL)
                for kind in ALL_KINDS
                # ConfigMaps are read by name: others may contain secrets.
                if kind.resource != kinds.CONFIGMAPS
            ),
            *map(SnapshotKind, _BESIDES),
            SnapshotKind(kinds.EVENTS, ListOptions(field_selector="reason=FailedScheduling")),
            SnapshotKind(kinds.CONFIGMAPS, ListOptions("kube-system"), "cluster-autoscaler-status"),
            # The stop switch of consolidation.
            SnapshotKind(kinds.CONFIGMAPS, ListOptions("karpool-system"), "karpool-consolidation"),
        )
    )
)


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    path: Path
    counts: dict[str, int] = field(default_factory=dict)  # resource -> objects
    skipped: list[SkippedKind] = field(default_factory=list)

    @property
    def objects(self) -> int:
        return sum(self.counts.values())


SnapshotProgress = Callable[[str, int], None]  # resource, objects read so far


async def take_snapshot(
    client: Client,
    path: Path,
    *,
    context: str = "",
    saved: Sequence[SnapshotKind] = SAVED_KINDS,
    replace_any: bool = False,
    progress: SnapshotProgress | None = None,
) -> SnapshotSummary:
    """Write a snapshot of the cluster.

    Raises SnapshotError when the file cannot be written, and KubeError when the cluster cannot be read. An
    existing file that is not a snapshot is kept, unless `replace_any`.
    """
    if not replace_any and not _may_be_replaced(path):
        raise SnapshotError(f"{path}: exists and is not a snapshot; choose another path, or add --force")
    summary = SnapshotSummary(path)
    with _written(path) as writer:
        header = SnapshotHeader(
            format=FORMAT,
            version=VERSION,
            taken_at=rfc3339(client.clock.now()),
            server_version=await client.server_version(),
            cluster=client.name,
            context=context,
        )
        writer.add([msgspec.to_builtins(header)])
        last_error: KubeError | None = None
        for kind in saved:
            try:
                count = await _copy(client, kind, writer, progress)
            except (Denied, NotFound, StatusError) as error:
                last_error = error
                summary.skipped.append(SkippedKind(str(kind), _why(error)))
                continue
            resource = str(kind.resource)
            summary.counts[resource] = summary.counts.get(resource, 0) + count
        if not summary.counts and last_error is not None:
            raise last_error
        footer = SnapshotFooter(
            end=True, objects=summary.objects, counts=summary.counts, skipped=summary.skipped
        )
        writer.add([msgspec.to_builtins(footer)])
    return summary


async def _copy(
    client: Client, kind: SnapshotKind, writer: "_Writer", progress: SnapshotProgress | None
) -> int:
    if kind.name:
        obj = await client.get(kind.resource, kind.name, namespace=kind.selection.namespace)
        writer.add([_line(kind.resource, obj)])
        return 1
    for attempt in range(1, EXPIRED_LIST_TRIES + 1):
        size = PAGE_SIZE if attempt < EXPIRED_LIST_TRIES else 0
        mark = writer.mark()
        count = 0
        try:
            async for page in client.pages(kind.resource, kind.selection, page_size=size):
                writer.add(_line(kind.resource, obj) for obj in page.items)
                count += len(page.items)
                if progress is not None:
                    progress(str(kind.resource), count)
            return count
        except StatusError as error:
            # An incomplete kind is worse than a missing one: it would look like a smaller cluster.
            writer.back_to(mark)
            if not isinstance(error, Gone) or attempt == EXPIRED_LIST_TRIES:
                raise
    raise AssertionError("unreachable")


def _line(resource: ApiResource, obj: Object) -> Object:
    # Items of a list have neither field; a file with many kinds needs both.
    return {"apiVersion": resource.api_version, "kind": resource.kind, **redact(obj)}


def _why(error: StatusError) -> str:
    if isinstance(error, NotFound):
        return ABSENT
    if isinstance(error, Denied):
        return f"forbidden: {error.message or error}"
    return str(error)


class _Writer:
    """Writes compressed lines; every call is a gzip member of its own, so that the file can be truncated."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, lines: Iterable[Object]) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if data:
            self._file.write(gzip.compress(data, compresslevel=5, mtime=0))

    def mark(self) -> int:
        return self._file.tell()

    def back_to(self, mark: int) -> None:
        self._file.seek(mark)
        self._file.truncate()


def _may_be_replaced(path: Path) -> bool:
    """Return whether the file is missing, empty or a snapshot; other files are not overwritten."""
    if not path.is_file():
        return True
    try:
        return not path.stat().st_size or ObjectFile(path).header is not None
    except (OSError, SnapshotError):
        return False


@contextmanager
def _written(path: Path) -> Iterator[_Writer]:
    try:
        with replaced_file(path) as file:
            yield _Writer(file)
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> SnapshotError:
    return SnapshotError(f"{path}: {error.strerror}; choose another path with -o")
