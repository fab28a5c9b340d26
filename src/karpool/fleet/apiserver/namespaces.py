"""Namespaces: the ones that always exist, who may write into one, and how one goes away.

Deleting a namespace marks it Terminating, deletes its contents, and removes it
when the last object in it has gone. Creates in it are refused meanwhile.
"""

from karpool.fleet.apiserver.cluster import Cluster
from karpool.fleet.apiserver.status import StatusError, not_found
from karpool.fleet.apiserver.types import ResourceType

ALWAYS = ("default", "kube-node-lease", "kube-public", "kube-system")
FINALIZER = "kubernetes"
_NAMESPACES = "namespaces"


def ensure(cluster: Cluster) -> None:
    """Create the namespaces that always exist."""
    from karpool.fleet.apiserver.writing import Intent, create

    resource = cluster.types.preferred(_NAMESPACES)
    if resource is None:
        return
    for name in ALWAYS:
        if cluster.store.collection(_NAMESPACES).get("", name) is None:
            create(cluster, Intent(resource), {"metadata": {"name": name}})


def check_open(cluster: Cluster, resource: ResourceType, namespace: str, name: str) -> None:
    """Raise unless objects can be created in the namespace."""
    record = cluster.store.collection(_NAMESPACES).get("", namespace)
    if record is None:
        namespaces = cluster.types.preferred(_NAMESPACES)
        assert namespaces is not None
        raise not_found(namespaces, namespace)
    if record.deleting:
        raise StatusError(
            403,
            "Forbidden",
            f'{resource.group_resource} "{name}" is forbidden: namespace {namespace} is being terminated',
            details={
                "name": name,
                "group": resource.group,
                "kind": resource.plural,
                "causes": [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            },
        )
