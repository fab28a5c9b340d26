"""What a cloud's node class says about where its nodes can be. One definition for all clouds.

AWS and EKS Auto Mode name subnets with their zones in the status; Azure and KWOK say nothing of zones,
and a class without zones narrows nothing.
"""

from karpool.model.kubernetes.meta import Wire, WireObject


class Subnet(Wire, frozen=True):
    zone: str = ""


class NodeClassStatus(Wire, frozen=True):
    subnets: list[Subnet] | None = None


class NodeClass(WireObject, frozen=True):
    status: NodeClassStatus | None = None

    @property
    def zones(self) -> frozenset[str]:
        """Where it has subnets; empty when it does not say."""
        subnets = (self.status.subnets if self.status is not None else None) or ()
        return frozenset(subnet.zone for subnet in subnets if subnet.zone)
