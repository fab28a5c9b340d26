"""Nodes as the API sends them."""

import msgspec

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Condition, Labels, Wire, WireObject, condition
from karpool.model.resources import Resources
from karpool.model.taints import Taint

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
_OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
_OLD_REGION = "failure-domain.beta.kubernetes.io/region"


class NodeSpec(Wire, frozen=True):
    taints: list[Taint] | None = None
    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeStatus(Wire, frozen=True):
    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[Condition] | None = None


class Node(WireObject, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def provider_id(self) -> str:
        return self.spec.provider_id

    @property
    def is_ready(self) -> bool:
        ready = condition(self.status.conditions, "Ready")
        return ready is not None and ready.status == "True"


def allocatable(node: Node) -> Resources:
    """Return the allocatable resources. Raises Invalid, which names the resource."""
    try:
        return resources.parse(node.status.allocatable)
    except Invalid as error:
        raise error.at("status.allocatable") from None


def zone_key(labels: Labels) -> str:
    """Return region and zone together, old labels first: the key of kube-scheduler's node order."""
    region = labels.get(_OLD_REGION) or labels.get(REGION, "")
    zone = labels.get(_OLD_ZONE) or labels.get(ZONE, "")
    return f"{region}:\x00:{zone}" if region or zone else ""
