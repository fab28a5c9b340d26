"""The kernel's columns of launch prices are those of the plain rules, type by type."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from karpool.consolidation.methods.replacement_rules import cheaper_types
from karpool.consolidation.policy.prices import worst_launch_price
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, CompiledPool
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.relocation.single_node import SingleNodePacker

ZONES, KINDS = ("z1", "z2"), ("on-demand", "reserved", "spot")
places = st.sampled_from([(zone, kind) for zone in ZONES for kind in KINDS])
offerings = st.dictionaries(
    places, st.tuples(st.none() | st.sampled_from([0.1, 0.2, 0.3, 0.5]), st.booleans()), max_size=6
)


def instance_type(name, sold):
    listed = tuple(Offering(zone, kind, price, stock) for (zone, kind), (price, stock) in sold.items())
    amounts = {"cpu": 4000, "memory": 2**34, "pods": 50}
    return InstanceType(name, {}, amounts, amounts).sold_as(listed)


@given(
    sold=st.lists(offerings, min_size=1, max_size=4),
    zones=st.sets(st.sampled_from(ZONES), min_size=1),
    kinds=st.sets(st.sampled_from(KINDS), min_size=1),
    out=st.lists(places, max_size=2),
    ceiling=st.sampled_from([0.1, 0.25, 0.4, inf]),
)
def test_best_and_worst_price_and_what_is_cheaper(sold, zones, kinds, out, ceiling):
    types = [instance_type(f"t{number}", each) for number, each in enumerate(sold)]
    wanted = {ZONE: ValueSet(frozenset(zones)), CAPACITY_TYPE: ValueSet(frozenset(kinds))}
    kernel = SingleNodePacker(
        {0: PodShape(requests=(("cpu", 100),))},
        [CompiledPool("p", requirements=wanted)],
        Offerings(Catalogue("test", "r", types)),
        unavailable=[StockOut(None, zone, kind) for zone, kind in out],
    )

    def allows(each):
        return (
            each.zone in zones and each.capacity_type in kinds and (each.zone, each.capacity_type) not in out
        )

    found = {}
    cheap = []
    for fitting in kernel.fitting({0: 1}):
        names = fitting.state.offer.names
        for row in fitting.types.nonzero()[0].tolist():
            found[names[row]] = float(fitting.cheapest[row]), float(fitting.worst[row])
        kept = fitting.cheaper_than(ceiling)
        if kept is not None:
            cheap = sorted(names[row] for row in kept.types.nonzero()[0].tolist())

    worst = {each.name: worst_launch_price(each.offerings, allows) for each in types}
    for each in types:
        best, most = found.get(each.name, (inf, inf))
        sold = (
            offering.price_per_hour for offering in each.offerings if offering.available and allows(offering)
        )
        assert best == min((price for price in sold if price is not None), default=inf)
        assert most == (inf if worst[each.name] is None else worst[each.name])
    assert cheap == sorted(cheaper_types(worst, ceiling))
