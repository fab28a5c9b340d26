"""Deadlines, objects that cannot be read, and clusters with something missing."""

from karpool.cluster import kinds
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import PlanSettings
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type


def many(count: int) -> BuiltCluster:
    cluster = BuiltCluster()
    cluster.pool()
    for number in range(count):
        cluster.node(f"n{number:03}")
        cluster.pod(f"web-{number}", f"n{number:03}", cpu=900)
    return cluster


class Ticking:
    """Every look at the clock takes a second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def test_a_deadline_gives_the_best_so_far_and_names_what_was_not_looked_at():
    view = many(100).view()
    whole = plan_consolidation(view, now=NOW)
    cut = plan_consolidation(view, PlanSettings(deadline_seconds=20), NOW, elapsed=Ticking())
    assert 0 < len(cut.moves) < len(whole.moves)
    (missed,) = cut.not_looked_at
    assert missed.nodes and "20 s" in missed.why
    held = {each.node: each.why[0].reason for each in cut.held}
    assert all(held[name] == "not_looked_at" for name in missed.nodes)
    moved = {name for move in cut.moves for name in move.names}
    assert len(moved) + len(cut.held) == 100
    assert not whole.not_looked_at


def test_a_deadline_that_has_passed_moves_nothing_but_what_is_empty():
    for count in (3, 30):
        cluster = many(count)
        cluster.node("empty")
        plan = plan_consolidation(cluster.view(), PlanSettings(deadline_seconds=0), NOW, elapsed=Ticking())
        assert [move.names for move in plan.moves] == [("empty",)]
        assert len(plan.not_looked_at[0].nodes) == count


def test_one_broken_object_among_many_is_listed_and_the_rest_is_planned():
    cluster = many(50)
    clean = plan_consolidation(cluster.view(), now=NOW)
    raw = {"metadata": {"name": "bad", "namespace": "other"}, "spec": {"maxUnavailable": "lots"}}
    cluster.tell(kinds.BUDGETS, "other", "bad", raw)
    cluster.pool("typo", requirements=[{"key": "x", "operator": "Near", "values": ["y"]}])
    cluster.pod("odd", spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]})
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert [move.id for move in plan.moves] == [move.id for move in clean.moves]
    text = "\n".join(plan.problems)
    assert all(part in text for part in ("other/bad", "lots", "NodePool typo", "Near", "team/odd", "much"))
    assert next(pool for pool in plan.pools if pool.name == "typo").why


def test_a_budget_that_cannot_be_read_holds_the_pods_of_its_namespace():
    cluster = many(5)
    raw = {"metadata": {"name": "bad", "namespace": "team"}, "spec": {"maxUnavailable": "lots"}}
    cluster.tell(kinds.BUDGETS, "team", "bad", raw)
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert not plan.moves
    assert {each.why[0].reason for each in plan.held} == {"pdb_blocked"}


def test_a_claim_without_a_node_and_a_node_without_a_price_are_listed():
    types = catalogue(instance_type("medium", 4000, 16, 0.2), instance_type("odd", 4000, 16, None))
    cluster = BuiltCluster(types)
    cluster.pool(disruption={"consolidationPolicy": "Balanced"})
    cluster.claim("dangling")
    cluster.node("priced")
    cluster.node("odd", "odd")
    for name in ("priced", "odd"):
        cluster.pod(f"web-{name}", name)
    plan = plan_consolidation(cluster.view(), now=NOW)
    held = {each.node: each.why[0].reason for each in plan.held}
    assert held["dangling"] == "no_node"
    assert [move.names for move in plan.moves] == [("priced",)]
    (pool,) = plan.pools
    assert (pool.nodes, pool.unpriced, pool.disruption) == (3, 2, 5.0)
    assert plan.before.unpriced == 1


def test_a_cluster_with_nothing_in_it_has_an_empty_plan():
    plan = plan_consolidation(BuiltCluster().view(), now=NOW)
    assert (plan.moves, plan.held, plan.savings_per_hour) == ((), (), 0)


def test_nodes_of_no_pool_are_only_places_to_go():
    cluster = BuiltCluster()
    cluster.pool()
    cluster.node("own", managed=False, labels={"karpenter.sh/nodepool": None})
    cluster.node("rented")
    cluster.pod("web", "rented")
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert [pod.node for move in plan.moves for pod in move.pods] == ["own"]
