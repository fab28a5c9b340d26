"""Promises outlive the process: they are in the same patch as the decision, and read back from it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.karmada.binding import TargetCluster
from karpool.model.kubernetes.times import rfc3339
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import PromiseLifetime
from karpool.scheduler.promises.promise_annotation import PROMISES, RecordedPromise, read, write
from tests.scheduler.promising import binding, deployed, flink, in_flight, targets

WALL = 1_800_000_000.0
LIFETIME = PromiseLifetime(300, 900, 30)


def written(ledger, before, now, wall, **to):
    """What the API server holds after a decision, whatever becomes of the process."""
    ledger.promise(before, targets(**to), now)
    record = ledger.record(before.key, now, wall)
    return binding(
        before.key.name,
        on=to,
        generation=before.generation + 1,
        annotations={PROMISES: record},
        last_scheduled_time=before.last_scheduled_time,
    )


def restarted(*bindings, now=0.0, wall=WALL):
    """Monotonic time starts anywhere."""
    ledger = PromiseLedger(LIFETIME)
    ledger.rebuild(bindings, now, wall)
    return ledger


def test_a_process_that_dies_right_after_the_write_has_promised():
    there = binding(on={"m1": 100}, last_scheduled_time="2020-01-01T00:00:00Z")
    before = restarted(there)

    after = restarted(written(before, there, 0.0, WALL, m1=103, m2=2), now=12345.0)

    assert in_flight(after, "m1") == {"web": 3}
    assert in_flight(after, "m2") == {"web": 2}


def test_promises_age_while_nobody_runs():
    there = written(restarted(binding()), binding(), 0.0, WALL, m1=3)

    after = restarted(there, now=50.0, wall=WALL + 200)

    assert after.next_expiry(50.0) == 100.0
    assert in_flight(restarted(there, wall=WALL + 299)) == {"web": 3}
    assert in_flight(restarted(there, wall=WALL + 300)) == {}
    assert in_flight(restarted(there, wall=WALL - 10_000)) == {"web": 3}  # a clock that was set back


def test_what_has_landed_since_is_not_promised_any_more():
    there = written(restarted(binding()), binding(), 0.0, WALL, m1=3)
    reported = replace(there, aggregated=binding(status={"m1": deployed(2, 3)}).aggregated)

    assert in_flight(restarted(reported)) == {"web": 1}


def test_a_record_without_promises_proves_that_nothing_is_in_flight():
    large = binding(on={"m1": 9}, last_scheduled_time="2020-01-01T00:00:00Z")
    smaller = written(restarted(large), large, 0.0, WALL, m1=5)
    just_now = replace(smaller, last_scheduled_time=rfc3339(WALL))

    assert in_flight(restarted(just_now)) == {}


def test_bindings_of_other_schedulers_count_while_they_are_young():
    foreign = binding(on={"m1": 5}, status={"m1": deployed(2, 5)}, scheduler_name="default-scheduler")

    assert in_flight(restarted(replace(foreign, last_scheduled_time=rfc3339(WALL - 100)))) == {"web": 3}
    assert in_flight(restarted(replace(foreign, last_scheduled_time=rfc3339(WALL - 300)))) == {}
    # Its scheduler has written the result, and died before it wrote when.
    assert in_flight(restarted(foreign)) == {"web": 3}


def test_targets_that_others_changed_since_are_not_trusted():
    there = written(restarted(binding()), binding(), 0.0, WALL, m1=3)
    edited = replace(there, targets=targets(m1=2, m2=4), last_scheduled_time=rfc3339(WALL))

    after = restarted(edited)

    assert in_flight(after, "m1") == {"web": 2}
    assert in_flight(after, "m2") == {"web": 4}


def test_a_workload_that_shrank_is_remembered_to_have():
    there = binding(on={"m1": 10}, last_scheduled_time="2020-01-01T00:00:00Z")
    ledger = restarted(there)
    small = written(ledger, there, 0.0, WALL, m1=5)
    ledger.confirm(ledger.promise(there, small.targets, 0.0), 2)
    large = written(ledger, small, 1.0, WALL, m1=10)
    stale = replace(large, aggregated=binding(status={"m1": 10}).aggregated)

    assert in_flight(restarted(stale)) == {"web": 5}


def test_component_sets_are_written_down_too():
    ledger = restarted(flink())
    ledger.promise(flink(), (TargetCluster("m1"),), 0.0)
    record = ledger.record(flink().key, 0.0, WALL)

    after = restarted(flink(on=["m1"], generation=2, annotations={PROMISES: record}))

    assert [promise.in_flight for promise in after.promises("m1")] == [(1, 3)]


def test_even_when_nothing_was_promised_by_then():
    there = binding(on={"m1": 10}, last_scheduled_time="2020-01-01T00:00:00Z")
    small = written(restarted(there), there, 0.0, WALL, m1=5)
    ledger = restarted(small)  # dies after each write
    large = written(ledger, small, 1.0, WALL, m1=10)
    stale = replace(large, aggregated=binding(status={"m1": 10}).aggregated)

    assert in_flight(restarted(stale)) == {"web": 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        '{"version":2,"targets":""}',
        '{"version":1,"targets":"x","clusters":{"m1":[[["a"],1]]}}',
        "[" * 100_000,
        '{"version":1,"targets":"' + "x" * 200_000 + '"}',
    ],
)
def test_a_record_that_cannot_be_read_is_none_and_everything_young_counts(text):
    there = binding(on={"m1": 4}, annotations={PROMISES: text}, last_scheduled_time=rfc3339(WALL - 1))

    assert in_flight(restarted(there)) == {"web": 4}


def test_a_forged_record_promises_no_more_than_the_result_holds():
    forged = write({"m1": RecordedPromise((((10**9,), 0.0), ((5,), 0.0)))}, {"m1": (4,)}, WALL)
    assert in_flight(restarted(binding(on={"m1": 4}, annotations={PROMISES: forged}))) == {"web": 4}
    negative = write({"m1": RecordedPromise((((-3,), 0.0),))}, {"m1": (4,)}, WALL)
    assert in_flight(restarted(binding(on={"m1": 4}, annotations={PROMISES: negative}))) == {}
    elsewhere = write({"m9": RecordedPromise((((3,), 0.0),))}, {"m1": (4,)}, WALL)
    assert restarted(binding(on={"m1": 4}, annotations={PROMISES: elsewhere})).clusters() == []


def test_a_fleet_too_large_for_an_annotation_is_read_the_careful_way():
    many = {f"member-with-a-long-name-{number:05}": (1,) for number in range(4000)}
    assert write({name: RecordedPromise(((each, 0.0),)) for name, each in many.items()}, many, WALL) is None


def test_many_increments_are_added_up_and_none_is_lost():
    steps = RecordedPromise(tuple(((1,), 100.0 - number) for number in range(40)))
    text = write({"m1": steps}, {"m1": (40,)}, WALL)

    found = read(binding(annotations={PROMISES: text}), {"m1": (40,)}, WALL, 300)["m1"]

    assert sum(amounts[0] for amounts, _ in found.increments) == 40
    assert len(found.increments) == 16
    assert max(age for _, age in found.increments) <= 100


@settings(max_examples=80)
@given(st.text(max_size=60) | st.binary(max_size=60).map(repr))
def test_no_annotation_breaks_a_start(text):
    there = binding(on={"m1": 4}, annotations={PROMISES: text})
    assert 0 <= sum(in_flight(restarted(there)).values()) <= 4


amounts = st.integers(1, 50).map(lambda each: (each,))
increments = st.lists(st.tuples(amounts, st.integers(0, 290).map(float)), min_size=1, max_size=20)


@settings(max_examples=80)
@given(st.dictionaries(st.sampled_from(["m1", "m2", "m3"]), increments, min_size=1))
def test_what_is_written_is_read(recorded):
    given_records = {
        name: RecordedPromise(tuple(sorted(each, key=lambda one: -one[1]))) for name, each in recorded.items()
    }
    desired = {name: (sum(one[0] for one, _ in each.increments),) for name, each in given_records.items()}

    text = write(given_records, desired, WALL)
    found = read(binding(annotations={PROMISES: text}), desired, WALL, 300)

    assert {name: sum(one[0] for one, _ in each.increments) for name, each in found.items()} == {
        name: total for name, (total,) in desired.items()
    }
