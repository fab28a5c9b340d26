"""The node class of an embedded cluster's cloud, which names its region and zones.

NodePools still refer to the class of the simulated provider; components that need the region read these.
"""

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.kubernetes.api_resources import (
    AKSNODECLASSES,
    EC2NODECLASSES,
    GCENODECLASSES,
    ApiResource,
)
from karpool_fleet.apiserver.objects.types import Object

_BY_PROVIDER = {"aws": EC2NODECLASSES, "azure": AKSNODECLASSES, "gcp": GCENODECLASSES}
_AKS_GROUP = "/subscriptions/embedded/resourceGroups/MC_embedded_{region}/providers/Microsoft.Network"


def node_class_kind(catalogue: Catalogue) -> ApiResource | None:
    """Return the resource; None for a provider without node classes."""
    return _BY_PROVIDER.get(catalogue.provider)


def node_class(catalogue: Catalogue) -> Object | None:
    """Return the object as its controller would have written it."""
    kind = node_class_kind(catalogue)
    if kind is None:
        return None
    region = catalogue.region
    spec: Object = {}
    status: Object = {}
    if kind is EC2NODECLASSES:
        status = {"subnets": [{"id": f"subnet-{zone}", "zone": zone} for zone in catalogue.zones]}
    elif kind is GCENODECLASSES:
        subnetwork = f"projects/embedded/regions/{region}/subnetworks/default"
        spec = {"networkConfig": {"subnetwork": subnetwork}}
    else:
        spec = {"vnetSubnetID": _AKS_GROUP.format(region=region) + "/virtualNetworks/aks/subnets/aks"}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": "default", "uid": f"{kind.plural}-default"},
        "spec": spec,
        "status": status,
    }
