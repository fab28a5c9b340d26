"""Loads objects of any kind into a cluster through its API.

`load_objects` works with any server: it finds kinds by discovery and writes the status through the status
subresource, because a create drops it. Loading twice changes nothing. `restore_objects` puts whole objects
into an embedded server before its first use, as a backup is restored: no admission, no events.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from karpool.kube.api.client import Client
from karpool.kube.errors import NotFound, Rejected
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.apiserver.serve.server import ApiServer

Object = dict[str, Any]
MANAGER = "karpool-loader"


async def load_objects(client: Client, objects: Iterable[Object]) -> int:
    """Write the objects; return how many were written. Raises KubeError naming the object."""
    kinds: dict[tuple[str, str], tuple[ApiResource, bool]] = {}
    count = 0
    for obj in objects:
        _check(obj)
        kind = (str(obj["apiVersion"]), str(obj["kind"]))
        if kind not in kinds:
            kinds[kind] = await _find(client, *kind)
        resource, has_status = kinds[kind]
        status = obj.get("status")
        body = {key: value for key, value in obj.items() if key != "status"}
        namespace = obj["metadata"].get("namespace", "default") if resource.namespaced else None
        await client.apply(resource, body, namespace=namespace, field_manager=MANAGER, force=True)
        if status and has_status:
            name = obj["metadata"]["name"]
            await client.patch(
                resource,
                name,
                {"status": status},
                namespace=namespace,
                subresource="status",
                field_manager=MANAGER,
            )
        count += 1
    return count


def _check(obj: Object) -> None:
    """Check the fields that a request needs; the server validates the rest."""
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    fields = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata.name": name}
    for path, value in fields.items():
        if not isinstance(value, str) or not value:
            what = f"object {fields['kind']} {name}"
            raise Rejected(what, 422, message=str(Invalid(path, value, "must be given, as text")))


async def _find(client: Client, api_version: str, kind: str) -> tuple[ApiResource, bool]:
    group, _, version = api_version.rpartition("/")
    root = f"/apis/{api_version}" if group else f"/api/{api_version}"
    try:
        listed = (await client.get_path(root)).get("resources", [])
    except NotFound:
        message = str(Invalid("apiVersion", api_version, "is not served here; check group and version"))
        raise Rejected(f"kind {kind}", 404, message=message) from None
    names = {entry["name"] for entry in listed}
    for entry in listed:
        if entry["kind"] == kind and "/" not in entry["name"]:
            resource = ApiResource(group, version, entry["name"], kind, bool(entry["namespaced"]))
            return resource, f"{entry['name']}/status" in names
    message = str(Invalid("kind", kind, f"is not served in {api_version}; check its spelling"))
    raise Rejected(root, 404, message=message)


def restore_objects(server: ApiServer, objects: Iterable[Object]) -> int:
    """Restore the objects; return their number. Raises Invalid for a kind that the server does not have."""
    cluster, count = server.cluster, 0
    now = rfc3339(cluster.clock.now())
    for obj in objects:
        group = str(obj["apiVersion"]).rpartition("/")[0]
        resource = cluster.types.of_kind(group, str(obj["kind"]))
        if resource is None:
            raise Invalid("kind", f"{obj['apiVersion']} {obj['kind']}", "the server does not have this kind")
        uid = obj["metadata"].get("uid") or cluster.ids()
        metadata = {"creationTimestamp": now, "generation": 1, **obj["metadata"], "uid": uid}
        cluster.store.version += 1
        metadata["resourceVersion"] = str(cluster.store.version)
        whole = {**obj, "metadata": metadata}
        cluster.store.restore(resource.group_resource, whole, msgspec.json.encode(whole))
        count += 1
    cluster.store.restored(cluster.store.version)
    return count
