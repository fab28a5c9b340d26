"""What Karpenter's kwok provider sells in the scenarios: machines of the shipped catalogue.

The provider reads types, sizes, zones and prices from a file; here they are those that
Karpool knows for one region, so that both sides of every comparison talk of the same machines.
"""

from typing import Any

from karpool.model.catalogue.files import load_shipped

REGION = "us-east-1"
ZONES = ("us-east-1a", "us-east-1b")
GENERAL = ("m5.large", "m5.xlarge", "m5.2xlarge", "m5.4xlarge")
GPU = ("g5.xlarge", "g5.12xlarge")


def _quantity(resource: str, amount: int) -> str:
    return f"{amount}m" if resource == "cpu" else str(amount)


def instance_type(name: str) -> dict[str, Any]:
    """One entry of the file the provider reads."""
    catalogue = load_shipped(REGION)
    known = catalogue.types[name]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {
            resource: _quantity(resource, amount)
            for resource, amount in known.capacity.items()
            if "/" not in resource or resource == "nvidia.com/gpu"
        },
        "offerings": [
            {
                "Price": catalogue.price(name, zone, kind),
                "Available": True,
                "Requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [kind]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                ],
            }
            for zone in ZONES
            for kind in ("on-demand", "spot")
            if catalogue.price(name, zone, kind) is not None
        ],
    }


SOLD = tuple(instance_type(name) for name in (*GENERAL, *GPU))
