"""Where the nodes of an embedded cluster can be, as the node class of its cloud says it on a real one.

Pools go on naming the simulated provider's class; whoever asks for the region reads these.
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
    """None of a cloud that has none."""
    return _BY_PROVIDER.get(catalogue.provider)


def node_class(catalogue: Catalogue) -> Object | None:
    """As its controller would have written it."""
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
