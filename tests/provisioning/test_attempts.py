"""Which candidate comes next: every one once per round, rested ones later, bad ones never again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.market.failures import LaunchFailures, OfferingKey
from karpool.cluster.market.launch_reasons import ATTEMPT_REASONS, LaunchReason
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.karpenter.objects import ON_DEMAND, SPOT, CompiledPool
from karpool.model.kubernetes.node import ZONE
from karpool.packing.new_nodes.offerings import Offerings
from karpool.provisioning.candidates.attempts import (
    LONGEST_SECONDS,
    ROUND_REST_SECONDS,
    STOCK_REST_SECONDS,
    CandidatesResting,
    Memory,
    NoCandidateLeft,
    RoundExhausted,
    TryCandidate,
    attempt_delay_seconds,
    new_round,
    next_candidate,
    remember,
    resting_until,
    setback_of,
)
from karpool.provisioning.node_request import NodeCandidate
from tests.fleet.karpenter.acting import machine
from tests.provisioning.naive_ladder import only

LADDER = tuple(NodeCandidate(instance_types=(f"type-{number}",)) for number in range(3))


def test_an_out_of_stock_candidate_gives_way_to_the_next_until_the_round_is_over() -> None:
    memory: Memory = {}
    for number in range(3):
        choice = next_candidate(LADDER, memory, round_number=0, now=number)
        assert choice == TryCandidate(number, LADDER[number])
        memory = remember(memory, LADDER[number].key, LaunchReason.STOCK_OUT, round_number=0, now=number)
    over = next_candidate(LADDER, memory, round_number=0, now=10)
    assert isinstance(over, RoundExhausted) and over.until == 2 + ROUND_REST_SECONDS
    assert "type-0: InsufficientCapacity" in over.reason
    assert next_candidate(LADDER, new_round(memory), round_number=1, now=over.until) == TryCandidate(
        0, LADDER[0]
    )


def test_a_claim_that_got_lost_is_forgiven_once() -> None:
    memory = remember({}, LADDER[0].key, LaunchReason.CLAIM_LOST, round_number=0, now=0)
    assert next_candidate(LADDER, memory, round_number=0, now=1) == TryCandidate(0, LADDER[0])
    memory = remember(memory, LADDER[0].key, LaunchReason.CLAIM_LOST, round_number=0, now=1)
    assert next_candidate(LADDER, memory, round_number=0, now=2) == TryCandidate(1, LADDER[1])


def test_a_candidate_that_brought_the_wrong_node_is_out_for_ever() -> None:
    memory = remember({}, LADDER[0].key, LaunchReason.WRONG_NODE, round_number=0, now=0)
    assert next_candidate(LADDER, new_round(memory), round_number=9, now=10**6) == TryCandidate(1, LADDER[1])
    for each in LADDER:
        memory = remember(memory, each.key, LaunchReason.AUTOSCALER_REFUSED, round_number=0, now=0)
    assert isinstance(next_candidate(LADDER, memory, round_number=9, now=10**6), NoCandidateLeft)
    assert isinstance(next_candidate((), {}, round_number=0, now=0), NoCandidateLeft)


def test_what_others_found_out_of_stock_is_waited_for_and_not_spent() -> None:
    resting = {each.key: 100.0 + number for number, each in enumerate(LADDER)}
    waiting = next_candidate(LADDER, {}, round_number=0, now=0, resting=resting)
    assert isinstance(waiting, CandidatesResting) and waiting.until == 100.0 and "type-0" in waiting.reason
    assert next_candidate(LADDER, {}, round_number=0, now=100, resting=resting) == TryCandidate(0, LADDER[0])
    del resting[LADDER[2].key]
    assert next_candidate(LADDER, {}, round_number=0, now=0, resting=resting) == TryCandidate(2, LADDER[2])


SETBACKS = st.sampled_from(ATTEMPT_REASONS)


@settings(max_examples=60)
@given(st.lists(st.tuples(SETBACKS, st.floats(0, 400)), max_size=40))
def test_no_candidate_is_tried_again_before_its_rest_except_in_a_new_round(
    history: list[tuple[LaunchReason, float]],
) -> None:
    """S15; and with setbacks that do not exclude, every candidate gets its turn in every round."""
    memory: Memory = {}
    now, round_ = 0.0, 0
    failed_at: dict[str, tuple[float, int]] = {}
    tried: dict[int, set[str]] = {}
    for setback, pause in history:
        choice = next_candidate(LADDER, memory, round_number=round_, now=now)
        while not isinstance(choice, TryCandidate):
            if isinstance(choice, NoCandidateLeft):
                assert all(memory[each.key].excluded for each in LADDER)
                return
            assert choice.until > now - LONGEST_SECONDS
            if isinstance(choice, RoundExhausted):
                usable = {each.key for each in LADDER if not memory[each.key].excluded}
                assert usable <= tried.get(round_, set()), "a round ends only when all had their turn"
                memory, round_ = new_round(memory), round_ + 1
            now = max(now, choice.until)
            choice = next_candidate(LADDER, memory, round_number=round_, now=now)
        key = choice.candidate.key
        if key in failed_at and failed_at[key][1] == round_:
            assert now - failed_at[key][0] >= STOCK_REST_SECONDS
        assert not (key in memory and memory[key].excluded)
        tried.setdefault(round_, set()).add(key)
        now += pause
        memory = remember(memory, key, setback, round_number=round_, now=now)
        if setback is LaunchReason.STOCK_OUT:
            failed_at[key] = now, round_


@given(st.integers(-5, 10**6), st.floats(0, 1))
def test_attempts_are_spaced_and_never_more_than_ten_minutes_apart(failures: int, draw: float) -> None:
    assert 0 <= attempt_delay_seconds(failures, draw) <= LONGEST_SECONDS
    assert attempt_delay_seconds(failures, 1.0) <= attempt_delay_seconds(failures + 1, 1.0)
    assert attempt_delay_seconds(1, 1.0) == 30 and attempt_delay_seconds(3, 1.0) == 120


def test_every_ending_of_a_claim_is_a_setback() -> None:
    assert {
        setback_of(each) for each in (LaunchReason.STOCK_OUT, LaunchReason.CLAIM_LOST, LaunchReason.REMOVED)
    } <= set(ATTEMPT_REASONS)


# Stock-outs of others

CATALOGUE = Catalogue("test", "here", [machine("small", 2, 8, 0.1), machine("large", 8, 32, 0.4)])
OFFERED = {"a": Offerings(CATALOGUE).for_pool(CompiledPool("a", requirements={ZONE: only("zone-a")}))}
SMALL = NodeCandidate(pools=("a",), instance_types=("small",))
BOTH = NodeCandidate(pools=("a",), instance_types=("small", "large"))
SPOT_ONLY = NodeCandidate(pools=("a",), instance_types=("small",), capacity_types=(SPOT,))


def test_a_candidate_rests_only_when_nothing_of_it_is_left() -> None:
    failures = LaunchFailures(recovery_seconds=180)
    failures.out_of_stock("a", [OfferingKey("small", "zone-a", SPOT)], 0, "no spot")
    assert resting_until([SMALL, BOTH, SPOT_ONLY], OFFERED, failures, 10) == {SPOT_ONLY.key: 180}
    failures.out_of_stock("a", [OfferingKey("small", "zone-a", ON_DEMAND)], 5, "none at all")
    found = resting_until([SMALL, BOTH, SPOT_ONLY], OFFERED, failures, 10)
    assert found == {SMALL.key: 180, SPOT_ONLY.key: 180}, "zones that the pool does not use do not matter"
    assert resting_until([SMALL, BOTH, SPOT_ONLY], OFFERED, failures, 180) == {}


def test_an_offering_that_is_out_twice_is_out_until_the_later_end() -> None:
    failures = LaunchFailures(recovery_seconds=180)
    failures.out_of_stock("a", [OfferingKey("small", "zone-a", SPOT)], 0, "this one")
    failures.out_of_stock("a", [OfferingKey("small", "", "")], 60, "any")
    assert resting_until([SMALL], OFFERED, failures, 61) == {SMALL.key: 240}


def test_a_pool_that_fails_as_a_whole_rests_with_all_its_candidates() -> None:
    failures = LaunchFailures(recovery_seconds=180)
    failures.failed("a", LaunchReason.REGISTRATION_FAILED, 0, "nodes do not register")
    assert resting_until([SMALL, BOTH], OFFERED, failures, 10) == {SMALL.key: 180, BOTH.key: 180}
    elsewhere = NodeCandidate(instance_types=("small",))
    two = {**OFFERED, "b": Offerings(CATALOGUE).for_pool(CompiledPool("b"))}
    assert resting_until([elsewhere], two, failures, 10) == {}
