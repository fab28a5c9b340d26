"""Where the node class of a cloud lets its nodes run. One definition for all clouds.

EC2NodeClass and the NodeClass of EKS Auto Mode list subnets with their zones in the status. A GCENodeClass
names a subnetwork, whose path has its region. An AKSNodeClass names a subnet; only the resource group that
AKS creates for a cluster has the region in its name. A class without zones restricts nothing.
"""

import re

import msgspec

from karpool.model.kubernetes.meta import Wire, WireObject

_GCP_SUBNETWORK = re.compile(r"(?:.*/)?regions/([a-z0-9-]+)/subnetworks/[^/]+")
_AKS_SUBNET = re.compile(r"/subscriptions/[^/]+/resourceGroups/MC_[^/]*_([a-z0-9]+)/.*", re.IGNORECASE)


class Subnet(Wire, frozen=True):
    zone: str = ""


class NodeClassStatus(Wire, frozen=True):
    subnets: list[Subnet] | None = None


class NetworkConfig(Wire, frozen=True):
    subnetwork: str | None = None


class NodeClassSpec(Wire, frozen=True):
    network_config: NetworkConfig | None = None  # GCP
    vnet_subnet_id: str | None = msgspec.field(default=None, name="vnetSubnetID")  # Azure


class NodeClass(WireObject, frozen=True):
    spec: NodeClassSpec | None = None
    status: NodeClassStatus | None = None

    @property
    def zones(self) -> frozenset[str]:
        """The zones of its subnets; empty if it does not say."""
        subnets = (self.status.subnets if self.status is not None else None) or ()
        return frozenset(subnet.zone for subnet in subnets if subnet.zone)

    @property
    def region(self) -> str:
        """The region in the name of its subnet; else empty. Zones also name it."""
        if self.spec is None:
            return ""
        network = self.spec.network_config
        subnetwork = _GCP_SUBNETWORK.fullmatch((network.subnetwork if network else None) or "")
        subnet = subnetwork or _AKS_SUBNET.fullmatch(self.spec.vnet_subnet_id or "")
        return subnet[1].lower() if subnet else ""
