"""Writes that apply only to the same object, or only to the same version of it.

Objects are dicts or structs. With a version, a write fails if another client wrote first; with a uid, it does
not affect a new object of the same name.
"""

from collections.abc import Mapping
from typing import Any

from karpool.kube.api.client import Client, PatchType, Propagation
from karpool.kube.errors import NotFound
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import ObjectMeta, WireObject

Object = dict[str, Any]
Written = Mapping[str, Any] | WireObject | ObjectMeta


class _Identity:
    """The metadata fields that writes name."""

    __slots__ = ("name", "namespace", "uid", "version")

    def __init__(self, obj: Written) -> None:
        if isinstance(obj, Mapping):
            meta = obj["metadata"]
            self.name, self.namespace = meta["name"], meta.get("namespace")
            self.uid, self.version = meta.get("uid", ""), meta.get("resourceVersion", "")
        else:
            own = obj if isinstance(obj, ObjectMeta) else obj.metadata
            self.name, self.namespace = own.name, own.namespace or None
            self.uid, self.version = own.uid, own.resource_version


async def patch_version(
    client: Client, resource: ApiResource, obj: Written, patch: Object, *, status: bool = False
) -> Object:
    """Patch exactly this version. Raises Conflict if the object has changed (decide again), and NotFound."""
    identity = _Identity(obj)
    body = _under(patch, resourceVersion=identity.version)
    part = "status" if status else ""
    return await client.patch(resource, identity.name, body, namespace=identity.namespace, subresource=part)


async def patch_object(
    client: Client,
    resource: ApiResource,
    obj: Written,
    patch: Object,
    *,
    status: bool = False,
    how: PatchType = "merge",
) -> Object | None:
    """Patch exactly this object; return None if it is gone."""
    identity = _Identity(obj)
    body = _under(patch, uid=identity.uid)
    part, space = "status" if status else "", identity.namespace
    try:
        return await client.patch(resource, identity.name, body, namespace=space, subresource=part, how=how)
    except NotFound:
        return None


def _under(patch: Object, **precondition: str) -> Object:
    return {**patch, "metadata": {**patch.get("metadata", {}), **precondition}}


async def delete_object(
    client: Client,
    resource: ApiResource,
    obj: Written,
    *,
    grace_seconds: int | None = None,
    propagation: Propagation | None = None,
) -> bool:
    """Delete exactly this object; return False if it was already gone."""
    identity = _Identity(obj)
    try:
        await client.delete(
            resource,
            identity.name,
            namespace=identity.namespace,
            uid=identity.uid,
            grace_seconds=grace_seconds,
            propagation=propagation,
        )
    except NotFound:
        return False
    return True


def owner_reference(resource: ApiResource, obj: Written) -> Object:
    """Return the owner reference that a controller sets on objects it creates."""
    identity = _Identity(obj)
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": identity.name,
        "uid": identity.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
