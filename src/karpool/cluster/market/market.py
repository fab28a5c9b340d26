"""What can be bought for a cluster: the shipped catalogue of its region, and what its nodes show.

The region is taken from the first node, claim, pool or node class that names one, unless
it was given. Types that the catalogue does not list are learnt from nodes and claims.
Until a region is known, only learnt types count.
"""

import re
from collections.abc import Iterable, Mapping

import structlog

from karpool.cluster.market.prices import usable_price
from karpool.model.catalogue.catalogue import ZONE_ID, Catalogue, capacity_type_of
from karpool.model.catalogue.files import load_shipped, shipped_provider, unknown_region
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_overlay import NodeOverlays
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    NodeClaim,
    NodePool,
)
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION, ZONE, Node
from karpool.packing.new_nodes.offerings import Offerings

log = structlog.get_logger(__name__)
AUTO_MODE_GROUP = "eks.amazonaws.com"
_ZONE_NAME = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)[a-z]")
_SEEN_MAX = 10_000
# What is paid for already costs next to nothing, but for order's sake less the cheaper it would have been.
RESERVED_DIVISOR = 10_000_000


class Market:
    """`version` changes whenever something else could be bought."""

    def __init__(self, catalogue: Catalogue | None = None, *, region: str = "") -> None:
        """Raises Invalid for a region that no catalogue is shipped for."""
        self._given = catalogue is not None
        self.region = catalogue.region if catalogue is not None else ""
        self._auto_mode = False
        self._seen: dict[tuple[str, str, str, str], Node | NodeClaim] = {}
        self.catalogue = catalogue or Catalogue("", "")
        self.overlays = NodeOverlays()
        self.offerings = Offerings(self.catalogue, self.overlays)
        self._changes = 0
        if catalogue is None and region:
            if not shipped_provider(region):
                raise unknown_region("--region", region)
            self._load(region)

    @property
    def version(self) -> tuple[int, int]:
        return self._changes, self.offerings.version

    @property
    def known(self) -> bool:
        """Whether there is more than what was learnt."""
        return self._given or bool(self.region)

    def learn(self, source: Node | NodeClaim) -> None:
        labels = source.labels
        if not self.known:
            self._place(region_of(labels))
        key = (
            labels.get(INSTANCE_TYPE, ""),
            labels.get(ZONE, ""),
            capacity_type_of(labels),
            labels.get(ZONE_ID, ""),
        )
        # One node of a kind says it all, except that one may still be without its devices.
        listed = key[0] in self.catalogue.types and not self.catalogue.is_learnt(key[0])
        if not key[0] or (listed and key in self._seen):
            return
        if len(self._seen) < _SEEN_MAX:
            self._seen[key] = source
        try:
            self.catalogue.learn(source)
        except Invalid as error:
            log.info("type not learnt", node=source.name, reason=str(error))

    def price(self, labels: Labels) -> float | None:
        """Of a node: its offering, as overlays of its pool say, whether in stock or not."""
        name, zone, kind = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, "")
        candidate = self.catalogue.types.get(name)
        if candidate is not None and self.overlays:
            overlaid = self.overlays.types(self.catalogue.types, self.catalogue.version)
            candidate = overlaid.applied(labels.get(NODEPOOL, ""), candidate)
        listed = None if candidate is None else candidate.price(zone, kind)
        if listed is None and candidate is not None and kind == RESERVED:
            on_demand = candidate.price(zone, ON_DEMAND)
            listed = None if on_demand is None else on_demand / RESERVED_DIVISOR
        return usable_price(listed)

    def unclear_pools(self) -> Mapping[str, str]:
        """Pools of which cannot be told what their nodes cost, and why."""
        return (
            self.overlays.types(self.catalogue.types, self.catalogue.version).closed if self.overlays else {}
        )

    def forget_pool(self, name: str) -> None:
        self.overlays.see_pool(name, None)

    def see_pool(self, pool: NodePool) -> None:
        template = pool.spec.template
        self.overlays.see_pool(pool.name, (template.metadata.labels if template.metadata else None) or {})
        auto = template.spec.node_class_ref.group == AUTO_MODE_GROUP
        if auto and not self._auto_mode and not self._given:
            self._auto_mode = True
            if self.region:
                self._load(self.region)
        if self.known:
            return
        self._place(region_of((template.metadata.labels if template.metadata else None) or {}))
        for requirement in template.spec.requirements or ():
            if requirement.key in (REGION, ZONE) and requirement.operator == "In":
                for value in requirement.values or ():
                    self._place(region_of({requirement.key: value}))

    def see_zones(self, zones: Iterable[str]) -> None:
        for zone in zones:
            if not self.known:
                self._place(region_of({ZONE: zone}))

    def _place(self, region: str) -> None:
        if region and not self.known and shipped_provider(region):
            self._load(region)

    def _load(self, region: str) -> None:
        self.region = region
        self.catalogue = load_shipped(region, auto_mode=self._auto_mode)
        for source in self._seen.values():
            try:
                self.catalogue.learn(source)
            except Invalid:
                continue  # was said before
        self.offerings = Offerings(self.catalogue, self.overlays)
        self._changes += 1


def region_of(labels: Labels | Mapping[str, str]) -> str:
    """The region that labels name, or whose zone they name; empty if they do not."""
    if region := labels.get(REGION, ""):
        return region
    found = _ZONE_NAME.fullmatch(labels.get(ZONE, ""))
    return found[1] if found else ""
