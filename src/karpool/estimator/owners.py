"""Whose pods are these? Follow controllers from a pod upwards, to any kind of workload.

A chain is followed by references alone: a ReplicaSet's controller is known from its
metadata, whatever the Deployment above it looks like. Who owns what is learnt from
informers, or asked of the API server when first needed; it never changes for a uid.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError, NotFound
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, JOBS, REPLICASETS, STATEFULSETS, ApiResource
from karpool.model.kubernetes.meta import ObjectMeta, OwnerReference, WireObject

# Kinds between a pod and what people create, for an informer to tell of; others are asked for.
BETWEEN = (REPLICASETS, DEPLOYMENTS, STATEFULSETS, JOBS)
CHAIN_MAX = 8  # a custom resource of a custom resource is two; owners may also form a circle
_KNOWN_MAX = 200_000
_API_VERSION = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-z0-9]+")

Lookup = Callable[[str], OwnerReference | None]  # from a uid to the controller of that object


class OwnedObject(WireObject, frozen=True):
    """Any object, of which only the metadata is read."""


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    return next((reference for reference in meta.owner_references or () if reference.controller), None)


def group_of(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def is_of(reference: OwnerReference, api_version: str, kind: str, name: str) -> bool:
    """Versions of one group name the same object."""
    return (
        reference.name == name
        and reference.kind == kind
        and group_of(reference.api_version) == group_of(api_version)
    )


def chain(reference: OwnerReference | None, lookup: Lookup) -> Iterator[OwnerReference]:
    """The controller, its controller, and so on."""
    for _ in range(CHAIN_MAX):
        if reference is None:
            return
        yield reference
        reference = lookup(reference.uid)


class OwnerStore:
    """Controllers by the uid of what they control; an informer's sink for any number of kinds."""

    def __init__(self) -> None:
        self._known: dict[str, OwnerReference | None] = {}

    def get(self, uid: str) -> OwnerReference | None:
        return self._known.get(uid)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def put(self, meta: ObjectMeta) -> None:
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[meta.uid] = controller_of(meta)

    def apply(self, changes: Sequence[ObjectChange[OwnedObject]], /) -> None:
        for change in changes:
            if change.object is None:
                continue
            if change.type == "DELETED":
                self._known.pop(change.object.metadata.uid, None)
            elif change.object.metadata.owner_references:
                self.put(change.object.metadata)


class ResourceDiscovery:
    """From an apiVersion and a kind to the resource, by discovery; remembered."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], ApiResource] = {}

    async def find(self, api_version: str, kind: str) -> ApiResource:
        """Raises NotFound when the cluster has no such kind."""
        if (api_version, kind) not in self._known:
            await self._read(api_version)
        found = self._known.get((api_version, kind))
        if found is None:
            raise NotFound(f"kind {kind}", 404, reason="NotFound", message=f"{api_version} has no such kind")
        return found

    async def _read(self, api_version: str) -> None:
        group, slash, version = api_version.partition("/")
        if not slash:
            group, version = "", api_version
        if not _API_VERSION.fullmatch(api_version):
            raise NotFound(f"apiVersion {api_version!r}", 404, reason="NotFound", message="is no API version")
        document = await self._client.get_path(f"/apis/{group}/{version}" if group else f"/api/{version}")
        listed = document.get("resources")
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, Mapping) and "/" not in str(entry.get("name", "/")):
                kind, plural = str(entry.get("kind")), str(entry["name"])
                self._known[api_version, kind] = ApiResource(
                    group, version, plural, kind, bool(entry.get("namespaced"))
                )


class OwnerReader:
    """Looks up controllers that no informer tells of."""

    def __init__(self, client: Client, kinds: ResourceDiscovery, owners: OwnerStore) -> None:
        self._client, self._kinds, self._owners = client, kinds, owners

    async def leads_to(
        self, reference: OwnerReference | None, namespace: str, wanted: Callable[[OwnerReference], bool]
    ) -> bool:
        """Whether a chain that starts here passes an owner that is wanted."""
        for _ in range(CHAIN_MAX):
            if reference is None:
                return False
            if wanted(reference):
                return True
            if reference.uid not in self._owners:
                await self._read(reference, namespace)
            reference = self._owners.get(reference.uid)
        return False

    async def _read(self, reference: OwnerReference, namespace: str) -> None:
        try:
            resource = await self._kinds.find(reference.api_version, reference.kind)
            where: Any = namespace if resource.namespaced else None
            found = await self._client.get(resource, reference.name, namespace=where, into=OwnedObject)
        except NotFound:
            found = OwnedObject()
        except (KubeError, ValueError):
            return  # not known this time; it is not remembered as having no owner
        same = found.metadata.uid == reference.uid
        self._owners.put(found.metadata if same else ObjectMeta(uid=reference.uid))
