"""One step after the other, in any world: nothing is deleted without a last look, and all ends cleanly."""

from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.consolidation.execution.actuator import MoveActuator
from karpool.consolidation.execution.node_marks import mark, marked_by, unmark
from karpool.consolidation.execution.record import (
    MovePhase,
    MoveRecord,
    PlaceholderRequest,
    from_object,
    to_object,
)
from karpool.consolidation.execution.step import (
    DeleteClaim,
    ExecutionSettings,
    MarkNode,
    MeasuredSavings,
    MoveObservation,
    RequestNodes,
    RunActions,
    StoreRecord,
    UnmarkNode,
    WaitUntil,
    WithdrawPlaceholder,
    next_step,
)
from karpool.consolidation.planning.plan import MoveKind
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import INITIALIZED, NODEPOOL, NodeClaim
from karpool.model.kubernetes.api_resources import PODS, ObjectKey
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import Condition, ObjectMeta, decode
from karpool.model.kubernetes.node import Node, NodeStatus
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState
from tests.consolidation.plans import move, new_node, source
from tests.kube.tiny_server import TinyServer
from tests.kube.virtual import client_of, virtually

SETTINGS = ExecutionSettings(launch_seconds=100.0, look_seconds=50.0)
MEASURED = MeasuredSavings(0.6)
OBJECTION = Infeasible(ConsolidationReason.CHANGED, "something changed")


def record_of(nodes: int = 2, new_nodes: int = 1, **changes) -> MoveRecord:
    sources = [source(f"node-{number}") for number in range(nodes)]
    kind = MoveKind.REPLACE if new_nodes else MoveKind.DELETE
    planned = move(*sources, kind=kind, new_nodes=[new_node() for _ in range(new_nodes)])
    given = {"move": planned, "phase": MovePhase.WAITING, "created": 0.0, "since": 0.0}
    return MoveRecord(**{**given, "wanted": (PlaceholderRequest({"cpu": 500}),) * new_nodes, **changes})


def node(name: str, version: int = 1) -> Node:
    labels = {NODEPOOL: "general", INITIALIZED: "true"}
    meta = ObjectMeta(name=name, uid=f"uid-{name}", resource_version=str(version), labels=labels)
    return Node(metadata=meta, status=NodeStatus(conditions=[Condition(type="Ready", status="True")]))


def patched(found: Node, patch) -> Node:
    """A merge patch, as the server applies one."""
    raw = msgspec.to_builtins(found)
    _merge(raw, patch)
    return decode(raw, Node)


def _merge(into, patch) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


@dataclass
class Model:
    """A cluster in which actions have their effect at once, and everything else happens at random."""

    record: MoveRecord
    now: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    claims: dict[str, NodeClaim] = field(default_factory=dict)
    placeholders: dict[int, Placeholder] = field(default_factory=dict)
    stop: Infeasible[ConsolidationReason] | None = None
    objections: tuple[Infeasible[ConsolidationReason], ...] | None = ()
    cordon_seen: bool = True
    measured: MeasuredSavings | None = MEASURED
    slow: bool = False  # new nodes do not come
    hold: bool = False  # nodes do not go
    deleted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for each in self.record.move.nodes:
            self.nodes[each.name] = node(each.name)
            meta = ObjectMeta(name=each.claim, uid=each.claim_uid)
            self.claims[each.claim] = NodeClaim(metadata=meta)

    def world(self) -> MoveObservation:
        return MoveObservation(
            nodes=dict(self.nodes),
            claims=dict(self.claims),
            placeholders=list(self.placeholders.values()),
            stop=self.stop,
            objections=self.objections,
            cordon_seen=self.cordon_seen,
            owners={"web": 3},
            arrived_price=0.4,
            measured=self.measured,
        )

    def next(self) -> None:
        world = self.world()
        following = next_step(self.record, world, SETTINGS, self.now)
        assert following == next_step(self.record, world, SETTINGS, self.now), "the same world, the same step"
        match following:
            case StoreRecord(record=record):
                assert not self.record.phase.is_over
                self.record = from_object(_stored(record))
            case RunActions(actions=actions):
                assert actions
                for action in actions:
                    self.act(action)
            case WaitUntil():
                pass

    def act(self, action) -> None:
        match action:
            case MarkNode(node=found, cordon=cordon):
                assert found.name in (*self.record.nodes, *self.record.arrived)
                assert not cordon or self.record.phase in (MovePhase.ASKING, MovePhase.CORDONING)
                self.nodes[found.name] = patched(found, mark(found, self.record.name, cordon=cordon))
            case UnmarkNode(node=found):
                self.nodes[found.name] = patched(found, unmark(found))
            case RequestNodes(indices=indices):
                assert self.record.phase is MovePhase.ASKING
                for index in indices:
                    key = ObjectKey("smart", f"pod-{index}")
                    self.placeholders[index] = Placeholder(
                        PODS,
                        key,
                        f"{index}",
                        self.record.name,
                        1,
                        index,
                        RequestPurpose.REPLACEMENT,
                        self.now,
                    )
            case WithdrawPlaceholder(placeholder=placeholder):
                del self.placeholders[placeholder.index]
            case DeleteClaim(source=chosen):
                assert self.record.phase is MovePhase.DELETING
                assert self.objections == () and self.stop is None
                assert not self.placeholders, "room that is held would be bought twice"
                assert all(
                    self.nodes[name].spec.unschedulable for name in self.record.going if name in self.nodes
                )
                assert all(name in self.nodes for name in self.record.arrived)
                self.deleted.add(chosen.claim)
                claim = self.claims[chosen.claim]
                going = msgspec.structs.replace(claim.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
                self.claims[chosen.claim] = msgspec.structs.replace(claim, metadata=going)

    # What happens by itself

    def arrive(self, index: int) -> None:
        if index in self.placeholders:
            name = f"new-{index}"
            self.nodes.setdefault(name, node(name))
            self.placeholders[index] = replace(
                self.placeholders[index], outlook=PlaceholderState.THERE, node=name, claim=f"claim-{name}"
            )

    def refuse(self, index: int, outlook: PlaceholderState) -> None:
        if index in self.placeholders and not self.placeholders[index].node:
            self.placeholders[index] = replace(self.placeholders[index], outlook=outlook)

    def finish_deletions(self) -> None:
        for each in self.record.move.nodes:
            claim = self.claims.get(each.claim)
            if claim is not None and claim.is_deleting:
                del self.claims[each.claim]
                self.nodes.pop(each.name, None)

    def lose_new_node(self, index: int) -> None:
        self.nodes.pop(f"new-{index}", None)
        self.placeholders.pop(index, None)

    def lose_source(self, index: int) -> None:
        chosen = self.record.move.nodes[index % len(self.record.move.nodes)]
        self.claims.pop(chosen.claim, None)
        self.nodes.pop(chosen.name, None)


def _stored(record: MoveRecord) -> ConfigMap:
    raw = to_object(record, "karpool-system")
    raw["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    return decode(raw, ConfigMap)


TROUBLE = st.one_of(
    st.tuples(st.sampled_from(["refused", "ended", "lose_new"]), st.integers(0, 1)),
    st.tuples(st.just("slow"), st.booleans()),
    st.tuples(st.just("objections"), st.sampled_from([(), (OBJECTION,), None])),
    st.tuples(st.just("stop"), st.sampled_from([None, Infeasible(ConsolidationReason.STOPPED, "stop")])),
    st.tuples(st.just("cordon_seen"), st.booleans()),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("lose_source"), st.integers(0, 2)),
    st.tuples(st.just("time"), st.sampled_from([30, 200])),
    st.tuples(st.just("delete_one"), st.none()),
)


def happen(model: Model, what: str, value) -> None:
    match what:
        case "time":
            model.now += value
        case "refused":
            model.refuse(value, PlaceholderState.REFUSED)
        case "ended":
            model.refuse(value, PlaceholderState.ENDED)
        case "objections" | "stop" | "cordon_seen" | "slow" | "hold":
            setattr(model, what, value)
        case "lose_new":
            model.lose_new_node(value)
        case "lose_source":
            model.lose_source(value)
        case "delete_one":
            # A process that dies between two deletions.
            following = next_step(model.record, model.world(), SETTINGS, model.now)
            if isinstance(following, RunActions) and isinstance(following.actions[0], DeleteClaim):
                model.act(following.actions[0])


def settle(model: Model) -> None:
    """From now on nothing bad happens any more."""
    model.objections, model.stop, model.cordon_seen = (), None, True
    for _ in range(60):
        if model.record.phase.is_over:
            return
        model.next()
        model.now += 10
        model.finish_deletions()
        for index in list(model.placeholders):
            model.arrive(index)
    raise AssertionError(f"still {model.record.phase}")


def lived(nodes: int, new_nodes: int, pace: int, troubles: list) -> None:
    """A life with troubles at given ticks, and its end."""
    model = Model(record_of(nodes, new_nodes), now=14.0)
    for tick in range(1 + max((at for at, _ in troubles), default=0)):
        for at, (what, value) in troubles:
            if at == tick:
                happen(model, what, value)
        model.next()
        model.now += pace
        if not model.slow:
            model.arrive(tick % 2)
        if not model.hold:
            model.finish_deletions()
    settle(model)
    ended_cleanly(model)


def ended_cleanly(model: Model) -> None:
    record = model.record
    assert not model.placeholders
    assert [name for name, found in model.nodes.items() if marked_by(found)] == []
    assert [name for name, found in model.nodes.items() if found.spec.unschedulable] == []
    if record.phase is MovePhase.DONE:
        assert record.realised == (0.6 if model.measured else None)
        for each in record.move.nodes:
            assert (each.name in record.kept) or each.claim not in model.claims
    else:
        assert model.deleted == set(), "there is no way back from a deletion"
        assert record.reason


@settings(max_examples=150)
@given(
    nodes=st.integers(1, 3),
    new_nodes=st.integers(0, 2),
    pace=st.sampled_from([1, 5]),
    troubles=st.lists(st.tuples(st.integers(0, 25), TROUBLE), max_size=5),
)
def test_any_history_ends_cleanly(nodes: int, new_nodes: int, pace: int, troubles: list) -> None:
    lived(nodes, new_nodes, pace, troubles)


@pytest.mark.parametrize(
    "trouble",
    [
        ("refused", 0),
        ("ended", 0),
        ("lose_new", 0),
        ("objections", (OBJECTION,)),
        ("objections", None),
        ("stop", Infeasible(ConsolidationReason.STOPPED, "stop")),
        ("lose_source", 0),
        ("time", 1000),
    ],
)
@pytest.mark.parametrize("new_nodes", [0, 1])
def test_one_trouble_at_any_moment_is_survived(new_nodes: int, trouble: tuple) -> None:
    for tick in range(18):
        lived(2, new_nodes, 2, [(tick, trouble)])
        # And the process dies between two deletions, before it happens.
        lived(2, new_nodes, 2, [(tick, ("delete_one", None)), (tick, trouble)])


@pytest.mark.parametrize("new_nodes", [0, 1, 2])
def test_without_trouble_a_move_is_made(new_nodes: int) -> None:
    model = Model(record_of(3, new_nodes))
    settle(model)
    assert model.record.phase is MovePhase.DONE and len(model.deleted) == 3
    assert len(model.record.arrived) == new_nodes


def test_half_a_move_goes_on_where_it_was_and_keeps_the_rest_when_something_changed() -> None:
    model = Model(record_of(2, 0))
    while model.record.phase is not MovePhase.DELETING:
        model.next()
        model.now += 10
    model.act(DeleteClaim(model.record.move.nodes[0]))  # and the process dies
    model.objections = (OBJECTION,)
    model.next()
    assert model.record.kept == ("node-1",)
    settle(model)
    ended_cleanly(model)
    assert model.record.phase is MovePhase.DONE and set(model.nodes) == {"node-1"}
    assert model.record.going == ("node-0",)


@pytest.mark.parametrize("new_nodes", [0, 1])
@pytest.mark.parametrize("half", [False, True])
def test_a_move_that_can_never_be_looked_at_again_comes_to_an_end(new_nodes: int, half: bool) -> None:
    for tick in range(18):
        model = Model(record_of(2, new_nodes), now=14.0)
        for number in range(60):
            if number == tick:
                if half:
                    happen(model, "delete_one", None)
                model.objections = model.measured = None  # from now on, for good
            model.next()
            model.now += 2 if number < tick else 30
            model.finish_deletions()
            model.arrive(0)
        assert model.record.phase.is_over, f"{model.record.phase} from {tick} on"
        ended_cleanly(model)


@pytest.mark.parametrize(("phase", "codes"), [("Running", ["pod_unreadable"]), ("Succeeded", [])])
def test_the_last_look_sees_a_pod_that_nobody_can_read_before_any_watch_does(phase, codes) -> None:
    async def look() -> list[str]:
        server = TinyServer()
        spec = {"nodeName": "node-0", "containers": "none"}
        server.put("/api/v1/namespaces/team/pods/odd", spec=spec, status={"phase": phase})
        actuator = MoveActuator(client_of(server), None, SETTINGS, namespace="team")  # asks for no nodes
        why, _ = await actuator._last_look(record_of(1, 0), ["node-0"])
        return [objection.reason for objection in why]

    assert virtually(look()) == codes


def test_a_clock_that_went_back_begins_the_time_of_a_phase_anew() -> None:
    record = record_of(since=86_400.0)
    world = MoveObservation(nodes={}, claims={})
    assert next_step(record, world, SETTINGS, 100.0) == StoreRecord(replace(record, since=100.0))
    over = replace(record, phase=MovePhase.DONE)
    assert next_step(over, world, SETTINGS, 100.0) == WaitUntil()


def test_records_are_read_back_as_they_were_written() -> None:
    record = record_of(2, 1, arrived=("new-0",), owners={"a": 2}, deleted_at=5.0, realised=None)
    assert from_object(_stored(record)) == replace(record, uid="u", version="1")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"move": 3}', '{"phase": "Dancing"}', "[" * 100_000],
)
def test_a_record_that_somebody_spoilt_is_refused_by_name(text: str) -> None:
    meta = ObjectMeta(name="karpool-move-1", namespace="karpool-system")
    with pytest.raises(Invalid, match="karpool-move-1"):
        from_object(ConfigMap(metadata=meta, data={"record": text}))


def test_a_record_of_another_move_is_refused() -> None:
    raw = to_object(record_of(), "karpool-system")
    raw["metadata"]["name"] = "karpool-move-other"
    with pytest.raises(Invalid, match="belongs to"):
        from_object(decode(raw, ConfigMap))


def test_a_record_that_is_too_large_is_not_written() -> None:
    record = record_of()
    with pytest.raises(Invalid, match="is larger than"):
        to_object(replace(record, owners={f"{n:064}": 1 for n in range(20_000)}), "karpool-system")


def test_a_claim_that_came_for_a_placeholder_bound_elsewhere_is_written_down() -> None:
    story = Model(record_of(1, 2))
    story.now = 60.0  # the quiet time is over
    for _ in range(5):
        story.next()
    assert len(story.placeholders) == 2
    for index, placeholder in list(story.placeholders.items()):
        story.placeholders[index] = replace(placeholder, claim=f"claim-{index}")
    story.next()
    assert story.record.unused == ("claim-0", "claim-1"), "they come, and nothing is on them yet"
    # The first takes the node of the second, and the second finds room on a node that was there before.
    for index, claim in enumerate(("claim-1", "old")):
        story.nodes[f"new-{index}"] = node(f"new-{index}")
        story.placeholders[index] = replace(story.placeholders[index], claim=claim, node=f"new-{index}")
    story.next()
    story.next()
    assert story.record.unused == ("claim-0",) and story.record.arrived == ("new-0", "new-1")


def test_a_move_whose_node_another_has_marked_is_not_begun() -> None:
    story = Model(record_of(2, 0), now=60.0)
    other = node("node-1")
    story.nodes["node-1"] = patched(other, mark(other, "karpool-move-other", cordon=False))
    story.next()
    assert (story.record.phase, story.record.reason) == (MovePhase.REJECTED, "in_queue")
    assert "node-1 is part of karpool-move-other" in story.record.message
