"""Prices are known or unknown, never estimated; shapes are learnt from live nodes."""

import math
from typing import Any

import pytest

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering, PriceList, capacity_type_of
from karpool.model.errors import Invalid
from karpool.model.requirements import value_set
from tests.model.build import claim, node

GI = 2**30
ZONE = "topology.kubernetes.io/zone"
ZONE_ID = "topology.k8s.aws/zone-id"
TYPE = "node.kubernetes.io/instance-type"
CAPACITY_TYPE = "karpenter.sh/capacity-type"


def priced(zones: dict[str, str | None] | None = None) -> Catalogue:
    """One type sold everywhere, one only in z1 as far as spot shows, one without a spot price."""
    prices = PriceList(
        zone_ids=("z1", "z2"),
        on_demand={"m.large": 0.10, "m.rare": 0.30, "m.metal": 5.0},
        spot={"m.large": {"z1": 0.02, "z2": 0.06}, "m.rare": {"z1": 0.05}},
        spot_median={"m.large": 0.04, "m.rare": 0.05, "m.metal": None},
    )
    types = [InstanceType(name, {}, {"cpu": 2000}, {"cpu": 1900}) for name in prices.on_demand]
    return Catalogue(
        "aws", "r", types, prices=prices, zones={"ra": None, "rb": None} if zones is None else zones
    )


def labels(name: str, zone: str, kind: str = "spot", **more: str) -> dict[str, str]:
    return {TYPE: name, ZONE: zone, CAPACITY_TYPE: kind, **more}


@pytest.mark.parametrize("price", [math.nan, math.inf, -math.inf, -0.01, True, "0.1"])
def test_a_price_that_is_no_price_is_refused(price: Any) -> None:
    with pytest.raises(Invalid, match=r"pricePerHour: .*finite number") as caught:
        Offering("z", "spot", price)

    assert caught.value.value is price


def test_no_price_and_a_price_of_nothing_are_different() -> None:
    assert Offering("z", "spot", None).price_per_hour is None
    assert Offering("z", "spot", 0.0).price_per_hour == 0.0


def test_with_unknown_zone_ids_spot_costs_the_median_of_the_region() -> None:
    found = priced()

    assert found.price("m.large", "ra", "on-demand") == 0.10
    assert found.price("m.large", "ra", "spot") == 0.04
    assert found.price("m.rare", "rb", "spot") == 0.05


def test_with_known_zone_ids_spot_costs_what_it_costs_there() -> None:
    found = priced({"ra": "z2", "rb": "z1"})

    assert found.price("m.large", "ra", "spot") == 0.06
    assert found.price("m.large", "rb", "spot") == 0.02


def test_a_type_is_not_sold_in_a_known_zone_where_it_has_no_spot_price() -> None:
    found = priced({"ra": "z2", "rb": "z1"})

    assert found.price("m.rare", "ra", "spot") is None
    assert found.price("m.rare", "ra", "on-demand") is None
    assert found.types["m.rare"].requirements[ZONE] == value_set("In", ["rb"])


def test_a_type_without_any_spot_price_is_sold_on_demand_everywhere() -> None:
    found = priced({"ra": "z2", "rb": "z1"}).types["m.metal"]

    assert found.requirements[ZONE] == value_set("In", ["ra", "rb"])
    assert found.requirements[CAPACITY_TYPE] == value_set("In", ["on-demand"])


@pytest.mark.parametrize(
    ("name", "zone", "kind"),
    [
        ("m.none", "ra", "spot"),
        ("m.large", "rx", "on-demand"),
        ("m.large", "ra", "reserved"),
        ("m.metal", "ra", "spot"),
    ],
)
def test_what_is_not_in_the_catalogue_has_no_price(name: str, zone: str, kind: str) -> None:
    assert priced().price(name, zone, kind) is None


def test_out_of_stock_does_not_hide_the_price() -> None:
    made = InstanceType("a", {}, {}, {}).sold_as([Offering("z", "spot", 0.5, available=False)])

    assert Catalogue("p", "r", [made]).price("a", "z", "spot") == 0.5


def test_the_id_of_a_zone_is_learnt_from_a_node_that_carries_both() -> None:
    found = priced()

    assert found.learn(node(labels=labels("m.large", "ra", **{ZONE_ID: "z2"}), cpu="2"))
    assert found.zones == {"ra": "z2", "rb": None}
    assert found.price("m.large", "ra", "spot") == 0.06
    assert found.price("m.large", "rb", "spot") == 0.04
    assert found.version == 1


def test_a_zone_that_has_no_prices_is_learnt_without_any() -> None:
    found = priced()

    found.learn(node(labels=labels("m.large", "local-1", "on-demand", **{ZONE_ID: "lax-1"}), cpu="2"))

    assert "local-1" not in found.zones
    assert found.price("m.large", "local-1", "on-demand") is None
    assert found.types["m.large"].requirements[ZONE] == value_set("In", ["local-1", "ra", "rb"])


def test_what_a_node_shows_outlives_the_next_zone_that_is_learnt() -> None:
    found = priced()
    found.learn(node(labels=labels("m.large", "local-1", "on-demand"), cpu="2"))

    found.learn(node(labels=labels("m.large", "rb", **{ZONE_ID: "z1"}), cpu="2"))

    assert "local-1" in found.types["m.large"].requirements[ZONE]
    assert found.price("m.large", "rb", "spot") == 0.02


def test_a_node_proves_that_its_type_is_sold_in_its_zone() -> None:
    found = priced({"ra": "z2", "rb": "z1"})

    assert found.learn(node(labels=labels("m.rare", "ra", "on-demand"), cpu="2"))
    assert found.learn(node(labels=labels("m.rare", "ra", "spot"), cpu="2"))
    assert found.price("m.rare", "ra", "on-demand") == 0.30
    assert found.price("m.rare", "ra", "spot") is None
    assert found.types["m.rare"].requirements[ZONE] == value_set("In", ["ra", "rb"])


def test_the_shape_of_a_listed_type_is_not_learnt() -> None:
    found = priced()

    found.learn(node(labels=labels("m.large", "ra"), cpu="96"))

    assert found.types["m.large"].capacity == {"cpu": 2000}
    assert not found.is_learnt("m.large")


def test_an_unknown_type_is_learnt_from_a_node_without_a_price() -> None:
    found = Catalogue("other", "r")
    shown = labels(
        "std-4",
        "z",
        "on-demand",
        **{
            "kubernetes.io/arch": "arm64",
            "karpenter.azure.com/sku-family": "D",
            "kubernetes.io/hostname": "n1",
            "app": "x",
        },
    )

    assert found.learn(
        node(labels=shown, cpu="3900m", memory="14Gi", capacity={"cpu": "4", "memory": "16Gi"})
    )
    learnt = found.types["std-4"]
    assert found.is_learnt("std-4")
    assert learnt.capacity == {"cpu": 4000, "memory": 16 * GI}
    assert learnt.allocatable == {"cpu": 3900, "memory": 14 * GI}
    assert learnt.offerings == (Offering("z", "on-demand", None),)
    assert learnt.requirements == {
        TYPE: value_set("In", ["std-4"]),
        "kubernetes.io/arch": value_set("In", ["arm64"]),
        "karpenter.azure.com/sku-family": value_set("In", ["D"]),
        ZONE: value_set("In", ["z"]),
        CAPACITY_TYPE: value_set("In", ["on-demand"]),
    }


def test_an_unknown_type_is_learnt_from_a_claim() -> None:
    found = Catalogue("other", "r")

    assert found.learn(
        claim(labels("std-4", "z"), status={"allocatable": {"cpu": "1"}, "capacity": {"cpu": "2"}})
    )
    assert found.types["std-4"].capacity == {"cpu": 2000}


def test_of_several_nodes_the_smallest_figure_counts_and_missing_devices_do_not() -> None:
    found = Catalogue("other", "r")
    gpu = "nvidia.com/gpu"

    found.learn(node(labels=labels("g", "z"), cpu="4", memory="15Gi", **{gpu: "0"}))
    found.learn(node(labels=labels("g", "z"), cpu="3900m", memory="16Gi", **{gpu: "1"}))
    found.learn(node(labels=labels("g", "z"), cpu="4", memory="16Gi"))

    assert found.types["g"].allocatable == {"cpu": 3900, "memory": 15 * GI, gpu: 1}


def test_the_version_rises_only_with_what_is_new() -> None:
    found = Catalogue("other", "r")
    seen = node(labels=labels("g", "z"), cpu="4")

    assert [found.learn(seen), found.learn(seen), found.learn(node(labels=labels("g", "y"), cpu="4"))] == [
        True,
        False,
        True,
    ]
    assert found.version == 2


@pytest.mark.parametrize(
    "silent",
    [node(cpu="4"), node(labels={TYPE: "x"}), node(labels={ZONE: "z", ZONE_ID: "z1"}, cpu="4")],
    ids=["no labels", "no resources", "no type"],
)
def test_a_node_that_says_too_little_teaches_nothing(silent: Any) -> None:
    found = Catalogue("other", "r")

    assert not found.learn(silent)
    assert not found.types


def test_a_node_that_cannot_be_read_is_named() -> None:
    with pytest.raises(Invalid, match=r"status\.allocatable\.cpu: 'four'"):
        Catalogue("p", "r").learn(node(labels=labels("g", "z"), cpu="four"))


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        ({CAPACITY_TYPE: "reserved"}, "reserved"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({}, ""),
    ],
)
def test_how_nodes_say_what_they_are_billed_as(shown: dict[str, str], kind: str) -> None:
    assert capacity_type_of(shown) == kind
