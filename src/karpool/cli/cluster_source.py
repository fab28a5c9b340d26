"""Read a cluster for one command: live through its API, or from a file.

Either way it fills the same `Cluster`, so that a command cannot tell. Others that want to be told of further
kinds are told of every object once, as an informer would.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from karpool.cli.options.cluster import ClusterOptions
from karpool.cli.output.progress_line import ProgressLine, working
from karpool.cli.output.text import note, pluralize
from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import (
    ADDED,
    UNREADABLE,
    WHOLE_KIND,
    ObjectChange,
    change_of_raw,
    flattened,
    identity,
    is_selected,
)
from karpool.cluster.cluster import Cluster
from karpool.cluster.snapshot import Snapshot
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import ObjectPage, Report, SkippedObject, identity_of, log_bad_objects
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.errors import Denied, KubeError, MissingRights, NotFound
from karpool.kube.snapshots.reader import ABSENT, ObjectFile
from karpool.kube.transport.http import HttpTransport
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watched import WatchedKind
from karpool.model.kubernetes.api_resources import ApiResource, ListOptions, ObjectKey
from karpool.model.kubernetes.times import parse_rfc3339

# An answer without these would be wrong, not less exact: room that pods hold would look free, pods that may
# not be disturbed would move. Everything else is left out where it is closed, and that is said.
_REQUIRED = Aspect.ROOM | Aspect.NAMESPACES | Aspect.DISRUPTION
_Kind = tuple[ApiResource, type[Any], ListOptions]


@dataclass(frozen=True)
class LoadedCluster:
    """What a cluster is called, and what could not be looked at besides what the `Cluster` itself says."""

    name: str
    problems: Sequence[str] = ()
    lacking: Sequence[str] = ()  # kinds that a file says nothing about
    closed: frozenset[str] = frozenset()  # kinds that may not be looked at
    as_of: float | None = None  # when a file was taken; None: now, or not known


@asynccontextmanager
async def connect(options: ClusterOptions, report: Report = log_bad_objects) -> AsyncIterator[Client]:
    config = kubeconfig.load(options.kubeconfig, context=options.context or "")
    timeout = options.timeout_seconds
    client = Client(HttpTransport(config), name=config.name, timeout=timeout, report=report)
    async with client:
        yield client


def own_namespace(options: ClusterOptions) -> str:
    """The namespace that is meant when nobody names one: that of the context; of a file, `default`."""
    if options.snapshot is not None:
        return "default"
    return kubeconfig.load(options.kubeconfig, context=options.context or "").namespace


def note_skipped(bad: Sequence[SkippedObject]) -> None:
    """For people: what could not be understood, and that the rest was."""
    for skipped_object in bad:
        note(f"skipped: {skipped_object}")


async def load_cluster(
    options: ClusterOptions, cluster: Cluster, watches: Sequence[WatchedKind[Any]] = ()
) -> LoadedCluster:
    """Fill a `Cluster` from a file, or with one list of each of its kinds; and tell `watches`."""
    if options.snapshot is not None:
        bad: list[SkippedObject] = []
        file = ObjectFile(options.snapshot, report=bad.extend)
        objects = list(file.objects())
        as_of = parse_rfc3339(file.header.taken_at) if file.header else None
        closed = _close_skipped(file, cluster)
        cluster.load(objects, RealClock().now() if as_of is None else as_of)
        bad += [*_tell_of_objects(watches, objects), *closed]
        problems = [str(problem) for problem in bad]
        name = (file.header.cluster if file.header else "") or options.snapshot.name
        cluster.market.contracted.see_name(name)
        return LoadedCluster(name, problems, _lacking(file, objects, cluster), _kinds_of(closed), as_of)
    async with connect(options, lambda skipped: None) as client:
        cluster.market.contracted.see_name(client.name)
        skipped = await list_cluster(client, cluster, watches)
        return LoadedCluster(client.name, [str(problem) for problem in skipped], closed=_kinds_of(skipped))


def _kinds_of(skipped: Iterable[SkippedObject]) -> frozenset[str]:
    return frozenset(problem.resource for problem in skipped)


def unreadable_lines(snapshot: Snapshot) -> Iterator[str]:
    """For people: how pods that cannot be read were counted. `Snapshot.problems` names them."""
    if unreadable := sum(snapshot.blocked.values()):
        yield f"{pluralize(unreadable, 'pod')} invalid: nothing counts as free on their nodes"
    if not snapshot.complete:
        yield "the nodes of some pods are unknown: less may be free than shown"


async def list_cluster(
    client: Client, cluster: Cluster, watches: Sequence[WatchedKind[Any]] = ()
) -> list[SkippedObject]:
    """One list of each kind; returns what may not be looked at, or could not be understood by `watches`.
    Raises MissingRights with every kind that the answer needs and that may not be listed."""
    told: dict[_Kind, list[WatchedKind[Any]]] = {}
    refining = cluster.aspects & ~_REQUIRED
    for watched in (
        *cluster_watches(cluster, client.clock, refining=refining),
        *(replace(watched, refines=True) for watched in watches),
    ):
        told.setdefault((watched.resource, watched.into, watched.selection), []).append(watched)
    closed: list[SkippedObject] = []
    denied: dict[str, Denied] = {}
    with working(f"reading {client.name}", len(told)) as line:
        for kind, kinds in told.items():
            try:
                closed += await _list_kind(client, kind, kinds, line)
            except Denied as error:
                denied[str(kind[0])] = error
            line.ended()
    if denied:
        raise MissingRights(client.name, denied)
    return closed


async def _list_kind(
    client: Client, kind: _Kind, watches: Sequence[WatchedKind[Any]], line: ProgressLine
) -> list[SkippedObject]:
    """Raises Denied or NotFound where the answer needs the kind."""
    resource, struct, selection = kind
    line.begins(f"reading {client.name}: {resource.plural}")

    def progress(count: int) -> None:
        line.begins(f"reading {client.name}: {count:,} {resource.plural}")

    try:
        page: ObjectPage[Any] = await client.list(resource, selection, into=struct, progress=progress)
    except NotFound as error:
        if not all(watched.optional or watched.refines for watched in watches):
            raise
        return [] if all(watched.optional for watched in watches) else [_not_looked_at(resource, error)]
    except Denied as error:
        if not all(watched.refines for watched in watches):
            raise
        if all(watched.optional for watched in watches) and not await _is_served(client, resource):
            return []
        skipped = _not_looked_at(resource, error)
        _close(watches, skipped.reason)
        return [skipped]
    return _tell(watches, [*_readable(page), *_unreadable(page)])


def _not_looked_at(resource: ApiResource, error: Denied | NotFound) -> SkippedObject:
    return SkippedObject(str(resource), "of all kinds", f"not read: {error}")


async def _is_served(client: Client, resource: ApiResource) -> bool:
    """A server says "forbidden" of kinds that it does not have, too. True where it does not tell."""
    try:
        document = await client.get_path(resource.root)
    except NotFound:
        return False
    except KubeError:
        return True
    kinds = document.get("resources")
    if not isinstance(kinds, list):
        return True
    return any(isinstance(kind, Mapping) and kind.get("name") == resource.plural for kind in kinds)


def _close_skipped(file: ObjectFile, cluster: Cluster) -> list[SkippedObject]:
    """Who took the file may not have been allowed to look at everything."""
    skipped = {} if file.footer is None else {kind.resource: kind.reason for kind in file.footer.skipped}
    closed = []
    for watched in cluster_watches(cluster, RealClock()):
        resource = str(watched.resource)
        reason = skipped.get(resource, ABSENT)
        if reason != ABSENT:
            _close([watched], reason)
            closed.append(SkippedObject(resource, "of all kinds", f"not read: {reason}"))
    return closed


def _close(watches: Sequence[WatchedKind[Any]], reason: str) -> None:
    for watched in watches:
        if getattr(watched.sink, "takes_whole_kind", False):
            watched.sink.apply([ObjectChange(UNREADABLE, WHOLE_KIND, None, reason=reason)])


def _readable(page: ObjectPage[Any]) -> Iterable[ObjectChange[Any]]:
    return (ObjectChange(ADDED, identity_of(obj).key, obj) for obj in page.items)


def _unreadable(page: ObjectPage[Any]) -> Iterable[ObjectChange[Any]]:
    for skipped in page.bad:
        key = skipped.identity.key if skipped.identity else ObjectKey("", skipped.name)
        yield ObjectChange(UNREADABLE, key, None, raw=skipped.raw, reason=skipped.reason)


def _tell(watches: Sequence[WatchedKind[Any]], changes: Sequence[ObjectChange[Any]]) -> list[SkippedObject]:
    """Returns those that cannot be read, unless somebody takes care of them."""
    readable = [change for change in changes if change.type != UNREADABLE]
    unreadable = [change for change in changes if change.type == UNREADABLE]
    cared_for = False
    for watched in watches:
        takes_unreadable = getattr(watched.sink, "takes_unreadable", False)
        cared_for |= takes_unreadable
        watched.sink.apply(changes if takes_unreadable else readable)
    if cared_for:
        return []
    kind = watches[0].resource.kind
    return [SkippedObject(kind, str(change.key), change.reason) for change in unreadable]


def _tell_of_objects(
    watches: Sequence[WatchedKind[Any]], objects: Sequence[Mapping[str, Any]]
) -> list[SkippedObject]:
    """Returns those that could not be understood."""
    bad: list[SkippedObject] = []
    identified = [(raw, identity(raw)[1]) for raw in objects]
    for watched in watches:
        resource = watched.resource
        bad += _tell(
            [watched],
            [
                change_of_raw(raw, key, watched.into)
                for raw, key in identified
                if (raw.get("kind"), raw.get("apiVersion")) == (resource.kind, resource.api_version)
                and is_selected(raw, key, watched.selection)
            ],
        )
    return bad


def _lacking(file: ObjectFile, objects: Sequence[Mapping[str, Any]], cluster: Cluster) -> list[str]:
    """Kinds that the cluster may have and the file does not tell of. Manifests never say that there are
    none of a kind; a snapshot does."""
    if file.footer is None:
        names = {identity(raw)[0] for raw in flattened(objects)}
        resources = [kind.resource for kind in cluster.kinds if kind.resource.kind not in names]
    else:
        absent = {skipped.resource for skipped in file.footer.skipped if skipped.reason == ABSENT}
        saved = {*file.footer.counts, *absent}
        resources = [kind.resource for kind in cluster.kinds if str(kind.resource) not in saved]
    return list(dict.fromkeys(map(str, resources)))
