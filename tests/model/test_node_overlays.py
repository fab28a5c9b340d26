"""Overlays stack as Karpenter's do; those that contradict themselves or each other close their pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.catalogue.catalogue import InstanceType, Offering
from karpool.model.errors import Invalid
from karpool.model.karpenter.node_overlay import NodeOverlay, NodeOverlays, evaluated, overlay_of
from karpool.model.kubernetes.meta import decode
from karpool.model.requirements import ValueSet

TYPE, ZONE, KIND = (
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "karpenter.sh/capacity-type",
)


def sold(name, price=1.0, zones=("a", "b"), **labels):
    requirements = {
        ZONE: ValueSet(frozenset(zones)),
        KIND: ValueSet(frozenset(("spot", "on-demand"))),
        **{key: ValueSet(frozenset((value,))) for key, value in labels.items()},
    }
    offerings = tuple(Offering(zone, kind, price) for zone in zones for kind in ("spot", "on-demand"))
    return InstanceType(name, requirements, {"cpu": 1000}, {"cpu": 900}, offerings)


def overlay(name, *requirements, **spec):
    entries = [
        {"key": key, "operator": operator, "values": list(values)} for key, operator, *values in requirements
    ]
    return decode({"metadata": {"name": name}, "spec": {"requirements": entries, **spec}}, NodeOverlay)


def prices(*overlays, pool="p", labels=None, of=None):
    """What one type costs in a pool, by zone and capacity type."""
    chosen = of or sold("m")
    found = evaluated(map(overlay_of, overlays), {pool: labels or {}}, [chosen])
    overlaid = found.applied(pool, chosen)
    return {
        (offering.zone, offering.capacity_type): offering.price_per_hour for offering in overlaid.offerings
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"price": "0.25"}, 0.25),
        ({"priceAdjustment": "-99%"}, 0.01),
        ({"priceAdjustment": "+10%"}, 1.1),
        ({"priceAdjustment": "-0.4"}, 0.6),
        ({"priceAdjustment": "+.5"}, 1.5),
        ({"priceAdjustment": "-7"}, 0.0),
        ({"priceAdjustment": "-100%"}, 0.0),
        ({}, 1.0),
    ],
)
def test_a_price_is_replaced_or_adjusted(spec, expected):
    assert list({*prices(overlay("o", **spec)).values()}) == [pytest.approx(expected)]


def test_only_offerings_that_match_cost_something_else():
    cheap = overlay("o", (TYPE, "In", "m"), (ZONE, "In", "a"), (KIND, "In", "spot"), price="0")
    assert prices(cheap) == {
        ("a", "spot"): 0.0,
        ("a", "on-demand"): 1.0,
        ("b", "spot"): 1.0,
        ("b", "on-demand"): 1.0,
    }
    assert set(prices(cheap, of=sold("other")).values()) == {1.0}


def test_labels_of_the_pool_and_its_name_are_matched_and_what_is_missing_is_not():
    of_team = overlay("o", ("team", "In", "red"), price="0")
    assert set(prices(of_team, labels={"team": "red"}).values()) == {0.0}
    assert set(prices(of_team, labels={"team": "blue"}).values()) == {1.0}
    assert set(prices(of_team).values()) == {1.0}
    assert set(prices(overlay("o", ("team", "NotIn", "red"), price="0")).values()) == {0.0}
    named = overlay("o", ("karpenter.sh/nodepool", "In", "p"), price="0")
    assert set(prices(named).values()) == {0.0}
    assert set(prices(named, pool="q").values()) == {1.0}


def test_the_largest_weight_decides_a_price_and_prices_do_not_add_up():
    low, high = (
        overlay("low", weight=1, priceAdjustment="-50%"),
        overlay("high", weight=9, priceAdjustment="+50%"),
    )
    assert set(prices(low, high).values()) == {1.5}
    narrow = overlay("narrow", (ZONE, "In", "a"), weight=9, price="3")
    assert prices(low, narrow) == {
        ("a", "spot"): 3.0,
        ("a", "on-demand"): 3.0,
        ("b", "spot"): 0.5,
        ("b", "on-demand"): 0.5,
    }


def test_extended_resources_are_joined_and_of_one_the_largest_weight_counts():
    first = overlay("a", weight=2, capacity={"x.io/gpu": "4"})
    second = overlay("b", weight=1, capacity={"x.io/gpu": "8", "x.io/nic": "2"})
    found = evaluated(map(overlay_of, (first, second)), {"p": {}}, [sold("m")]).applied("p", sold("m"))
    assert found.allocatable == {"cpu": 900, "x.io/gpu": 4, "x.io/nic": 2}
    assert found.capacity == {"cpu": 1000, "x.io/gpu": 4, "x.io/nic": 2}


def test_two_of_one_weight_contradict_each_other_and_the_second_counts_nowhere():
    """Of equal weights the later name is the first, as upstream; the pool is closed besides."""
    early, late = overlay("early", (ZONE, "In", "a"), price="3"), overlay("late", price="2")
    found = evaluated(map(overlay_of, (early, late)), {"p": {}, "q": {}}, [sold("m")])
    assert set(found.prices["p", "m"].values()) == {overlay_of(late).price}
    assert set(found.closed) == {"p", "q"}
    assert "NodeOverlays early and late have the same weight" in found.closed["p"]
    apart = overlay("early", (ZONE, "In", "a"), price="3"), overlay("late", (ZONE, "In", "b"), price="2")
    assert not evaluated(map(overlay_of, apart), {"p": {}}, [sold("m")]).closed
    other = overlay("early", capacity={"x.io/gpu": "1"}), overlay("late", capacity={"x.io/gpu": "1"})
    assert evaluated(map(overlay_of, other), {"p": {}}, [sold("m")]).closed


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"price": "1", "priceAdjustment": "+1%"}, "spec.priceAdjustment"),
        ({"price": "-1"}, "spec.price"),
        ({"price": "NaN"}, "spec.price"),
        ({"priceAdjustment": "10%"}, "spec.priceAdjustment"),
        ({"priceAdjustment": "-101%"}, "spec.priceAdjustment"),
        ({"weight": 0}, "spec.weight"),
        ({"weight": 10001}, "spec.weight"),
        ({"capacity": {"cpu": "4"}}, "spec.capacity.cpu"),
        ({"capacity": {"x.io/gpu": "many"}}, "spec.capacity.x.io/gpu"),
        ({"capacity": {"x.io/gpu": "-1"}}, "spec.capacity.x.io/gpu"),
        ({"requirements": [{"key": "k", "operator": "Like", "values": ["v"]}]}, "spec.requirements[0]"),
    ],
)
def test_one_that_contradicts_itself_names_the_field_and_closes_the_pools_it_is_about(spec, field):
    with pytest.raises(Invalid) as caught:
        overlay_of(decode({"metadata": {"name": "o"}, "spec": spec}, NodeOverlay))
    assert caught.value.path.startswith(field)
    overlays = NodeOverlays()
    overlays.see_pool("p", {})
    requirements = [{"key": "karpenter.sh/nodepool", "operator": "In", "values": ["q"]}]
    overlays.put(
        decode({"metadata": {"name": "o"}, "spec": {"requirements": requirements, **spec}}, NodeOverlay)
    )
    overlays.see_pool("q", {})
    types = {"m": sold("m")}
    closed = overlays.types(types, 0).closed
    assert set(closed) == ({"p", "q"} if "requirements" in spec else {"q"})
    assert "NodeOverlay o cannot be understood" in closed["q"]
    overlays.drop("o")
    assert not overlays.types(types, 0).closed


@given(
    st.permutations(
        [overlay(f"o{number}", weight=number + 1, priceAdjustment=f"+{number}%") for number in range(4)]
    )
)
def test_the_order_in_which_they_come_does_not_matter(overlays):
    assert list({*prices(*overlays).values()}) == [pytest.approx(1.03)]
