"""Properties of whole plans, over random clusters with every kind of constraint."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.consolidation.execution.validation import is_stale, validate_all
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type

TYPES = (("t2", 2000, 0.1), ("t4", 4000, 0.19), ("t8", 8000, 0.41))
SETTINGS = (
    PlanSettings(override=PolicyOverride(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED)),
    PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 1)),
    PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 2), exhaustive_up_to=0),
    PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 3)),
)


def sold():
    return catalogue(
        *(instance_type(name, cpu, cpu / 250, price, zones=("z1", "z2")) for name, cpu, price in TYPES)
    )


def workload(chance: Random, number: int) -> dict:
    labels = {"app": f"app-{number}"}
    spec: dict = {}
    kind = chance.choice(("plain", "plain", "plain", "selector", "apart", "spread", "tolerant"))
    if kind == "selector":
        spec["nodeSelector"] = {ZONE: chance.choice(("z1", "z2"))}
    elif kind == "apart":
        term = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    elif kind == "spread":
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": ZONE,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    elif kind == "tolerant":
        spec["tolerations"] = [{"key": "own", "operator": "Exists"}]
    return {"labels": labels, "spec": spec, "cpu": chance.choice((250, 500, 1000, 1500)), "kind": kind}


def random_cluster(seed: int, *, order: int = 0) -> BuiltCluster:
    """`order` changes only the order in which objects arrive."""
    chance = Random(seed)
    cluster = BuiltCluster(sold())
    calls = []
    for pool in ("a", "b"):
        taints = [{"key": "own", "effect": "NoSchedule"}] if pool == "b" else []
        calls.append(
            (cluster.pool, (pool,), {"taints": taints, "disruption": {"budgets": [{"nodes": "80%"}]}})
        )
    workloads = [workload(chance, number) for number in range(5)]
    for number in range(chance.randint(2, 10)):
        name, pool = f"n{number}", chance.choice("aab")
        kind, cpu, _ = chance.choice(TYPES)
        taints = [{"key": "own", "effect": "NoSchedule"}] if pool == "b" else []
        zone = chance.choice(("z1", "z2"))
        calls.append((cluster.node, (name, kind, pool), {"zone": zone, "taints": taints}))
        left = cpu * chance.uniform(0.1, 1.0)
        for index in range(chance.randint(0, 5)):
            one = chance.choice(workloads)
            if one["cpu"] > left or (pool == "b" and one["kind"] != "tolerant"):
                continue
            left -= one["cpu"]
            about = {key: one[key] for key in ("labels", "spec")}
            calls.append((cluster.pod, (f"p{number}-{index}", name, one["cpu"]), about))
    if order:
        Random(order).shuffle(calls)
    for call, given_, named in calls:
        call(*given_, **named)
    return cluster


def check(cluster: BuiltCluster, plan: ConsolidationPlan) -> None:
    """What a plan promises, worked out again from the objects."""
    snapshot = cluster.cluster.snapshot().room
    gone = [name for move in plan.moves for name in move.names]
    assert len(gone) == len(set(gone))
    room = {
        name: [int(snapshot.free("cpu")[row]), int(snapshot.slots[row])]
        for row, name in enumerate(snapshot.names)
        if name not in gone
    }
    moved: list[str] = []
    for move in plan.moves:
        assert move.savings_per_hour > 0
        assert move.verdict.approved
        rooms_new = [list(new_room(new)) for new in move.new_nodes]
        for pod in move.pods:
            moved.append(pod.pod)
            shape = snapshot.shapes[snapshot.pods_on(snapshot.find(pod.source))[pod.pod]]
            cpu = dict(shape.requests)["cpu"]
            assert (pod.node == "") == (pod.new_node is not None)
            if pod.node:
                row = snapshot.find(pod.node)
                labels = snapshot.nodes.labels_of(row)
                assert all(labels.get(key) == value for key, value in shape.node_selector)
                place = room[pod.node]
            else:
                place = rooms_new[pod.new_node]
            place[0] -= cpu
            place[1] -= 1
            assert min(place) >= 0
        price = sum(new.price_per_hour for new in move.new_nodes)
        assert move.savings_per_hour == pytest.approx(sum(node.price_per_hour for node in move.nodes) - price)
    expected = [key for name in gone for key in snapshot.pods_on(snapshot.find(name))]
    assert sorted(moved) == sorted(expected)
    assert plan.after.price_per_hour == pytest.approx(plan.before.price_per_hour - plan.savings_per_hour)


def new_room(new) -> tuple[int, int]:
    cpu = next(cpu for name, cpu, _ in TYPES if name == new.chosen.instance_type)
    return cpu, 110


def kept_apart(cluster: BuiltCluster, plan: ConsolidationPlan) -> None:
    """No two pods that must not share a node do afterwards."""
    snapshot = cluster.cluster.snapshot().room
    target = {pod.pod: pod.node or f"{move.id}/{pod.new_node}" for move in plan.moves for pod in move.pods}
    seen: Counter[tuple[str, str]] = Counter()
    for row, name in enumerate(snapshot.names):
        for key, number in snapshot.pods_on(row).items():
            shape = snapshot.shapes[number]
            if shape.anti_affinity and key in target:
                seen[target[key], dict(shape.labels)["app"]] += 1
            elif shape.anti_affinity:
                seen[name, dict(shape.labels)["app"]] += 1
    moved_apps = {
        dict(snapshot.shapes[number].labels)["app"]
        for row, name in enumerate(snapshot.names)
        for key, number in snapshot.pods_on(row).items()
        if key in target and snapshot.shapes[number].anti_affinity
    }
    before = Counter(
        (name, dict(snapshot.shapes[number].labels)["app"])
        for row, name in enumerate(snapshot.names)
        for number in snapshot.pods_on(row).values()
        if snapshot.shapes[number].anti_affinity
    )
    for (place, app), count in seen.items():
        if app in moved_apps:
            assert count <= max(1, before[place, app])


@pytest.mark.long
@given(st.integers(0, 10**6), st.sampled_from(SETTINGS))
@settings(max_examples=400)
def test_every_pod_has_a_place_that_holds_it(seed, chosen):
    cluster = random_cluster(seed)
    plan = plan_consolidation(cluster.view(), chosen, NOW)
    check(cluster, plan)
    kept_apart(cluster, plan)
    names = [*(name for move in plan.moves for name in move.names), *(each.node for each in plan.held)]
    assert sorted(names) == sorted(cluster.cluster.snapshot().room.names)
    assert all(each.why for each in plan.held)


@pytest.mark.long
@given(st.integers(0, 10**6), st.sampled_from(SETTINGS))
@settings(max_examples=40)
def test_budgets_hold_over_the_whole_plan(seed, chosen):
    view = random_cluster(seed).view()
    plan = plan_consolidation(view, chosen, NOW)
    allowed = {pool.name: pool.allowed for pool in plan.pools}
    taken = Counter(node.pool for move in plan.moves for node in move.nodes)
    for pool, nodes in taken.items():
        assert nodes <= max(allowed[pool].values())


@pytest.mark.long
@given(st.integers(0, 10**6), st.integers(1, 5))
@settings(max_examples=25)
def test_the_same_cluster_gives_the_same_plan_in_whatever_order_it_arrives(seed, order):
    first, second = (
        plan_consolidation(random_cluster(seed, order=o).view(), SETTINGS[2], NOW) for o in (0, order)
    )
    assert first.fingerprint == second.fingerprint
    assert first.savings_per_hour == pytest.approx(second.savings_per_hour)
    assert [move.id for move in first.moves] == [move.id for move in second.moves]
    assert first == replace(second, held=first.held, rejected=first.rejected)
    assert sorted(first.held, key=repr) == sorted(second.held, key=repr)


@given(st.integers(0, 10**6), st.sampled_from(SETTINGS))
@settings(max_examples=25)
def test_a_plan_that_was_just_made_is_valid_and_not_stale(seed, chosen):
    cluster = random_cluster(seed)
    view = cluster.view()
    plan = plan_consolidation(view, chosen, NOW)
    assert not is_stale(plan, cluster.view())
    assert not any(validate_all(plan.moves, view, chosen, NOW).values())
