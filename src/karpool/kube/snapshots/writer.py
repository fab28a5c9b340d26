"""Write what a cluster looks like into one file, for planning elsewhere.

The file is gzip'd JSON lines: a header, one line per object, and a footer that
proves it complete. It appears under its name only when it is. Secrets are never
read, values that may be secret are taken out (`redaction`), and a kind that the
server lacks or forbids is noted, not fatal. Reading is `reader`.
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
    """All objects of a kind that are selected, or one by name."""

    resource: ApiResource
    selection: ListOptions = ALL
    name: str = ""

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}" if self.name else str(self.resource)


# What commands look at besides the kinds of a `Cluster`: Karmada's, for one.
# Works are left out on purpose: they embed whole manifests, Secrets included.
_BESIDES = (
    kinds.KWOKNODECLASSES,
    kinds.CLUSTERS,
    kinds.RESOURCEBINDINGS,
    kinds.CLUSTERRESOURCEBINDINGS,
    kinds.PROPAGATIONPOLICIES,
    kinds.CLUSTERPROPAGATIONPOLICIES,
)
# Of events, only those about capacity; of all other kinds everything: pods that have ended say what failed.
SAVED_KINDS: tuple[SnapshotKind, ...] = tuple(
    dict.fromkeys(  # each once: what a cluster is fed with may be an owner of pods as well
        (
            *(
                SnapshotKind(kind.resource, kind.selection if kind.resource == kinds.EVENTS else ALL)
                for kind in ALL_KINDS
                if kind.resource != kinds.CONFIGMAPS  # those are read by name: others may hold anything
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


SnapshotProgress = Callable[[str, int], None]  # of a kind, how many objects were read until now


async def take_snapshot(
    client: Client,
    path: Path,
    *,
    context: str = "",
    saved: Sequence[SnapshotKind] = SAVED_KINDS,
    replace_any: bool = False,
    progress: SnapshotProgress | None = None,
) -> SnapshotSummary:
    """Raises SnapshotError when the file cannot be written, and KubeError when the cluster cannot be read.

    A file that is no snapshot stays as it is, unless `replace_any`.
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
            # Half a kind is worse than none: it would look like a smaller cluster.
            writer.back_to(mark)
            if not isinstance(error, Gone) or attempt == EXPIRED_LIST_TRIES:
                raise
    raise AssertionError("unreachable")


def _line(resource: ApiResource, obj: Object) -> Object:
    # Items of a list carry neither; in a file of many kinds each needs both.
    return {"apiVersion": resource.api_version, "kind": resource.kind, **redact(obj)}


def _why(error: StatusError) -> str:
    if isinstance(error, NotFound):
        return ABSENT
    if isinstance(error, Denied):
        return f"forbidden: {error.message or error}"
    return str(error)


class _Writer:
    """Compressed lines; every call is a gzip member of its own, so that the file can be cut back."""

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
    """One that is not there, holds nothing, or that a snapshot wrote; others are refused below."""
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
