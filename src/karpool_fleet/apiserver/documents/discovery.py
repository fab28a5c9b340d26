"""Classic and aggregated discovery: which resources the server serves.

Pure functions from resource types to API objects. Order is stable: groups as they were registered, versions
by preference (GA before beta before alpha, newer before older), resources by registration.
"""

import re
from collections.abc import Iterable, Sequence

from karpool_fleet.apiserver.kinds.builtin_kinds import REVIEWS, SUBRESOURCE_KINDS
from karpool_fleet.apiserver.objects.types import Object, ResourceType

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
AGGREGATED_VERSIONS = ("v2", "v2beta1")
_SUBRESOURCE_VERBS = {
    "binding": ("create",),
    "eviction": ("create",),
    "finalize": ("update",),
    "log": ("get",),
}
_CREATE_ONLY = frozenset((row.group, row.plural) for row in REVIEWS)
_VERSION = re.compile(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?\Z")


def verbs(resource: ResourceType) -> tuple[str, ...]:
    if (resource.group, resource.plural) in _CREATE_ONLY:
        return ("create",)
    if (resource.group, resource.plural) == ("", "namespaces"):
        return tuple(verb for verb in VERBS if verb != "deletecollection")
    return VERBS


def subresource_verbs(name: str) -> tuple[str, ...]:
    return _SUBRESOURCE_VERBS.get(name, ("get", "patch", "update"))


def version_order(version: str) -> tuple[int, int, int, str]:
    """Return a sort key for preferred versions first: v2, v1, v1beta2, v1alpha1, then others by name."""
    match = _VERSION.match(version)
    if match is None:
        return (3, 0, 0, version)
    stability = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stability, -int(match[1][:9]), -int((match[3] or "0")[:9]), version)


def groups(types: Iterable[ResourceType]) -> dict[str, list[str]]:
    """Versions of each group, preferred first."""
    found: dict[str, dict[str, None]] = {}
    for resource in types:
        found.setdefault(resource.group, {})[resource.version] = None
    return {group: sorted(versions, key=version_order) for group, versions in found.items()}


# Classic -----------------------------------------------------------------------------------------


def api_versions(address: str) -> Object:
    """/api; `address` is host:port as clients reach the server."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def api_group_list(types: Sequence[ResourceType]) -> Object:
    """/apis"""
    listed = [_group(group, versions) for group, versions in groups(types).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def api_group(types: Sequence[ResourceType], group: str) -> Object | None:
    """/apis/G; None when the group is not served."""
    versions = groups(types).get(group)
    if not group or versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}


def _group(group: str, versions: list[str]) -> Object:
    entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": entries, "preferredVersion": entries[0]}


def api_resource_list(types: Sequence[ResourceType], group: str, version: str) -> Object | None:
    """/api/v1 and /apis/G/V; None when nothing is served there."""
    served = [resource for resource in types if (resource.group, resource.version) == (group, version)]
    if not served:
        return None
    resources = [entry for resource in served for entry in _classic_entries(resource)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": sorted(resources, key=lambda entry: str(entry["name"])),
    }


def _classic_entries(resource: ResourceType) -> list[Object]:
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(verbs(resource)),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    return [main, *(_classic_subresource(resource, name) for name in sorted(resource.subresources))]


def _classic_subresource(resource: ResourceType, name: str) -> Object:
    group, version, kind = subresource_kind(resource, name)
    entry: Object = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind,
        "verbs": list(subresource_verbs(name)),
    }
    if (group, version) != (resource.group, resource.version):
        entry |= {"group": group, "version": version}
    return entry


def subresource_kind(resource: ResourceType, name: str) -> tuple[str, str, str]:
    """Return group, version and kind of the body of a subresource."""
    return SUBRESOURCE_KINDS.get(name, (resource.group, resource.version, resource.kind))


# Aggregated --------------------------------------------------------------------------------------


def negotiate_aggregated(accept: str) -> str | None:
    """Return the first aggregated version that an Accept header prefers over plain JSON; None for classic."""
    for offer in accept.split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        if media != "application/json":
            continue
        named = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if named.get("as") != "APIGroupDiscoveryList":
            return None
        if named.get("g") == "apidiscovery.k8s.io" and named.get("v") in AGGREGATED_VERSIONS:
            return named["v"]
    return None


def aggregated_content_type(version: str) -> str:
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def aggregated(types: Sequence[ResourceType], *, core: bool, version: str) -> Object:
    """/api (`core`) or /apis in one document."""
    items = []
    for group, versions in groups(types).items():
        if (group == "") != core:
            continue
        metadata: Object = {"name": group} if group else {}
        listed = [_aggregated_version(types, group, served) for served in versions]
        items.append({"metadata": metadata, "versions": listed})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(types: Sequence[ResourceType], group: str, version: str) -> Object:
    served = [resource for resource in types if (resource.group, resource.version) == (group, version)]
    return {
        "version": version,
        "freshness": "Current",
        "resources": [_aggregated_entry(resource) for resource in sorted(served, key=lambda r: r.plural)],
    }


def _aggregated_entry(resource: ResourceType) -> Object:
    entry: Object = {
        "resource": resource.plural,
        "responseKind": _kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(verbs(resource)),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": _kind(*subresource_kind(resource, name)),
                "verbs": list(subresource_verbs(name)),
            }
            for name in sorted(resource.subresources)
        ]
    return entry


def _kind(group: str, version: str, kind: str) -> Object:
    return {"group": group, "version": version, "kind": kind}
