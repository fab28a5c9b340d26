"""The objects of every new cluster: namespaces, and the two priority classes of the system."""

from karpool.model.kubernetes.priority import SYSTEM_CLASSES
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.defaults import PRIORITY_CLASSES
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.verbs.create_and_update import Intent, create

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def bootstrap(cluster: ServedCluster) -> None:
    """Create what is missing; a restored cluster usually has it all."""
    for name in NAMESPACES:
        _ensure(cluster, "namespaces", {"metadata": {"name": name}})
    for name, value in SYSTEM_CLASSES.items():
        description = "for what the cluster itself cannot do without"
        body = {"metadata": {"name": name}, "value": value, "description": description}
        _ensure(cluster, PRIORITY_CLASSES, body)


def _ensure(cluster: ServedCluster, group_resource: str, obj: Object) -> None:
    resource = cluster.types.preferred(group_resource)
    if resource is None or cluster.collection(resource).get("", obj["metadata"]["name"]) is not None:
        return
    create(cluster, Intent(resource, manager="karpool"), obj)
