"""Reads controllers without an informer from the API server, on first use."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from karpool.cluster.kinds import OwnedObject
from karpool.cluster.pods.owner_store import CHAIN_MAX, OwnerStore
from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError, NotFound
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import ObjectMeta, OwnerReference

_API_VERSION = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-z0-9]+")


class ResourceDiscovery:
    """Maps an apiVersion and a kind to the resource, by discovery; cached."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], ApiResource] = {}

    async def find(self, api_version: str, kind: str) -> ApiResource:
        """Raises NotFound if the cluster has no such kind."""
        if (api_version, kind) not in self._known:
            await self._read(api_version)
        resource = self._known.get((api_version, kind))
        if resource is None:
            raise NotFound(f"kind {kind}", 404, reason="NotFound", message=f"{api_version} has no such kind")
        return resource

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
    """Looks up controllers that have no informer."""

    def __init__(self, client: Client, kinds: ResourceDiscovery, owners: OwnerStore) -> None:
        self._client, self._kinds, self._owners = client, kinds, owners

    async def leads_to(
        self, reference: OwnerReference | None, namespace: str, wanted: Callable[[OwnerReference], bool]
    ) -> bool:
        """Whether a chain of owners from here includes a wanted one."""
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
            owner = await self._client.get(resource, reference.name, namespace=where, into=OwnedObject)
        except NotFound:
            owner = OwnedObject()
        except (KubeError, ValueError):
            return  # unknown this time; not cached as having no owner
        same = owner.metadata.uid == reference.uid
        self._owners.put(owner.metadata if same else ObjectMeta(uid=reference.uid))
