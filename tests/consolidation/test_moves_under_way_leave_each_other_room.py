"""Moves of one plan are carried out side by side: none takes the room that was planned for another, and
where the cluster has changed so that not all of them can be made, only as many give way as must."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster import kinds
from karpool.consolidation.execution import in_flight_view
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import Move, MoveKind
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import DEFAULTS
from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.times import rfc3339
from tests.consolidation.built import NOW, BuiltCluster, catalogue, instance_type
from tests.consolidation.small_clusters import MIB_PER_GIB, UNSCORED, small_cluster

HELD = {"karpenter.sh/do-not-disrupt": "true"}


def begun(cluster: BuiltCluster, move: Move, phase: MovePhase, created: float = NOW) -> MoveRecord:
    wanted = in_flight_view.wanted_of(move, cluster.view())
    return MoveRecord(move, phase, created, created, wanted=wanted)


def with_its_nodes(cluster: BuiltCluster, record: MoveRecord) -> MoveRecord:
    """The record, once the new nodes have come; they are young."""
    names = []
    for number, node in enumerate(record.move.new_nodes):
        names.append(f"new-{record.move.id}-{number}")
        cluster.node(names[-1], node.chosen.instance_type, age=1.0)
    return MoveRecord(
        record.move, record.phase, record.created, record.since, wanted=record.wanted, arrived=tuple(names)
    )


def objections(cluster: BuiltCluster, *records: MoveRecord, of: tuple[MoveRecord, ...] = ()) -> list[str]:
    """The code of what speaks against each record that is looked at, in their order; empty: nothing."""
    looked_at = of or records
    names = [record.name for record in looked_at]
    found = in_flight_view.objections(cluster.view(), records, names, DEFAULTS, NOW)
    return [found[name][0].reason if found[name] else "" for name in names]


def one_goes_one_is_replaced(**pool: object) -> tuple[BuiltCluster, Move, Move]:
    """There is room for one pod on the node that stays. It is planned for that of the spare node; the
    pod of the large one, smaller and thus able to take it, is to have a new node."""
    cluster = BuiltCluster()
    cluster.pool(**pool)
    cluster.node("stays", annotations=HELD)
    cluster.pod("busy", "stays", cpu=3000)
    cluster.node("spare", "small")
    cluster.pod("web", "spare", cpu=1000)
    cluster.node("large", "large", annotations=HELD)
    cluster.pod("api", "large", cpu=900)
    (goes,) = plan_consolidation(cluster.view(), now=NOW).moves
    assert [pod.node for pod in goes.pods] == ["stays"]
    cluster.node("large", "large")
    seen = in_flight_view.snapshot_with_moves(cluster.view(), [begun(cluster, goes, MovePhase.WAITING)])
    (replaced,) = plan_consolidation(seen, now=NOW).moves
    assert (replaced.kind, replaced.names) == (MoveKind.REPLACE, ("large",))
    return cluster, goes, replaced


@pytest.mark.parametrize(
    ("phase", "code"), [(MovePhase.WAITING, "changed"), (MovePhase.CORDONING, ""), (MovePhase.DELETING, "")]
)
def test_a_node_that_emptied_once_its_move_has_begun_goes_all_the_same(phase: MovePhase, code: str) -> None:
    cluster = BuiltCluster()
    cluster.pool()
    cluster.node("stays", annotations=HELD)
    cluster.pod("busy", "stays", cpu=1000)
    cluster.node("spare")
    cluster.pod("web", "spare", cpu=1000)
    (move,) = plan_consolidation(cluster.view(), now=NOW).moves
    assert objections(cluster, begun(cluster, move, phase)) == [""]
    cluster.gone(kinds.PODS, "team", "web")
    assert objections(cluster, begun(cluster, move, phase)) == [code]


class TestPodsMeantForANodeToCome:
    @pytest.mark.parametrize("phase", [MovePhase.WAITING, MovePhase.CORDONING])
    def test_take_no_room_of_another_move_before_it_is_there(self, phase: MovePhase) -> None:
        cluster, goes, replaced = one_goes_one_is_replaced()
        records = begun(cluster, goes, phase), begun(cluster, replaced, MovePhase.ASKING)
        assert objections(cluster, *records, of=records[:1]) == [""]

    def test_nor_when_it_is_there(self) -> None:
        cluster, goes, replaced = one_goes_one_is_replaced()
        asking = with_its_nodes(cluster, begun(cluster, replaced, MovePhase.ASKING))
        assert objections(cluster, begun(cluster, goes, MovePhase.CORDONING), asking) == ["", ""]

    def test_nor_when_their_old_node_goes(self) -> None:
        cluster, goes, replaced = one_goes_one_is_replaced()
        deleting = with_its_nodes(cluster, begun(cluster, replaced, MovePhase.DELETING))
        cluster.node("large", "large", deleting=True)
        cordoning = begun(cluster, goes, MovePhase.CORDONING)
        assert objections(cluster, cordoning, deleting, of=(cordoning,)) == [""]

    def test_nor_in_what_is_planned_next(self) -> None:
        cluster, _, replaced = one_goes_one_is_replaced()
        asking = begun(cluster, replaced, MovePhase.ASKING)
        (again,) = plan_consolidation(
            in_flight_view.snapshot_with_moves(cluster.view(), [asking]), now=NOW
        ).moves
        assert [pod.node for pod in again.pods] == ["stays"]


def test_a_node_that_just_received_pods_of_one_move_may_still_receive_those_of_another() -> None:
    cluster, goes, _ = one_goes_one_is_replaced(disruption={"consolidateAfter": "5m"})
    cluster.pod("filler", "large", cpu=7000)
    cluster.node("stays", annotations=HELD, last_pod_event=rfc3339(NOW - 1))
    assert objections(cluster, begun(cluster, goes, MovePhase.CORDONING)) == [""]


class TestWhenThereIsRoomForOneOnly:
    """Two nodes whose pods fit on the third, one at a time."""

    def rivals(self) -> tuple[BuiltCluster, list[Move]]:
        cluster = BuiltCluster()
        cluster.pool()
        cluster.node("stays", annotations=HELD)
        cluster.pod("busy", "stays", cpu=1000)
        for name in ("a", "b"):
            cluster.node(name, "small", annotations=HELD)
            cluster.pod(f"web-{name}", name, cpu=1400)
        moves = []
        for name in ("a", "b"):
            cluster.node(name, "small")
            moves += plan_consolidation(cluster.view(), now=NOW).moves
            cluster.node(name, "small", annotations=HELD)
        for name in ("a", "b"):
            cluster.node(name, "small")
        cluster.pod("busy", "stays", cpu=2000)
        return cluster, moves

    @pytest.mark.parametrize("first", [0, 1])
    @pytest.mark.parametrize("turned", [False, True])
    def test_the_one_that_was_begun_first_is_made(self, first: int, turned: bool) -> None:
        cluster, moves = self.rivals()
        records = [
            begun(cluster, move, MovePhase.CORDONING, NOW - 10 * (number == first))
            for number, move in enumerate(moves)
        ]
        expected = {records[first].name: "", records[1 - first].name: "no_room"}
        shown = records[::-1] if turned else records
        assert dict(zip((each.name for each in shown), objections(cluster, *shown), strict=True)) == expected

    def test_and_the_one_that_is_furthest_before_that(self) -> None:
        cluster, (a, b) = self.rivals()
        records = begun(cluster, a, MovePhase.WAITING, NOW - 60), begun(cluster, b, MovePhase.CORDONING)
        assert objections(cluster, *records) == ["no_room", ""]

    def test_one_that_is_given_up_holds_no_room(self) -> None:
        cluster, (a, b) = self.rivals()
        records = begun(cluster, a, MovePhase.ROLLING_BACK), begun(cluster, b, MovePhase.CORDONING)
        assert objections(cluster, *records, of=records[1:]) == [""]

    def test_one_that_has_not_begun_does_not_stop_one_that_has(self) -> None:
        cluster, (a, b) = self.rivals()
        records = begun(cluster, a, MovePhase.WAITING), begun(cluster, b, MovePhase.CORDONING)
        assert objections(cluster, *records, of=records[1:]) == [""]


def small(seed: int) -> BuiltCluster:
    nodes, types, kinds = small_cluster(seed, 6, 12)
    cluster = BuiltCluster(
        catalogue(
            *(
                instance_type(each.name, each.room[0], each.room[1] / MIB_PER_GIB, each.price)
                for each in types
            )
        )
    )
    cluster.pool()
    for index, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        cluster.node(f"n{index}", types[kind].name)
        for number, (cpu, memory) in enumerate(node.pods):
            cluster.pod(f"p{index}-{number}", f"n{index}", cpu=cpu, memory_mib=memory)
    return cluster


def somewhere(cluster: BuiltCluster, moves: tuple[Move, ...], chance: Random) -> list[MoveRecord]:
    """Moves as far as chance has it; the new nodes of some have come."""
    records = []
    for number, move in enumerate(moves):
        phases = [MovePhase.WAITING, MovePhase.CORDONING] + [MovePhase.ASKING] * bool(move.new_nodes)
        record = begun(cluster, move, chance.choice(phases), NOW - number)
        has_come = record.phase is MovePhase.CORDONING or chance.random() < 0.5
        records.append(
            record if record.phase is MovePhase.WAITING or not has_come else with_its_nodes(cluster, record)
        )
    return records


def looked_at(
    cluster: BuiltCluster, records: list[MoveRecord], chance: Random
) -> Mapping[str, tuple[Infeasible[ConsolidationReason], ...]]:
    names = [
        record.name
        for record in records
        if record.phase is MovePhase.CORDONING
        or (record.phase is MovePhase.WAITING and chance.random() < 0.5)
        or (record.phase is MovePhase.ASKING and record.arrived)
    ]
    return in_flight_view.objections(cluster.view(), records, names, UNSCORED, NOW)


@pytest.mark.long
@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_nothing_speaks_against_any_move_of_a_plan_in_a_cluster_that_did_not_change(seed: int) -> None:
    cluster, chance = small(seed), Random(seed)
    plan = plan_consolidation(cluster.view(), UNSCORED, NOW)
    records = somewhere(cluster, plan.moves, chance)
    found = looked_at(cluster, records, chance)
    assert {name: why for name, why in found.items() if why} == {}
