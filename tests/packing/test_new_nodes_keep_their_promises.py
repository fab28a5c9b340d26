"""Properties of any packing, checked from its result alone."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.taints import untolerated
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.tables.room import snapshot_of
from tests.packing.naive_topology import NaiveCluster
from tests.packing.pool_cases import (
    ZONES,
    catalogue,
    instance_type,
    instance_types,
    pack_cases,
    pending,
    roomy_cases,
)
from tests.packing.topology_cases import NAMESPACES

cases = pack_cases() | roomy_cases()


def by_name(case):
    return (
        {pod.name: pod for pod in case.pods},
        {each.name: each for each in case.types},
        {pool.name: pool for pool in case.pools},
    )


@pytest.mark.long
@given(cases)
@settings(max_examples=50, deadline=None)
def test_every_pod_is_in_exactly_one_place(case):
    packing = case.pack()

    found = [pod for node in packing.nodes for pod in node.pods]
    found += [*packing.placed, *(each.pod for each in packing.left)]
    assert Counter(found) == Counter(pod.name for pod in case.pods)


@pytest.mark.long
@given(cases)
@settings(max_examples=50, deadline=None)
def test_every_option_holds_the_pods_and_its_daemons(case):
    pods, types, pool_of = by_name(case)
    naive = case.naive()

    for node in case.pack().nodes:
        for option in node.options:
            chosen, pool = types[option.instance_type], pool_of[node.pool]
            shapes = [pods[name].shape for name in node.pods]
            total = Counter(pods=len(shapes))
            for shape in (*shapes, *naive.daemons_on(pool, chosen)):
                total.update(dict(shape.requests))
            total["pods"] += len(list(naive.daemons_on(pool, chosen)))
            assert all(chosen.allocatable.get(name, 0) >= units for name, units in total.items())
        least = {
            name: min(types[o.instance_type].allocatable.get(name, 0) for o in node.options)
            for name in node.requests
        }
        assert all(units <= least[name] for name, units in node.requests.items())


@pytest.mark.long
@given(cases)
@settings(max_examples=50, deadline=None)
def test_only_offerings_in_stock_are_used_and_the_cheapest_comes_first(case):
    _, types, _ = by_name(case)
    naive = case.naive()

    for node in case.pack().nodes:
        for option in node.options:
            stock = {
                (o.zone, o.capacity_type): o.price_per_hour
                for o in naive.in_stock(types[option.instance_type])
            }
            assert stock[option.zone, option.capacity_type] == option.price_per_hour
        prices = [o.price_per_hour for o in node.options]
        known = [price for price in prices if price is not None]
        assert known == sorted(known)
        assert prices == known + [None] * (len(prices) - len(known))


@pytest.mark.long
@given(cases)
@settings(max_examples=50, deadline=None)
def test_limits_hold_whichever_option_is_launched(case):
    _, types, pool_of = by_name(case)
    packing = case.pack()

    for name, pool in pool_of.items():
        nodes = [node for node in packing.nodes if node.pool == name]
        for resource, limit in pool.limits.items():
            left = limit - case.usage.get(name, {}).get(resource, 0)
            if resource == "nodes":
                needed = len(nodes)
            elif case.options.limits == "exact":
                needed = sum(types[node.chosen.instance_type].capacity[resource] for node in nodes)
            else:
                needed = sum(
                    max(types[o.instance_type].capacity[resource] for o in node.options) for node in nodes
                )
            assert not nodes or needed <= left


@pytest.mark.long
@given(cases)
@settings(max_examples=50, deadline=None)
def test_pods_tolerate_the_pool_they_are_planned_on(case):
    pods, _, pool_of = by_name(case)

    for node in case.pack().nodes:
        assert all(
            untolerated(pool_of[node.pool].taints, pods[pod].shape.tolerations) is None for pod in node.pods
        )


@pytest.mark.long
@given(cases)
@settings(max_examples=80, deadline=None)
def test_anti_affinity_holds_in_both_directions(case):
    pods, _, _ = by_name(case)
    packing = case.pack()
    cluster = NaiveCluster(case.nodes, NAMESPACES)
    rows = {node.name: node.labels for node in case.nodes}
    placed = [(pods[pod].shape, rows[name]) for pod, name in packing.placed.items()]
    for number, node in enumerate(packing.nodes):
        labels = {HOSTNAME: f"planned {number}", ZONE: node.chosen.zone}
        placed += [(pods[pod].shape, labels) for pod in node.pods]
    bound = [(shape, case.nodes[row].labels) for shape, row in case.bound]

    for mine, here in placed:
        for other, there in (*placed, *bound):
            if mine is other and here is there and placed.count((mine, here)) == 1:
                continue
            for owner, target in ((mine, other), (other, mine)):
                for term in owner.anti_affinity:
                    key = term.topology_key
                    if key in (HOSTNAME, ZONE) and cluster.selects(term, owner, target):
                        assert here.get(key) is None or here.get(key) != there.get(key)


WORKLOADS = (
    "zone spread",
    "host spread",
    "zone apart",
    "host apart",
    "zone together",
    "host together",
    "plain",
)


def workload(name, kind, cpu, skew=1):
    app = LabelMatcher((LabelRequirement("app", "In", frozenset((name,))),))
    shape = PodShape(requests=(("cpu", cpu),), namespace="default", labels=(("app", name),))
    key = ZONE if kind.startswith("zone") else HOSTNAME
    term = AffinityTerm(app, key, frozenset(("default",)))
    if kind.endswith("spread"):
        return replace(shape, spreads=(TopologySpread(skew, key, True, app),))
    if kind.endswith("apart"):
        return replace(shape, anti_affinity=(term,))
    return replace(shape, affinity=(term,)) if kind.endswith("together") else shape


@given(
    st.lists(
        st.tuples(
            st.sampled_from(WORKLOADS),
            st.integers(1, 8),
            st.sampled_from([300, 1000, 2500]),
            st.integers(1, 2),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=50, deadline=None)
def test_each_workload_is_spread_and_kept_together_as_it_asks(chosen):
    types = [instance_type(f"t{cpu}", cpu, 64, price=float(cpu), pods=20) for cpu in (2, 4, 8)]
    shapes = {f"w{n}": workload(f"w{n}", kind, cpu, skew) for n, (kind, _, cpu, skew) in enumerate(chosen)}
    pods = [
        pending(f"w{n}-{replica}", shapes[f"w{n}"])
        for n, (_, replicas, _, _) in enumerate(chosen)
        for replica in range(replicas)
    ]

    packing = pack_new_nodes(snapshot_of(()), pods, [CompiledPool("general")], catalogue(*types))

    left = Counter(each.pod.partition("-")[0] for each in packing.left)
    for n, (kind, replicas, _, skew) in enumerate(chosen):
        zones, hosts = Counter(dict.fromkeys(ZONES, 0)), Counter()
        for number, node in enumerate(packing.nodes):
            here = sum(pod.startswith(f"w{n}-") for pod in node.pods)
            zones[node.chosen.zone] += here
            hosts[number] += here
        counts = zones if kind.startswith("zone") else hosts
        stranded = left[f"w{n}"]
        if kind.endswith("spread"):
            assert max(counts.values()) - (min(zones.values()) if counts is zones else 0) <= skew
            assert stranded == 0
        elif kind.endswith("apart"):
            assert max(counts.values()) <= 1
            assert stranded == (max(0, replicas - 3) if counts is zones else 0)
        elif kind.endswith("together"):
            assert sum(count > 0 for count in counts.values()) == 1
            assert counts is hosts or stranded == 0
        else:
            assert stranded == 0


def topology_free(case):
    pods = [
        replace(
            pod,
            shape=replace(
                pod.shape,
                spreads=(),
                affinity=(),
                anti_affinity=(),
                host_ports=frozenset(),
                preferred_affinity=(),
                preferred_anti_affinity=(),
                preferred_nodes=(),
            ),
        )
        for pod in case.pods
    ]
    unlimited = [replace(pool, limits={}) for pool in case.pools]
    return replace(case, pods=pods, pools=unlimited, nodes=[], bound=[])


def stranded(case):
    return {each.pod for each in case.pack().left}


@pytest.mark.long
@given(pack_cases(), instance_types())
@settings(max_examples=50, deadline=None)
def test_a_wider_catalogue_or_smaller_pods_strand_nobody_new(case, more):
    case = topology_free(case)
    before = stranded(case)

    # A type that carries all labels some type has: lacking one would itself be a difference.
    labels = {key: values for each in case.types for key, values in each.requirements.items()}
    wider = [
        replace(each, name=f"more-{each.name}", requirements={**labels, **each.requirements}) for each in more
    ]
    known = {key for each in case.types for key in each.requirements}
    wider = [each for each in wider if each.requirements.keys() <= known]
    smaller = [
        replace(
            pod,
            shape=replace(
                pod.shape, requests=tuple((name, (units + 1) // 2) for name, units in pod.shape.requests)
            ),
        )
        for pod in case.pods
    ]

    assert stranded(replace(case, types=[*case.types, *wider])) <= before
    assert stranded(replace(case, pods=smaller)) <= before


@pytest.mark.long
@given(pack_cases())
@settings(max_examples=60, deadline=None)
def test_without_limits_only_what_fits_nowhere_alone_is_left(case):
    case = topology_free(case)

    alone = {pod.name for pod in case.pods if replace(case, pods=[pod]).pack().left}
    assert stranded(case) == alone


def cheapest_by_trying_everything(sizes, types):
    """The least that any partition of the pods into nodes costs."""
    best = float("inf")
    for groups in product(range(len(sizes)), repeat=len(sizes)):
        cost = 0.0
        for group in set(groups):
            need = sum(size for size, where in zip(sizes, groups, strict=True) if where == group)
            count = groups.count(group)
            fits = [price for cpu, pods, price in types if cpu * 1000 >= need and pods >= count]
            cost += min(fits, default=float("inf"))
        best = min(best, cost)
    return best


@given(
    st.lists(st.sampled_from([500, 1000, 1500, 3000]), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 4), st.sampled_from([1.0, 1.5, 2.0, 4.0])),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=60, deadline=None)
def test_never_cheaper_than_the_best_and_never_fewer_nodes_than_needed(sizes, shapes):
    types = [
        instance_type(f"t{n}", cpu, 64, price=price, pods=pods) for n, (cpu, pods, price) in enumerate(shapes)
    ]
    pods = [pending(f"p{n}", cpu=cpu) for n, cpu in enumerate(sizes)]

    packing = pack_new_nodes(snapshot_of(()), pods, [CompiledPool("general")], catalogue(*types))

    kept = {pod for node in packing.nodes for pod in node.pods}
    placed = [cpu for n, cpu in enumerate(sizes) if f"p{n}" in kept]
    best = cheapest_by_trying_everything(placed, shapes) if placed else 0.0
    assert sum(node.chosen.price_per_hour for node in packing.nodes) >= best - 1e-9
    largest, most = max(cpu for cpu, _, _ in shapes) * 1000, max(pods for _, pods, _ in shapes)
    assert len(packing.nodes) >= max(-(-sum(placed) // largest), -(-len(placed) // most))


@pytest.mark.long
@given(cases, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_input_does_not_matter(case, chance):
    def shuffled(values):
        return chance.sample(list(values), len(values))

    mixed = replace(
        case,
        pods=shuffled(case.pods),
        pools=[
            replace(pool, requirements=dict(shuffled(pool.requirements.items())))
            for pool in shuffled(case.pools)
        ],
        types=[
            replace(
                each,
                requirements=dict(shuffled(each.requirements.items())),
                offerings=tuple(shuffled(each.offerings)),
            )
            for each in shuffled(case.types)
        ],
        daemons=tuple(shuffled(case.daemons)),
    )

    assert mixed.pack() == case.pack()


PRINT = """
from bench.new_nodes import pack
packing, _ = pack(240, 40)
print([(node.pool, node.pods, node.chosen, len(node.options)) for node in packing.nodes], packing.left)
"""


@pytest.mark.long
def test_the_hash_seed_does_not_matter():
    found = {
        subprocess.run(
            [sys.executable, "-c", PRINT],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "42")
    }

    assert len(found) == 1


@pytest.mark.long
def test_shapes_of_cases_are_not_all_alike():
    """The properties above would be hollow if the cases never launched anything."""
    seen = Counter()

    @given(cases)
    @settings(max_examples=80, deadline=None, database=None, derandomize=True)
    def look(case):
        packing = case.pack()
        seen.update(planned=bool(packing.nodes), placed=bool(packing.placed), left=bool(packing.left))
        seen.update(shared=any(len(node.pods) > 1 for node in packing.nodes))

    look()

    assert all(seen[kind] > 5 for kind in ("planned", "placed", "left", "shared"))
