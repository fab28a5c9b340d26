"""Plans that are carried out as they say come true, save what they promise, and come to an end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster import kinds
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.market import Market
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, view_of
from karpool.model.catalogue.files import load_shipped
from karpool.model.kubernetes.api_resources import ObjectKey
from tests.cluster.feeding import tell
from tests.consolidation.cluster_objects import SIZES, node, pod, pool

NOW = 1_780_000_000.0
CATALOGUE = load_shipped("us-east-1", zones={"us-east-1a": None})
ROUNDS_MAX = 12


class BuiltCluster:
    """Nodes by name with their type and pool, and pods with their node and milli-CPU."""

    def __init__(self, nodes, pods):
        self.nodes = dict(nodes)
        self.pods = dict(pods)
        self.born = 0

    def view(self):
        cluster = Cluster(ASPECTS, market=Market(CATALOGUE))
        for name in ("p0", "p1"):
            tell(cluster, kinds.NODEPOOLS, ObjectKey("", name), pool(name), NOW)
        for name, (type_, owner) in self.nodes.items():
            raw, claim = node(name, type_, pool=owner)
            tell(cluster, kinds.NODES, ObjectKey("", name), raw, NOW)
            tell(cluster, kinds.NODECLAIMS, ObjectKey("", claim["metadata"]["name"]), claim, NOW)
        for name, (where, cpu) in self.pods.items():
            tell(cluster, kinds.PODS, ObjectKey("team", name), pod(name, where, cpu=f"{cpu}m"), NOW)
        return view_of(cluster.snapshot(NOW), NOW)

    def carry_out(self, plan):
        for move in plan.moves:
            names = []
            for new in move.new_nodes:
                self.born += 1
                names.append(f"new-{self.born}")
                self.nodes[names[-1]] = new.chosen.instance_type, new.pool
            for each in move.pods:
                name = each.pod.removeprefix("team/")
                target = each.node or names[each.new_node]
                self.pods[name] = target, self.pods[name][1]
            for gone in move.names:
                del self.nodes[gone]

    def free(self):
        left = {name: 1000 * int(SIZES[type_][0]) for name, (type_, _) in self.nodes.items()}
        for where, cpu in self.pods.values():
            left[where] -= cpu
        return left


@st.composite
def clusters(draw):
    nodes, pods = {}, {}
    for number in range(draw(st.integers(1, 7))):
        type_ = draw(st.sampled_from(sorted(SIZES)))
        name = f"n{number}"
        nodes[name] = type_, draw(st.sampled_from(["p0", "p1"]))
        left = 1000 * int(SIZES[type_][0])
        for index in range(draw(st.integers(0, 6))):
            cpu = draw(st.sampled_from([100, 250, 500, 900, 1500]))
            if cpu <= left:
                left -= cpu
                pods[f"{name}-{index}"] = name, cpu
    return BuiltCluster(nodes, pods)


POLICIES = [
    PolicyOverride(PolicyName.WHEN_EMPTY),
    PolicyOverride(PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED),
    PolicyOverride(PolicyName.BALANCED, 1),
    PolicyOverride(PolicyName.BALANCED, 2),
    PolicyOverride(PolicyName.BALANCED, 3),
]


@pytest.mark.long
@given(cluster=clusters(), override=st.sampled_from(POLICIES))
@settings(max_examples=40)
def test_carried_out_again_and_again_they_end_with_nothing_to_move(cluster, override):
    chosen = PlanSettings(override=override)
    cost = None
    for _ in range(ROUNDS_MAX):
        plan = plan_consolidation(cluster.view(), chosen, NOW)
        if cost is not None:
            assert plan.before.price_per_hour == pytest.approx(cost)
        if not plan.moves:
            return
        cost = plan.after.price_per_hour
        assert plan.before.price_per_hour - cost == pytest.approx(plan.savings_per_hour)
        assert plan.savings_per_hour > 0
        nodes = plan.after.nodes

        cluster.carry_out(plan)

        assert len(cluster.nodes) == nodes
        assert min(cluster.free().values(), default=0) >= 0
    raise AssertionError(f"still moving after {ROUNDS_MAX} rounds")


@pytest.mark.long
@given(cluster=clusters(), override=st.sampled_from(POLICIES))
@settings(max_examples=25)
def test_every_node_and_every_pod_is_accounted_for(cluster, override):
    plan = plan_consolidation(cluster.view(), PlanSettings(override=override), NOW)

    going = [name for move in plan.moves for name in move.names]
    assert sorted([*going, *(each.node for each in plan.held)]) == sorted(cluster.nodes)
    assert all(each.why for each in plan.held)
    assert all(each.why for each in plan.rejected)
    moved = sorted(pod.pod for move in plan.moves for pod in move.pods)
    assert moved == sorted(f"team/{name}" for name, (where, _) in cluster.pods.items() if where in going)
    assert not {pod.node for move in plan.moves for pod in move.pods} & set(going)


@pytest.mark.long
@given(cluster=clusters())
@settings(max_examples=15)
def test_the_same_cluster_gives_the_same_plan(cluster):
    first, second = (
        plan_consolidation(cluster.view(), PlanSettings(override=POLICIES[3]), NOW) for _ in range(2)
    )

    assert first == second
