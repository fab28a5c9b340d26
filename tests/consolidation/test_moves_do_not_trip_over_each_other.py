"""Moves at the same time: limits, placeholders, and what only one of them can use."""

from dataclasses import replace

import pytest
import yaml

from karpool.cluster import kinds
from karpool.consolidation.execution import in_flight_view
from karpool.consolidation.execution.actuator import MoveActuator
from karpool.consolidation.execution.record import MovePhase, MoveRecord, from_object, to_object
from karpool.consolidation.execution.sharing import waiting_for
from karpool.consolidation.execution.step import ExecutionSettings
from karpool.consolidation.execution.validation import validate_all
from karpool.consolidation.planning.plan import MoveKind
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.model.contracts.contract import Contract
from karpool.model.contracts.contract_file import read_contract
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings, smart_pod
from tests.consolidation.built import NOW, BuiltCluster

HELD = {"karpenter.sh/do-not-disrupt": "true"}
HOSTNAME = "kubernetes.io/hostname"
APART = {
    "labelSelector": {"matchLabels": {"app": "db"}},
    "topologyKey": HOSTNAME,
}


def replaced(number: int, cpu: int = 500, contract: Contract | None = None, **pod: object) -> BuiltCluster:
    """So many large nodes, each with a pod that would do with a small one."""
    cluster = BuiltCluster(contract=contract)
    cluster.pool()
    for index in range(number):
        cluster.node(f"large-{index}", "large")
        cluster.pod(f"db-{index}", f"large-{index}", cpu=cpu, labels={"app": "db"}, **pod)
    return cluster


def apart() -> BuiltCluster:
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}}
    return replaced(3, spec={"affinity": anti})


def begun(cluster: BuiltCluster, phase: MovePhase = MovePhase.WAITING) -> list[MoveRecord]:
    view = cluster.view()
    plan = plan_consolidation(view, now=NOW)
    return [
        MoveRecord(move, phase, NOW + number, NOW, wanted=in_flight_view.wanted_of(move, view))
        for number, move in enumerate(plan.moves)
    ]


def pods_of(record: MoveRecord) -> list[dict]:
    ask = MoveActuator._ask
    request = ask(_Settings, record)
    return [
        smart_pod(request, candidate, index, SmartPodSettings())
        for index, candidate in enumerate(request.candidates)
    ]


class _Settings:
    settings = ExecutionSettings()


def test_an_untouched_plan_is_valid_within_tight_limits():
    """Each replacement may be small or medium; the largest type of the pool would not fit five times."""
    cluster = apart()
    usage = 3 * 8000
    cluster.pool(spec={"limits": {"cpu": f"{usage + 3 * 4000}m"}})
    plan = plan_consolidation(cluster.view(), now=NOW)
    assert [move.kind for move in plan.moves] == [MoveKind.REPLACE] * 3
    assert not any(validate_all(plan.moves, cluster.view(), now=NOW).values())


class TestPlaceholders:
    def test_each_keeps_apart_from_those_of_other_moves_and_from_nodes_that_came_for_them(self):
        for record in begun(apart()):
            for pod in pods_of(record):
                affinity = pod["spec"]["affinity"]
                terms = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                assert {
                    "labelSelector": {"matchLabels": {"tensor-fusion.ai/trigger-type": "replacement"}},
                    "namespaceSelector": {},
                    "topologyKey": HOSTNAME,
                } in terms
                assert pod["metadata"]["labels"]["tensor-fusion.ai/trigger-type"] == "replacement"
                (choice,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                    "nodeSelectorTerms"
                ]
                absent = {
                    entry["key"]
                    for entry in choice["matchExpressions"]
                    if entry["operator"] == "DoesNotExist"
                }
                assert absent == {"consolidation.karpool.dev/leaving", "consolidation.karpool.dev/arrived"}

    def test_under_a_contract_it_asks_only_for_what_costs_least(self):
        """Karpenter buys by its own list: a medium that was reserved would stand unused beside a small."""
        entry = {"name": "r", "kind": "reservation", "types": ["t3.medium"], "count": 1}
        text = yaml.safe_dump({"format": "karpool-contract/1", "commitments": [entry]})
        read = read_contract(text.encode())
        (reserved,) = read.commitments
        scope = replace(reserved.scope, types=type(reserved.scope.types)(["medium"]))  # as it is called here
        reserving = replace(read, commitments=(replace(reserved, scope=scope),))
        for contract, types in ((None, ["medium", "small"]), (reserving, ["medium"])):
            (record,) = begun(replaced(1, contract=contract))
            (pod,) = pods_of(record)
            (choice,) = pod["spec"]["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
            asked = {entry["key"]: entry.get("values") for entry in choice["matchExpressions"]}
            assert asked["node.kubernetes.io/instance-type"] == types

    def test_it_carries_the_rules_of_its_pods(self):
        records = begun(apart())
        assert records
        for record in records:
            (pod,) = pods_of(record)
            terms = pod["spec"]["affinity"]["podAntiAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
            own = {
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]},
                "namespaces": ["team"],
                "topologyKey": HOSTNAME,
            }
            assert own in terms

    def test_labels_that_its_pods_ask_of_a_node_are_asked_for(self):
        cluster = BuiltCluster()
        requirement = {"key": "disk", "operator": "In", "values": ["ssd", "hdd"]}
        cluster.pool(requirements=[requirement])
        cluster.node("large", "large", labels={"disk": "ssd"})
        cluster.pod("db", "large", spec={"nodeSelector": {"disk": "ssd"}})
        (record,) = begun(cluster)
        (pod,) = pods_of(record)
        (choice,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert {"key": "disk", "operator": "In", "values": ["ssd"]} in choice["matchExpressions"]

    def test_it_asks_for_nearly_a_whole_node_so_that_one_has_to_come(self):
        """The pod alone would fit into room that comes free elsewhere, and that others are promised."""
        cluster = replaced(1)
        (record,) = begun(cluster)
        cluster.node("full", "small", annotations=HELD)
        cluster.pod("busy", "full", cpu=1400)
        smallest = min(
            cluster.types.types[choice.instance_type].allocatable["cpu"]
            for choice in record.move.new_nodes[0].options
        )
        assert record.wanted[0].resources["cpu"] == int(0.9 * smallest)

    def test_a_record_comes_back_with_them(self):
        for record in begun(apart()):
            stored = {**to_object(record, "n")}
            stored["metadata"] |= {"uid": "u", "resourceVersion": "1"}
            found = from_object(decode(stored, ConfigMap))
            assert replace(found, uid="", version="") == record


def to_new_nodes(move):
    """The move, its pods sent to no node that others may send theirs to."""
    return replace(move, pods=tuple(replace(pod, node="", new_node=0) for pod in move.pods))


class TestWaiting:
    def test_moves_under_one_disruption_budget_begin_one_after_the_other(self):
        cluster = apart()
        cluster.budget("db", {"app": "db"}, 1)
        first, *others = begun(cluster)
        waits = waiting_for([first, *others], cluster.view())
        assert waits == {record.name: first.name for record in others}
        under_way = replace(others[0], phase=MovePhase.DELETING)
        assert set(waiting_for([first, under_way], cluster.view())) == {first.name}
        assert waiting_for([first, replace(under_way, phase=MovePhase.SETTLING)], cluster.view()) == {}

    @pytest.mark.parametrize(("allowed", "waiting"), [(1, 2), (2, 1), (3, 0)])
    def test_as_many_begin_as_the_budget_lets_go(self, allowed, waiting):
        cluster = apart()
        cluster.budget("db", {"app": "db"}, allowed)
        assert len(waiting_for(begun(cluster), cluster.view())) == waiting

    @pytest.mark.parametrize(("free", "waiting"), [(0, 2), (499, 2), (1000, 1), (1500, 0)])
    def test_as_many_begin_as_the_quota_has_room_for_successors(self, free, waiting):
        """A successor is admitted while the pod that goes still ends."""
        cluster = apart()
        status = {"hard": {"requests.cpu": "9"}, "used": {"requests.cpu": f"{9000 - free}m"}}
        cluster.tell(kinds.RESOURCE_QUOTAS, "team", "q", {"metadata": {"name": "q"}, "status": status})
        assert len(waiting_for(begun(cluster), cluster.view())) == waiting

    @pytest.mark.parametrize(
        ("key", "free", "waiting"), [("pods", 0, 2), ("count/pods", 2, 1), ("pods", 3, 0)]
    )
    def test_as_many_begin_as_the_quota_admits_pods(self, key, free, waiting):
        cluster = apart()
        status = {"hard": {key: "9", "pods": "9"}, "used": {"pods": "0", key: str(9 - free)}}
        cluster.tell(kinds.RESOURCE_QUOTAS, "team", "q", {"metadata": {"name": "q"}, "status": status})
        assert len(waiting_for(begun(cluster), cluster.view())) == waiting

    def test_a_quota_of_another_namespace_is_nobodys_business(self):
        cluster = apart()
        status = {"hard": {"cpu": "1"}, "used": {"cpu": "1"}}
        cluster.tell(kinds.RESOURCE_QUOTAS, "elsewhere", "q", {"metadata": {"name": "q"}, "status": status})
        assert waiting_for(begun(cluster), cluster.view()) == {}

    def test_without_anything_in_common_none_waits(self):
        cluster = apart()
        assert len(begun(cluster)) == 3
        assert waiting_for(begun(cluster), cluster.view()) == {}

    @pytest.mark.parametrize(("when", "waiting"), [("DoNotSchedule", 1), ("ScheduleAnyway", 0)])
    def test_moves_that_share_a_spread_constraint_do(self, when, waiting):
        constraint = {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "db"}},
        }
        cluster = replaced(3, cpu=1500, spec={"topologySpreadConstraints": [constraint]})
        records = [replace(record, move=to_new_nodes(record.move)) for record in begun(cluster)]
        assert len(records) == 2
        assert len(waiting_for(records, cluster.view())) == waiting

    def test_moves_that_send_pods_to_one_node_do(self):
        cluster = BuiltCluster()
        cluster.pool()
        cluster.node("target", "large", annotations=HELD)
        cluster.pod("busy", "target", cpu=3000)
        for name in ("a", "b"):
            cluster.node(name, "small")
            cluster.pod(f"web-{name}", name, cpu=1200)
        first, second = begun(cluster)
        assert {pod.node for record in (first, second) for pod in record.move.pods} == {"target"}
        assert waiting_for([second, first], cluster.view()) == {second.name: first.name}
