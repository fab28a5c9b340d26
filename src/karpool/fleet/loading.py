"""Put objects into a cluster through its API, whatever their kinds.

Kinds are looked up in the server's discovery. Status is written where the object has
one, through the status subresource, since a create drops it. Loading twice changes
nothing: what is there already is applied over.
"""

from collections.abc import Iterable
from typing import Any

from karpool.kube.client import Client
from karpool.kube.errors import Rejected
from karpool.kube.resource import Resource

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
