"""A typed client of the Kubernetes API.

`await client.get(PODS, "web", namespace="default", into=Pod)` returns a `Pod`; without `into` it returns the
whole object as a dict. Structs hold only some of the fields, so they are never sent back: writes take dicts
or patches.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from karpool.kube.api.decoding import Object
from karpool.kube.api.reader import EXPIRED_LIST_TRIES, PAGE_SIZE, ApiReader
from karpool.kube.errors import Rejected, StatusError
from karpool.kube.transport.rest import RetryPolicy
from karpool.model.kubernetes.api_resources import PODS, ApiResource

__all__ = ["EXPIRED_LIST_TRIES", "PAGE_SIZE", "Client", "PatchType", "Propagation"]

PatchType = Literal["json", "merge", "strategic", "apply"]
_PATCH_MEDIA_TYPES: dict[PatchType, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
Propagation = Literal["Background", "Foreground", "Orphan"]
Body = Mapping[str, Any]


class Client(ApiReader):
    """Reads and writes the objects of one API server."""

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def without_limit(self) -> "Client":
        """Return a copy without rate limit, for leases, which must not queue behind bulk work."""
        other = copy.copy(self)
        other.rest = self.rest.without_limit()
        return other

    def fenced(self, check: Callable[[], None]) -> "Client":
        """Return a copy that calls `check` before each write attempt.

        `check` raises if writing is not allowed.
        """
        other = copy.copy(self)
        other.rest = self.rest.fenced(check)
        return other

    async def create(self, resource: ApiResource, obj: Body, *, namespace: str | None = None) -> Object:
        """Create an object.

        If the answer is lost, the request is not repeated: the caller reads and decides.
        """
        path = resource.collection(namespace if namespace is not None else _namespace_of(resource, obj))
        return await self._write("POST", path, _typed(resource, obj), self._options())

    async def update(
        self,
        resource: ApiResource,
        obj: Body,
        *,
        namespace: str | None = None,
        subresource: str = "",
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> Object:
        """Replace a whole object. Repeating it is safe, because the object carries its resourceVersion."""
        name = str(obj["metadata"]["name"])
        path = resource.item(
            name, namespace if namespace is not None else _namespace_of(resource, obj), subresource
        )
        repeatable = bool(obj["metadata"].get("resourceVersion"))
        return await self._write(
            "PUT",
            path,
            _typed(resource, obj),
            self._options(),
            repeatable=repeatable,
            retry=retry,
            timeout=timeout,
        )

    async def patch(
        self,
        resource: ApiResource,
        name: str,
        patch: Body | Sequence[Body],
        *,
        namespace: str | None = None,
        how: PatchType = "merge",
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> Object:
        """Patch an object: `patch` is a list of operations for `json`, otherwise (part of) the object.

        A JSON patch may append, so it is the only type that is not repeated after a lost answer.
        """
        query = self._options(field_manager)
        if how == "apply" and force:
            query.append(("force", "true"))
        path = resource.item(name, namespace, subresource)
        return await self._write(
            "PATCH", path, patch, query, content_type=_PATCH_MEDIA_TYPES[how], repeatable=how != "json"
        )

    async def apply(
        self,
        resource: ApiResource,
        obj: Body,
        *,
        namespace: str | None = None,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> Object:
        """Server-side apply of the fields in `obj`, which become `field_manager`'s."""
        return await self.patch(
            resource,
            str(obj["metadata"]["name"]),
            _typed(resource, obj),
            namespace=namespace if namespace is not None else _namespace_of(resource, obj),
            how="apply",
            subresource=subresource,
            field_manager=field_manager,
            force=force,
        )

    async def delete(
        self,
        resource: ApiResource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object.

        A lost answer is retried only with `uid`, which excludes a new object of the same name.
        """
        options = _delete_options(uid, resource_version, grace_seconds)
        if propagation:
            options["propagationPolicy"] = propagation
        path = resource.item(name, namespace)
        body = msgspec.json.encode(options)
        await self.rest.call("DELETE", path, body=body, repeatable=bool(uid))

    async def evict(
        self, name: str, *, namespace: str, uid: str = "", grace_seconds: int | None = None
    ) -> None:
        """Evict a pod, within its disruption budgets.

        Raises Throttled at once when a budget forbids it now (`has_cause("DisruptionBudget")`).
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, "", grace_seconds),
        }
        await self.rest.call(
            "POST",
            PODS.item(name, namespace, "eviction"),
            body=msgspec.json.encode(body),
            repeatable=bool(uid),
            final=lambda error: isinstance(error, StatusError) and error.has_cause("DisruptionBudget"),
        )

    async def bind(self, name: str, node: str, *, namespace: str, uid: str = "") -> None:
        metadata = {"name": name, "namespace": namespace, **({"uid": uid} if uid else {})}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write("POST", PODS.item(name, namespace, "binding"), body, self._options())

    async def scale(self, resource: ApiResource, name: str, replicas: int, *, namespace: str) -> Object:
        patch = {"spec": {"replicas": replicas}}
        return await self.patch(resource, name, patch, namespace=namespace, subresource="scale")

    def _options(self, field_manager: str = "") -> "_Query":
        return [("fieldManager", field_manager or self._field_manager)]

    async def _write(
        self,
        method: str,
        path: str,
        body: Any,
        query: "_Query",
        *,
        content_type: str = "application/json",
        repeatable: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> Object:
        answer = await self.rest.call(
            method,
            path,
            query=query,
            body=msgspec.json.encode(body),
            content_type=content_type,
            repeatable=repeatable,
            retry=retry,
            timeout=timeout,
        )
        return self._decode(method, path, answer.body, dict)


_Query = list[tuple[str, str]]


def _typed(resource: ApiResource, obj: Body) -> Body:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _namespace_of(resource: ApiResource, obj: Body) -> str | None:
    if not resource.namespaced:
        return None
    namespace = obj.get("metadata", {}).get("namespace")
    if not namespace:
        raise Rejected(str(resource), 400, message="metadata.namespace is missing")
    return str(namespace)


def _delete_options(uid: str, resource_version: str, grace_seconds: int | None) -> Object:
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    expected = {"uid": uid, "resourceVersion": resource_version}
    if preconditions := {key: value for key, value in expected.items() if value}:
        options["preconditions"] = preconditions
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return options
