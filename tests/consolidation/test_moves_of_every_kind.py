"""Empty, delete, replace, several to one, one to two: when each is found, and when it is refused."""

import pytest

from karpool.consolidation.planning.plan import ConsolidationPlan, MoveKind
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model.karpenter.objects import ON_DEMAND, SPOT
from karpool.packing.new_nodes.offerings import StockOut
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type

BOTH = {ON_DEMAND: 1.0, SPOT: 0.4}


def shown(plan: ConsolidationPlan) -> list[tuple[str, tuple[str, ...], list[str]]]:
    return [
        (move.kind.value, move.names, [new.chosen.instance_type for new in move.new_nodes])
        for move in plan.moves
    ]


def reason(plan: ConsolidationPlan, node: str) -> str:
    return next(each.why[0].reason for each in plan.held if each.node == node)


def lonely(kind: str = "large", cpu: int = 500, types=None, **node) -> BuiltCluster:
    """A node with one pod, and no other."""
    cluster = BuiltCluster(types)
    cluster.pool()
    cluster.node("only", kind, **node)
    cluster.pod("web", "only", cpu=cpu)
    return cluster


class TestEmpty:
    def test_daemons_and_pods_that_cost_nothing_do_not_keep_a_node(self):
        cluster = BuiltCluster()
        cluster.pool(disruption={"consolidationPolicy": "WhenEmpty"})
        cluster.node("idle")
        cluster.pod("log", "idle", owner="DaemonSet")
        cluster.pod("static", "idle", owner="Node")
        cluster.pod("filler", "idle", priority=-1_000_000_000)
        plan = plan_consolidation(cluster.view(), now=NOW)
        (move,) = plan.moves
        assert (move.kind, move.score, move.disturbed) == (MoveKind.EMPTY, None, 0)
        assert [(pod.pod, pod.node) for pod in move.pods] == [("team/filler", "")]
        assert "will be pending" in move.notes[0]

    def test_an_ordinary_pod_does(self):
        cluster = BuiltCluster()
        cluster.pool(disruption={"consolidationPolicy": "WhenEmpty"})
        cluster.node("used")
        cluster.pod("web", "used", priority=-10)
        assert not plan_consolidation(cluster.view(), now=NOW).moves

    def test_a_node_without_a_price_may_go_and_saves_nothing(self):
        cluster = BuiltCluster(catalogue(instance_type("odd", 4000, 16, None)))
        cluster.pool()
        cluster.node("idle", "odd")
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert (len(plan.moves), plan.savings_per_hour, plan.before.unpriced) == (1, 0.0, 1)


class TestReplace:
    def test_the_cheapest_type_that_holds_the_pods_replaces_a_node(self):
        plan = plan_consolidation(lonely().view(), now=NOW)
        assert shown(plan) == [("replace", ("only",), ["small"])]
        (move,) = plan.moves
        assert move.savings_per_hour == pytest.approx(0.3)
        assert [(pod.pod, pod.new_node) for pod in move.pods] == [("team/web", 0)]
        assert move.new_nodes[0].pods == ("team/web",)
        assert plan.after.price_per_hour == pytest.approx(0.1)

    def test_never_by_the_same_type_or_the_same_price(self):
        types = catalogue(instance_type("one", 4000, 16, 0.2), instance_type("two", 4000, 16, 0.2))
        assert not plan_consolidation(lonely("one", types=types).view(), now=NOW).moves

    def test_what_is_out_of_stock_or_may_cost_more_is_not_asked_for(self):
        cluster = lonely()
        plan = plan_consolidation(cluster.view(unavailable=[StockOut("small")]), now=NOW)
        assert shown(plan) == [("replace", ("only",), ["medium"])]
        dear = instance_type("dear", 2000, 8, 0.1, zones=("z1",)).sold_as(
            [
                *instance_type("dear", 2000, 8, 0.1).offerings,
                *instance_type("x", 1, 1, 9.0, zones=("z2",)).offerings,
            ]
        )
        types = catalogue(dear, instance_type("large", 8000, 32, 0.4))
        assert not plan_consolidation(lonely(types=types).view(), now=NOW).moves

    def test_the_limits_of_the_pool_hold_for_the_new_node_next_to_the_old(self):
        for limit, moves in (("8", 0), ("10", 1)):
            cluster = lonely()
            cluster.pool(spec={"limits": {"cpu": limit}})
            assert len(plan_consolidation(cluster.view(), now=NOW).moves) == moves

    def test_a_type_whose_price_nobody_knows_replaces_nothing(self):
        types = catalogue(instance_type("odd", 2000, 8, None), instance_type("large", 8000, 32, 0.4))
        plan = plan_consolidation(lonely(types=types).view(), now=NOW)
        assert reason(plan, "only") == "not_cheaper"

    def test_min_values_hold_among_the_types_that_are_cheaper(self):
        for least, moves in ((2, 1), (3, 0)):
            cluster = lonely()
            key = "node.kubernetes.io/instance-type"
            requirement = {"key": key, "operator": "Exists", "minValues": least}
            cluster.pool(requirements=[requirement])
            plan = plan_consolidation(cluster.view(), now=NOW)
            assert len(plan.moves) == moves
            for move in plan.moves:
                assert len(move.new_nodes[0].options) >= least


class TestSpot:
    def many(self, count: int) -> BuiltCluster:
        types = [
            instance_type(f"t{number:02}", 2000 + number, 8, 0.1 + number / 1000, kinds=BOTH)
            for number in range(count)
        ]
        return lonely(
            "big",
            types=catalogue(*types, instance_type("big", 8000, 32, 0.8, kinds=BOTH)),
            capacity_type=SPOT,
        )

    def test_on_demand_is_replaced_by_spot_alone_where_the_pool_allows_it(self):
        types = catalogue(
            instance_type("small", 2000, 8, 0.1, kinds=BOTH), instance_type("large", 8000, 32, 0.4)
        )
        (move,) = plan_consolidation(lonely(types=types).view(), now=NOW).moves
        assert {choice.capacity_type for choice in move.new_nodes[0].options} == {SPOT}

    def test_spot_is_replaced_by_spot_only_if_switched_on(self):
        assert reason(plan_consolidation(self.many(20).view(), now=NOW), "only") == "spot_to_spot"
        plan = plan_consolidation(self.many(20).view(), PlanSettings(spot_to_spot=True), NOW)
        (move,) = plan.moves
        assert len(move.new_nodes[0].options) == 15

    def test_and_only_with_fifteen_cheaper_types(self):
        plan = plan_consolidation(self.many(14).view(), PlanSettings(spot_to_spot=True), NOW)
        assert reason(plan, "only") == "spot_to_spot"
        assert plan_consolidation(self.many(15).view(), PlanSettings(spot_to_spot=True), NOW).moves


class TestSeveral:
    def test_two_nodes_become_one(self):
        """Neither holds the pods of the other, and no small one holds its own."""
        types = catalogue(instance_type("half", 4000, 16, 0.3), instance_type("whole", 8000, 32, 0.4))
        cluster = BuiltCluster(types)
        cluster.pool()
        for name in ("a", "b"):
            cluster.node(name, "half")
            cluster.pod(f"web-{name}", name, cpu=3000)
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert shown(plan) == [("replace", ("a", "b"), ["whole"])]
        assert plan.savings_per_hour == pytest.approx(0.2)

    def test_one_node_becomes_two_when_that_is_cheaper(self):
        types = catalogue(instance_type("small", 2000, 8, 0.1), instance_type("huge", 16000, 64, 0.8))
        cluster = BuiltCluster(types)
        cluster.pool()
        cluster.node("huge", "huge")
        for number in range(2):
            cluster.pod(f"web-{number}", "huge", cpu=1500)
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert shown(plan) == [("replace", ("huge",), ["small", "small"])]

    def test_three_nodes_become_two(self):
        types = catalogue(instance_type("six", 6000, 24, 0.3), instance_type("nine", 9000, 36, 0.4))
        cluster = BuiltCluster(types)
        cluster.pool()
        for number in range(3):
            cluster.node(f"n{number}", "six")
            for pod in range(2):
                cluster.pod(f"web-{number}-{pod}", f"n{number}", cpu=2900)
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert shown(plan) == [("replace", ("n0", "n1", "n2"), ["nine", "nine"])]

    def test_in_a_larger_cluster_too(self):
        types = catalogue(instance_type("half", 4000, 16, 0.3), instance_type("whole", 8000, 32, 0.4))
        cluster = BuiltCluster(types)
        cluster.pool()
        for number in range(200):
            cluster.node(f"n{number:03}", "half")
            cluster.pod(f"web-{number}", f"n{number:03}", cpu=3000)
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert plan.savings_per_hour >= 0.9 * 100 * 0.2
        assert all(len(move.nodes) > 1 for move in plan.moves)


class TestPlaces:
    def test_pending_pods_and_pods_of_leaving_nodes_take_their_room_first(self):
        def cluster() -> BuiltCluster:
            built = BuiltCluster()
            built.pool(
                requirements=[{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]
            )
            built.node("a")
            built.node("b")
            for name in "ab":
                built.pod(f"web-{name}", name, cpu=1500)
            return built

        assert len(plan_consolidation(cluster().view(), now=NOW).moves) == 1
        waiting = cluster()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        waiting.pod("soon", cpu=2000, status={"conditions": [condition]})
        assert not plan_consolidation(waiting.view(), now=NOW).moves
        leaving = cluster()
        leaving.node("c", deleting=True)
        leaving.pod("web-c", "c", cpu=2000)
        assert not plan_consolidation(leaving.view(), now=NOW).moves

    def test_nothing_is_sent_to_nodes_that_are_cordoned_tainted_or_starting(self):
        taint = {"key": "own", "effect": "NoSchedule"}
        for changes in ({"taints": [taint]}, {"initialized": False}, {"deleting": True}):
            cluster = lonely("small")
            cluster.node("other", annotations={"karpenter.sh/do-not-disrupt": "true"}, **changes)
            assert not plan_consolidation(cluster.view(), now=NOW).moves

    def test_a_node_that_receives_pods_does_not_go_in_the_same_plan(self):
        cluster = BuiltCluster()
        cluster.pool()
        for number in range(20):
            cluster.node(f"n{number}")
            cluster.pod(f"web-{number}", f"n{number}", cpu=900)
        plan = plan_consolidation(cluster.view(), now=NOW)
        gone = {name for move in plan.moves for name in move.names}
        targets = {pod.node for move in plan.moves for pod in move.pods if pod.node}
        assert gone and targets and not gone & targets


class TestPodsThatDependOnOthers:
    def apart(self, app: str, key: str = "kubernetes.io/hostname") -> dict:
        term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
        return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}

    def test_they_do_not_join_those_they_keep_away_from(self):
        cluster = BuiltCluster()
        cluster.pool()
        for name in ("a", "b"):
            cluster.node(name, "small")
            cluster.pod(f"db-{name}", name, labels={"app": "db"}, spec=self.apart("db"))
        assert not plan_consolidation(cluster.view(), now=NOW).moves

    def test_they_get_a_smaller_node_of_their_own(self):
        cluster = BuiltCluster()
        cluster.pool()
        cluster.node("small", "small")
        cluster.node("large", "large")
        for name in ("small", "large"):
            cluster.pod(f"db-{name}", name, labels={"app": "db"}, spec=self.apart("db"))
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert shown(plan) == [("replace", ("large",), ["small"])]

    def test_and_in_the_zone_where_they_may_run(self):
        types = [
            instance_type(name, cpu, cpu / 250, cpu / 20000, zones=("z1", "z2"))
            for name, cpu in (("small", 2000), ("large", 8000))
        ]
        cluster = BuiltCluster(catalogue(*types))
        cluster.pool()
        away = self.apart("db", "topology.kubernetes.io/zone")
        for name, kind, zone in (("first", "small", "z1"), ("second", "large", "z2")):
            cluster.node(name, kind, zone=zone)
            cluster.pod(f"db-{name}", name, cpu=1500, labels={"app": "db"}, spec=away)
        plan = plan_consolidation(cluster.view(), now=NOW)
        assert shown(plan) == [("replace", ("second",), ["small"])]
        assert {option.zone for option in plan.moves[0].new_nodes[0].options} == {"z2"}
