"""What a node costs, in USD per hour. A price that is not known, or that is no number, is None."""

import math

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE


def node_price(catalogue: Catalogue, labels: Labels) -> float | None:
    """Of the offering whose zone and capacity type the node has, in stock or not."""
    return usable_price(
        catalogue.price(labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, ""))
    )


def usable_price(price: float | None) -> float | None:
    """None for what cannot be added up: NaN, infinite or negative."""
    return price if price is not None and math.isfinite(price) and price >= 0 else None
