"""What can be launched for a cluster: the shipped catalogue of its region, and the types of its nodes.

Unless it is configured, the region is taken from nodes, else claims, else the status of node classes, else
the requirements of pools, else Karmada's Cluster object, else the fallback (`RegionSource`, best first).
Types that the catalogue does not list are learnt from nodes and claims. Until a region is known, only learnt
types exist. A node of another region is priced by the catalogue of that region. The same holds for the
launches of a pool that names another region, whose node class does, or whose nodes are there: a Karpenter
launches in one region, and a cluster may have several. `gaps` lists missing prices and what to do.
"""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import structlog

from karpool.cluster.market.fleet_bill import FleetBill, LaunchBilling
from karpool.cluster.market.prices import usable_price
from karpool.model.catalogue.catalogue import ZONE_ID, Catalogue, capacity_type_of
from karpool.model.catalogue.files import load_shipped, shipped_provider, unknown_region
from karpool.model.contracts.contract import PAID_FOR_DIVISOR, BilledKind, Contract
from karpool.model.contracts.contracted_prices import ContractedPrices
from karpool.model.contracts.learnt_prices import PricedNode, SoldAs
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_class import NodeClass
from karpool.model.karpenter.node_overlay import NodeOverlays
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    NodeClaim,
    NodePool,
)
from karpool.model.kubernetes.meta import NO_LABELS, Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION, ZONE, Node
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pack_result import LaunchOption

log = structlog.get_logger(__name__)
AUTO_MODE_GROUP = "eks.amazonaws.com"
# Zones name their region: us-east-1a of AWS, us-central1-a of GCP, eastus2-1 of Azure.
_ZONE_NAME = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)[a-z]|([a-z]+-[a-z]+\d+)-[a-z]|([a-z]+\d?)-\d")
# The provider IDs of machines on AWS and GCP do, too.
_PROVIDER_ID_ZONE = re.compile(r"(?:aws:///|gce://[^/]+/)([a-z0-9-]+)/.+")
_SEEN_MAX = 10_000
_GAPS_MAX = 10


class RegionSource(IntEnum):
    """Where the region of a cluster comes from; a lower value is more reliable."""

    GIVEN = 0
    NODE = 1
    NODECLAIM = 2
    NODE_CLASS = 3
    POOL = 4
    KARMADA = 5
    FALLBACK = 6


class _PoolPlace(NamedTuple):
    """Where a pool launches: the regions that it names, and the kind and name of its node class."""

    regions: tuple[str, ...]
    node_class: tuple[str, str]

    @staticmethod
    def of(pool: NodePool) -> "_PoolPlace":
        template = pool.spec.template
        said = [region_of((template.metadata.labels if template.metadata else None) or {})]
        for requirement in template.spec.requirements or ():
            if requirement.key in (REGION, ZONE) and requirement.operator == "In":
                said += [region_of({requirement.key: value}) for value in requirement.values or ()]
        reference = template.spec.node_class_ref
        return _PoolPlace(tuple(dict.fromkeys(filter(None, said))), (reference.kind, reference.name))


class Market:
    """What can be launched. `version` changes whenever that changes."""

    def __init__(
        self,
        catalogue: Catalogue | None = None,
        *,
        region: str = "",
        fallback_region: str = "",
        contract: Contract | ContractedPrices | None = None,
    ) -> None:
        """`region` overrides what the cluster says; `fallback_region` is used while it says nothing.

        Raises Invalid for a region without a shipped catalogue.
        """
        self._given = catalogue is not None
        self.region = catalogue.region if catalogue is not None else ""
        self._said_by = RegionSource.GIVEN
        self._auto_mode = False
        self._seen: dict[tuple[str, str, str, str, str], Node | NodeClaim] = {}
        self._elsewhere: dict[str, Catalogue] = {}  # catalogues of other regions with nodes
        self._nowhere = Catalogue("", "")  # for regions without a shipped catalogue: types without prices
        self._unknown_regions: set[str] = set()
        self._pools: dict[str, _PoolPlace] = {}
        self._class_regions: dict[tuple[str, str], str] = {}  # by kind and name
        self._regions_of_nodes: dict[str, frozenset[str]] = {}  # by pool
        self.catalogue = catalogue or Catalogue("", "")
        self.overlays = NodeOverlays()
        self.contracted = contract if isinstance(contract, ContractedPrices) else ContractedPrices(contract)
        self.offerings = self._sold()
        self._changes = 0
        if catalogue is None and region:
            if not shipped_provider(region):
                raise unknown_region("--region", region)
            self._load(region)
        elif catalogue is None and fallback_region:
            if not shipped_provider(fallback_region):
                raise unknown_region("--region", fallback_region)
            self._place(fallback_region, RegionSource.FALLBACK)

    @property
    def version(self) -> tuple[int, int]:
        return self._changes, self.offerings.version

    @property
    def known(self) -> bool:
        """Whether there is a catalogue besides the learnt types."""
        return self._given or bool(self.region)

    def learn(self, source: Node | NodeClaim) -> None:
        labels = source.labels
        said_by = RegionSource.NODE if isinstance(source, Node) else RegionSource.NODECLAIM
        region = region_of(labels, source.provider_id)
        if self._may_learn_region(said_by):
            self._place(region, said_by)
        if region and (pool := labels.get(NODEPOOL, "")):
            before = self._regions_of_nodes.get(pool, frozenset())
            if region not in before:
                self._regions_of_nodes[pool] = before | {region}
                self._changes += 1
        key = (
            labels.get(INSTANCE_TYPE, ""),
            labels.get(ZONE, ""),
            capacity_type_of(labels),
            labels.get(ZONE_ID, ""),
            labels.get(REGION, ""),
        )
        # One node of a kind is enough, except that it may still be without its devices.
        catalogue = self._catalogue_in(region)
        listed = key[0] in catalogue.types and not catalogue.is_learnt(key[0])
        if not key[0] or (listed and key in self._seen):
            return
        if len(self._seen) < _SEEN_MAX:
            self._seen[key] = source
        try:
            changed = catalogue.learn(source)
            self._changes += changed and catalogue is not self.catalogue
        except Invalid as error:
            log.info("type not learnt", node=source.name, reason=str(error))

    def price(self, labels: Labels, provider_id: str = "") -> float | None:
        """Return what a node adds to the bill, in stock or not."""
        if not self.contracted:
            overlaid = self._overlaid_price(labels)
            return self.list_price(labels, provider_id) if overlaid is None else overlaid
        kind = self.billed(labels, provider_id)
        return None if kind is None else self.contracted.price(kind)

    def billed(self, labels: Labels, provider_id: str = "") -> BilledKind | None:
        """Return how a node is billed; None if its price is unknown."""
        overlaid = self._overlaid_price(labels)
        listed = self.list_price(labels, provider_id)
        price = listed if overlaid is None else overlaid
        catalogue = self._catalogue_in(region_of(labels, provider_id))
        name, zone = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE) or _zone_in(provider_id)
        capacity_type = capacity_type_of(labels) or ON_DEMAND
        if price is None:
            price = self.contracted.learnt(catalogue, name, zone, capacity_type)
        if price is None:
            return None
        is_overlaid = overlaid is not None and overlaid != listed
        return self.contracted.kind(catalogue, name, zone, capacity_type, price, overlaid=is_overlaid)

    def priced_node(
        self, name: str, labels: Labels, provider_id: str = "", annotations: Labels = NO_LABELS
    ) -> PricedNode:
        """Return a node in the form in which price sources look it up."""
        region = self._catalogue_in(region_of(labels, provider_id)).region
        zone = labels.get(ZONE) or _zone_in(provider_id)
        return PricedNode(
            name,
            provider_id,
            SoldAs.of(labels.get(INSTANCE_TYPE, ""), region, zone, capacity_type_of(labels)),
            self.list_price(labels, provider_id),
            annotations.get(self.contracted.source.annotation, ""),
        )

    def bill(self) -> FleetBill | None:
        """Return the bill of the machines last seen; None without a contract."""
        if not self.contracted:
            return None

        def kind_of(pool: str, option: LaunchOption) -> BilledKind | None:
            return self.billed({**self._labels_of(pool, option), NODEPOOL: pool})

        prices = self.contracted
        return FleetBill(
            prices.contract,
            prices.fleet,
            prices.others,
            kind_of,
            self._list_price_of,
            prices.intents,
            prices.unheard,
        )

    def launch_billing(self) -> LaunchBilling:
        """Return the billing of launches in addition to the machines last seen."""
        return LaunchBilling(self.bill(), self._list_price_of if self.overlays else None)

    def _list_price_of(self, pool: str, option: LaunchOption) -> float | None:
        return self.list_price(self._labels_of(pool, option))

    def _labels_of(self, pool: str, option: LaunchOption) -> dict[str, str]:
        return {
            INSTANCE_TYPE: option.instance_type,
            ZONE: option.zone,
            CAPACITY_TYPE: option.capacity_type,
            REGION: region_of({ZONE: option.zone}) or self.catalogue_of(pool).region,
        }

    def _overlaid_price(self, labels: Labels) -> float | None:
        """Return the price with overlays of its pool; None without overlays or without a price."""
        name, zone, kind = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), capacity_type_of(labels)
        catalogue = self._catalogue_in(region_of(labels))
        candidate = catalogue.types.get(name) if self.overlays else None
        if candidate is not None:
            overlaid = self.overlays.types(catalogue.types, catalogue.version)
            return usable_price(overlaid.applied(labels.get(NODEPOOL, ""), candidate).price(zone, kind))
        return None

    def list_price(self, labels: Labels, provider_id: str = "") -> float | None:
        """Return the list price of a node with these labels, in stock or not; None if unknown.

        A node without a capacity type label is on-demand, because spot nodes are labelled.
        """
        catalogue = self._catalogue_in(region_of(labels, provider_id))
        name, zone = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE) or _zone_in(provider_id)
        kind = capacity_type_of(labels) or ON_DEMAND
        price = usable_price(catalogue.price_of_running(name, zone, kind))
        if price is None and kind == RESERVED:
            price = usable_price(catalogue.price_of_running(name, zone, ON_DEMAND))
            return None if price is None else price / PAID_FOR_DIVISOR
        return price

    def unclear_pools(self) -> Mapping[str, str]:
        """Return the pools whose node prices are unclear, and why."""
        unclear: dict[str, str] = {}
        for catalogue in (self.catalogue, *self._elsewhere.values()) if self.overlays else ():
            closed = self.overlays.types(catalogue.types, catalogue.version).closed
            unclear |= {name: why for name, why in closed.items() if self.catalogue_of(name) is catalogue}
        return unclear

    def catalogue_of(self, pool: str) -> Catalogue:
        """Return the catalogue of the region where a pool launches."""
        regions = [region for region in self._regions_of(pool) if shipped_provider(region)]
        return self._catalogue_in(regions[0] if regions and self.region not in regions else self.region)

    def _regions_of(self, pool: str) -> list[str]:
        """Return where a pool launches: by itself, else by its node class, else by its nodes.

        Empty if the region is configured, because that region applies to all pools.
        """
        place = self._pools.get(pool)
        if place is None or (self.known and self._said_by is RegionSource.GIVEN):
            return []
        of_class = [region] if (region := self._class_regions.get(place.node_class)) else []
        return list(place.regions) or of_class or sorted(self._regions_of_nodes.get(pool, ()))

    def forget_pool(self, name: str) -> None:
        self.overlays.see_pool(name, None)
        self._pools.pop(name, None)
        self._regions_of_nodes.pop(name, None)

    def see_pool(self, pool: NodePool) -> None:
        template = pool.spec.template
        place, before = _PoolPlace.of(pool), self._pools.get(pool.name)
        self._pools[pool.name] = place
        self._changes += before is not None and before != place
        self.overlays.see_pool(pool.name, (template.metadata.labels if template.metadata else None) or {})
        auto = template.spec.node_class_ref.group == AUTO_MODE_GROUP
        if auto and not self._auto_mode and not self._given:
            self._auto_mode = True
            if self.region:
                self._load(self.region)
        if not self._may_learn_region(RegionSource.POOL):
            return
        for region in place.regions:
            self._place(region, RegionSource.POOL)

    def see_node_class(self, node_class: NodeClass) -> None:
        for region in (*(region_of({ZONE: zone}) for zone in sorted(node_class.zones)), node_class.region):
            if region:
                self._class_regions[node_class.kind, node_class.metadata.name] = region
            self._place(region, RegionSource.NODE_CLASS)

    def see_karmada_cluster(self, region: str, zones: Iterable[str]) -> None:
        """Note the region and zones of Karmada's Cluster object."""
        for said in (region, *(region_of({ZONE: zone}) for zone in zones)):
            self._place(said, RegionSource.KARMADA)

    def _catalogue_in(self, region: str) -> Catalogue:
        if self._given or not region or region == self.region:
            return self.catalogue
        if not shipped_provider(region):
            return self._nowhere if self._is_unshipped(region) else self.catalogue
        if region not in self._elsewhere:
            self._elsewhere[region] = load_shipped(region, auto_mode=self._auto_mode)
        return self._elsewhere[region]

    def _is_unshipped(self, region: str) -> bool:
        """Whether no prices are known for the region; a configured region applies to all nodes."""
        is_believed = self._given or not self.region or self._said_by is RegionSource.GIVEN
        return bool(region) and not is_believed and not shipped_provider(region)

    def gaps(self) -> list[str]:
        """Return why prices of nodes are unknown, and what to do; one sentence each, for all outputs."""
        unknown_regions = set() if self._given else set(self._unknown_regions)
        unpriced: dict[tuple[str, str, str], str] = {}
        for (name, zone, kind, *_), source in self._seen.items():
            region = region_of(source.labels, source.provider_id) or self.region
            if self._is_unshipped(region):
                unknown_regions.add(region)
            if region in unknown_regions:
                continue
            if self.list_price(source.labels, source.provider_id) is None and (
                not self.contracted or self.price(source.labels, source.provider_id) is None
            ):
                unpriced[name, kind or ON_DEMAND, region] = zone
        sentences = [str(unknown_region("region", region)) for region in sorted(unknown_regions)]
        for (name, kind, region), zone in sorted(unpriced.items()):
            catalogue = self._catalogue_in(region)
            if catalogue.knows_price_of(name):
                reason = f"has no known price as {kind} in zone {zone or 'unknown'}"
            else:
                reason = f"is not in the catalogue of {region or 'an unknown region'}"
            sentences.append(
                f"type {name!r} {reason}; `karpool catalogue show {name}` says what is known,"
                " --catalogue gives your own prices"
            )
        for pool in sorted(self._pools):
            taken, regions = self.catalogue_of(pool).region, self._regions_of(pool)
            # Without any offering, the sentence about the region is enough.
            if taken and (others := ", ".join(sorted({*regions} - {taken}))):
                sentences.append(
                    f"of new nodes of pool {pool!r} in {others}: a Karpenter launches in one region, taken to"
                    f" be {taken}; make a pool for each region, or name one with --region"
                )
        sentences += self.contracted.remarks
        if len(sentences) > _GAPS_MAX:
            sentences[_GAPS_MAX:] = [f"and {len(sentences) - _GAPS_MAX} more without a price"]
        return sentences

    def _may_learn_region(self, said_by: RegionSource) -> bool:
        """Whether the region is unknown, or came from a less reliable source."""
        return not self.known or said_by < self._said_by

    def _place(self, region: str, said_by: RegionSource) -> None:
        if not region or not self._may_learn_region(said_by):
            return
        if not shipped_provider(region):
            self._unknown_regions.add(region)
            return
        self._said_by = said_by
        if region != self.region:
            self._load(region)

    def _load(self, region: str) -> None:
        self.region = region
        self.catalogue = load_shipped(region, auto_mode=self._auto_mode)
        self._elsewhere.pop(region, None)
        for source in self._seen.values():
            try:
                self._catalogue_in(region_of(source.labels, source.provider_id)).learn(source)
            except Invalid:
                continue  # already logged
        self.offerings = self._sold()
        self._changes += 1

    def _sold(self) -> Offerings:
        return Offerings(self.catalogue, self.overlays, self.contracted, self.catalogue_of)


def region_of(labels: Labels | Mapping[str, str], provider_id: str = "") -> str:
    """Return the region from the labels, or from the zone in them or in the provider ID; else empty."""
    if region := labels.get(REGION, ""):
        return region
    return _region_of_zone(labels.get(ZONE, "")) or _region_of_zone(_zone_in(provider_id))


def _zone_in(provider_id: str) -> str:
    address = _PROVIDER_ID_ZONE.fullmatch(provider_id)
    return address[1] if address else ""


@lru_cache(maxsize=1024)  # Thousands of nodes are in a few zones.
def _region_of_zone(zone: str) -> str:
    named = _ZONE_NAME.fullmatch(zone)
    return named[named.lastindex or 0] if named else ""
