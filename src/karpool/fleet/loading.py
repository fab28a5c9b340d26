"""Put objects into a cluster through its API, whatever their kinds.

`load_objects` works with any server: kinds are looked up in its discovery, and status is
written where the object has one, through the status subresource, since a create drops
it. Loading twice changes nothing. `restore_objects` puts whole objects into an embedded
server before anybody uses it, as a backup is put back: no admission, no events.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from karpool.fleet.apiserver.server import ApiServer
from karpool.kube.client import Client
from karpool.kube.clock import rfc3339
from karpool.kube.errors import Rejected
from karpool.kube.resource import Resource
from karpool.model.errors import Invalid

Object = dict[str, Any]
MANAGER = "karpool-loader"


async def load_objects(client: Client, objects: Iterable[Object]) -> int:
    """Returns how many objects were written. Raises KubeError naming the object."""
    kinds: dict[tuple[str, str], tuple[Resource, bool]] = {}
    count = 0
    for obj in objects:
        wanted = (str(obj.get("apiVersion", "")), str(obj.get("kind", "")))
        if wanted not in kinds:
            kinds[wanted] = await _find(client, *wanted)
        resource, has_status = kinds[wanted]
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


async def _find(client: Client, api_version: str, kind: str) -> tuple[Resource, bool]:
    group, _, version = api_version.rpartition("/")
    root = f"/apis/{api_version}" if group else f"/api/{api_version}"
    listed = (await client.get_path(root)).get("resources", [])
    names = {entry["name"] for entry in listed}
    for entry in listed:
        if entry["kind"] == kind and "/" not in entry["name"]:
            resource = Resource(group, version, entry["name"], kind, bool(entry["namespaced"]))
            return resource, f"{entry['name']}/status" in names
    raise Rejected(root, 404, message=f"the server has no kind {kind} in {api_version}")


def restore_objects(server: ApiServer, objects: Iterable[Object]) -> int:
    """Returns how many there are. Raises Invalid for a kind that the server does not have."""
    cluster, count = server.cluster, 0
    now = rfc3339(cluster.clock.now())
    for obj in objects:
        group = str(obj["apiVersion"]).rpartition("/")[0]
        resource = cluster.types.of_kind(group, str(obj["kind"]))
        if resource is None:
            raise Invalid("kind", f"{obj['apiVersion']} {obj['kind']}", "the server does not have this kind")
        metadata = {"uid": cluster.ids(), "creationTimestamp": now, "generation": 1, **obj["metadata"]}
        cluster.store.version += 1
        metadata["resourceVersion"] = str(cluster.store.version)
        whole = {**obj, "metadata": metadata}
        cluster.store.restore(resource.group_resource, whole, msgspec.json.encode(whole))
        count += 1
    cluster.store.restored(cluster.store.version)
    return count
