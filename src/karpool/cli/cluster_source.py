"""Read a cluster for one command: live through its API, or from a file.

Either way the result is the same `Cluster`, so that a command cannot tell. Plugins
that watch further kinds are told of every object once, as an informer would.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from karpool.cli.options.cluster import ClusterOptions
from karpool.cli.output.text import note
from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import UNREADABLE, ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.kinds import Namespace, Unreadable
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Report, SkippedObject, identity_of, log_bad_objects
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.errors import Denied, NotFound
from karpool.kube.snapshots.reader import ObjectFile
from karpool.kube.transport.http import HttpTransport
from karpool.kube.watched import WatchedKind
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import (
    ALL,
    NAMESPACES,
    NODES,
    PODS,
    PVCS,
    PVS,
    STORAGECLASSES,
    ApiResource,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass

_Listed = tuple[tuple[ApiResource, type[Any]], ...]
Pages = dict[tuple[ApiResource, type[Any]], list[Any]]
_ALWAYS: _Listed = ((NAMESPACES, Namespace), (NODES, Node), (PODS, Pod))
_VOLUMES: _Listed = ((PVCS, PersistentVolumeClaim), (PVS, PersistentVolume), (STORAGECLASSES, StorageClass))


@dataclass(frozen=True)
class LoadedCluster:
    state: ClusterRoom
    undecodable: Sequence[SkippedObject] = ()
    as_of: float | None = None  # when a file was taken; None: now, or not known

    @property
    def problems(self) -> Sequence[str]:
        """Every object that was left out, and why."""
        return [str(problem) for problem in (*self.undecodable, *self.state.problems)]


@asynccontextmanager
async def connect(options: ClusterOptions, report: Report = log_bad_objects) -> AsyncIterator[Client]:
    config = kubeconfig.load(options.kubeconfig, context=options.context or "")
    timeout = options.timeout_seconds
    client = Client(HttpTransport(config), name=config.name, timeout=timeout, report=report)
    async with client:
        yield client


def note_skipped(bad: Sequence[SkippedObject]) -> None:
    """For people: what could not be understood, and that the rest was."""
    for skipped_object in bad:
        note(f"skipped: {skipped_object}")


def cluster_name(options: ClusterOptions) -> str:
    """What people call it: the file, or the context."""
    if options.snapshot is not None:
        return options.snapshot.name
    return kubeconfig.load(options.kubeconfig, context=options.context or "").name


async def load_cluster(options: ClusterOptions, watches: Sequence[WatchedKind[Any]] = ()) -> LoadedCluster:
    """The state, and whatever `watches` want to be told of. Kinds that are optional may be missing."""
    bad: list[SkippedObject] = []
    if options.snapshot is not None:
        file = ObjectFile(options.snapshot, report=bad.extend)
        objects = list(file.objects())
        state = ClusterRoom()
        state.load(objects)
        bad += tell_of_objects(watches, objects)
        return LoadedCluster(state, bad, parse_rfc3339(file.header.taken_at) if file.header else None)
    async with connect(options, bad.extend) as client:
        pages: Pages = {}
        state = await read_cluster(client, pages)
        await tell_of_cluster(watches, client, pages)
    return LoadedCluster(state, bad)


@dataclass(frozen=True)
class LoadedPicture:
    """What could not be looked at, or understood, besides what the picture itself says."""

    problems: Sequence[str] = ()
    as_of: float | None = None  # when a file was taken; None: now, or not known


async def load_picture(
    options: ClusterOptions, cluster: Cluster, watches: Sequence[WatchedKind[Any]] = ()
) -> LoadedPicture:
    """Fill a `Cluster` from a file, or with one list of each of its kinds; and tell `watches`."""
    bad: list[SkippedObject] = []
    if options.snapshot is not None:
        file = ObjectFile(options.snapshot, report=bad.extend)
        objects = list(file.objects())
        as_of = parse_rfc3339(file.header.taken_at) if file.header else None
        cluster.load(objects, RealClock().now() if as_of is None else as_of)
        bad += tell_of_objects(watches, objects)
        return LoadedPicture([str(problem) for problem in bad], as_of)
    async with connect(options, lambda skipped: None) as client:
        bad += await read_picture(client, cluster)
        await tell_of_cluster(watches, client, {})
    return LoadedPicture([str(problem) for problem in bad])


async def read_picture(client: Client, cluster: Cluster) -> list[SkippedObject]:
    """One list of each kind; returns what may not be looked at. Budgets that may not be read are refused:
    a plan without them would move pods that they protect."""
    closed: list[SkippedObject] = []
    for kind in cluster.kinds:
        try:
            page = await client.list(kind.resource, kind.selection, into=kind.struct)
        except NotFound:
            if not kind.may_be_absent:
                raise
            continue
        except Denied as error:
            if kind.unreadable is Unreadable.CLOSES_NAMESPACE or kind.aspects & Aspect.ROOM:
                raise
            closed.append(SkippedObject(str(kind), "of all kinds", f"not looked at: {error}"))
            continue
        changes = [ObjectChange("ADDED", identity_of(found).key, found) for found in page.items]
        changes += [
            ObjectChange(
                UNREADABLE,
                skipped.identity.key if skipped.identity else ObjectKey("", skipped.name),
                None,
                raw=skipped.raw,
                reason=skipped.reason,
            )
            for skipped in page.bad
        ]
        cluster.apply(kind, changes, client.clock.now())
    return closed


def tell_of_objects(
    watches: Sequence[WatchedKind[Any]], objects: Sequence[dict[str, Any]]
) -> list[SkippedObject]:
    """Returns those that could not be understood."""
    bad: list[SkippedObject] = []
    for watched in watches:
        changes: list[ObjectChange[Any]] = []
        for raw in objects:
            if not _is_of(raw, watched.resource) or not _is_selected(raw, watched.selection):
                continue
            try:
                found = raw if watched.into is dict else decode(raw, watched.into)
            except Invalid as error:
                bad.append(SkippedObject(watched.resource.kind, _key(raw).name, str(error)))
                continue
            changes.append(ObjectChange("ADDED", _key(raw), found))
        watched.sink.apply(changes)
    return bad


async def tell_of_cluster(watches: Sequence[WatchedKind[Any]], client: Client, pages: Pages) -> None:
    """`pages` are kinds that were listed before. What may not be listed is reported and left out."""
    for watched in watches:
        kind = watched.resource, watched.into
        found = pages.get(kind)
        if found is None:
            found = await _listed(watched, client)
            if watched.selection == ALL:
                pages[kind] = found
        watched.sink.apply([ObjectChange("ADDED", identity_of(obj)[0], obj) for obj in found])


async def _listed(watched: WatchedKind[Any], client: Client) -> list[Any]:
    try:
        return (await client.list(watched.resource, watched.selection, into=watched.into)).items
    except (Denied, NotFound) as error:
        if not watched.optional:
            client.report([SkippedObject(watched.resource.plural, "of all kinds", f"not looked at: {error}")])
        return []


def _is_of(raw: dict[str, Any], resource: ApiResource) -> bool:
    return raw.get("kind") == resource.kind and raw.get("apiVersion") == resource.api_version


def _is_selected(raw: dict[str, Any], selection: ListOptions) -> bool:
    """The selectors that plugins use: a namespace, a name, and the reason of an event."""
    key = _key(raw)
    if selection.namespace is not None and key.namespace != selection.namespace:
        return False
    fields = {"metadata.name": key.name, "reason": raw.get("reason")}
    for part in filter(None, selection.field_selector.split(",")):
        name, _, value = part.partition("=")
        if name in fields and fields[name] != value:
            return False
    return True


def _key(raw: dict[str, Any]) -> ObjectKey:
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return ObjectKey(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))


async def read_cluster(client: Client, pages: Pages | None = None) -> ClusterRoom:
    """Everything that a cluster state reads. Who may not list volumes gets pods that go where they like.

    What was listed is left in `pages`.
    """
    listed = [(resource.kind, await client.list(resource, into=into)) for resource, into in _ALWAYS]
    try:
        volumes = [(resource.kind, await client.list(resource, into=into)) for resource, into in _VOLUMES]
    except Denied as error:
        client.report([SkippedObject("volumes", "of all pods", f"not looked at: {error}")])
        volumes = []
    if pages is not None:
        pages |= {kind: page.items for kind, (_, page) in zip(_ALWAYS, listed, strict=True)}
    state = ClusterRoom(volumes=bool(volumes))
    for kind, page in (*listed, *volumes):
        state.replace(kind, page.items)
    return state
