"""What is promised by a decision: the increment, to be given up when, and as far as, it has landed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karmada.binding import AggregatedStatus, TargetCluster, TargetComponent, WorkloadTemplate
from karpool.scheduler.cycle.components import desired_of, workload_of
from karpool.scheduler.promises.ledger import PromiseEnd, PromiseLedger
from karpool.scheduler.promises.promise import Promise, PromiseLifetime
from karpool.wire.requests import ArrivedReplicas
from tests.scheduler.promising import binding, deployed, flink, in_flight, targets

WALL = 1_800_000_000.0


@pytest.fixture
def ended():
    return []


@pytest.fixture
def ledger(ended):
    return PromiseLedger(PromiseLifetime(300, 900, 30), on_release=ended.append)


def decide(ledger, bound, now=0.0, **to):
    """A decision that the API server takes; the binding as it is then."""
    token = ledger.promise(bound, targets(**to), now)
    ledger.confirm(token, bound.generation + 1)
    cpu = bound.requirements.resource_request["cpu"]
    after = binding(bound.key.name, on=to, generation=bound.generation + 1, cpu=cpu)
    ledger.observe(after, now, WALL)
    return after


def running(ledger, name="web", **on):
    """A binding whose replicas all run, and were placed long ago."""
    there = binding(name, on=on, status=on, last_scheduled_time="2020-01-01T00:00:00Z")
    ledger.observe(there, 0.0, WALL)
    assert in_flight(ledger) == {}
    return there


def test_a_first_placement_is_promised_in_full(ledger):
    decide(ledger, binding(), m1=3, m2=2)

    assert in_flight(ledger, "m1") == {"web": 3}
    assert in_flight(ledger, "m2") == {"web": 2}


def test_growing_from_100_to_101_promises_one(ledger):
    decide(ledger, running(ledger, m1=100), m1=101)

    (promise,) = ledger.promises("m1")
    assert promise.replicas == 1
    assert promise.assumed(promise.promised).workload.desired == (101,)


def test_a_cluster_that_keeps_its_replicas_is_left_alone(ledger):
    decide(ledger, running(ledger, m1=5, m2=5), m1=5, m2=7)

    assert ledger.clusters() == ["m2"]


def test_shrinking_promises_nothing(ledger):
    decide(ledger, running(ledger, m1=5), m1=3)

    assert ledger.clusters() == []


def test_increments_add_up_while_in_flight_and_run_out_one_by_one(ledger, ended):
    first = decide(ledger, binding(), m1=2)
    decide(ledger, first, now=100.0, m1=5)
    assert in_flight(ledger) == {"web": 5}

    assert ledger.expire(299.0) == set()
    assert ledger.expire(300.0) == {"m1"}
    assert in_flight(ledger) == {"web": 3}
    assert ledger.expire(400.0) == {"m1"}
    assert ledger.clusters() == []
    assert [(each.replicas, each.reason) for each in ended] == [
        (2, PromiseEnd.EXPIRED),
        (3, PromiseEnd.EXPIRED),
    ]


def test_replicas_are_released_one_by_one_as_they_become_ready(ledger, ended):
    after = decide(ledger, running(ledger, m1=10), m1=14)
    left = []
    for ready in range(10, 15):
        report = binding(on={"m1": 14}, generation=after.generation, status={"m1": deployed(ready, 14)})
        ledger.observe(report, 1.0 + ready, WALL)
        left.append(in_flight(ledger).get("web", 0))

    assert left == [4, 3, 2, 1, 0]
    assert {each.reason for each in ended} == {PromiseEnd.READY}
    assert sum(each.replicas for each in ended) == 4


def test_an_estimator_that_sees_pods_on_nodes_releases_them_before_they_are_ready(ledger, ended):
    after = decide(ledger, running(ledger, m1=10), m1=14)

    assert ledger.report("m1", after.key, ArrivedReplicas((12,), 2), 1.0) == {"m1"}

    assert in_flight(ledger) == {"web": 2}
    assert [(each.replicas, each.reason) for each in ended] == [(2, PromiseEnd.BOUND)]


def test_a_pod_that_is_lost_again_is_owed_again(ledger):
    after = decide(ledger, binding(), m1=3)
    ledger.report("m1", after.key, ArrivedReplicas((3,)), 1.0)
    assert in_flight(ledger) == {}

    ledger.report("m1", after.key, ArrivedReplicas((2,)), 2.0)

    assert in_flight(ledger) == {"web": 1}


def test_a_member_that_did_not_apply_the_workload_has_nothing_of_it(ledger):
    after = decide(ledger, binding(), m1=3)
    report = binding(on={"m1": 3}, generation=after.generation)
    stale = AggregatedStatus("m1", False, "Healthy", deployed(3))
    ledger.observe(replace(report, aggregated=(stale,)), 1.0, WALL)

    assert in_flight(ledger) == {"web": 3}


def test_replicas_that_ran_unready_before_are_not_taken_for_new_ones(ledger):
    crashing = binding(
        on={"m1": 10}, status={"m1": deployed(4, 10)}, last_scheduled_time="2020-01-01T00:00:00Z"
    )
    ledger.observe(crashing, 0.0, WALL)
    decide(ledger, crashing, m1=12)

    ledger.observe(binding(on={"m1": 12}, generation=2, status={"m1": deployed(5, 11)}), 1.0, WALL)

    assert in_flight(ledger) == {"web": 2}


def test_counts_from_before_a_workload_shrank_prove_nothing(ledger):
    there = running(ledger, m1=10)
    smaller = decide(ledger, there, now=1.0, m1=5)
    grown = decide(ledger, smaller, now=2.0, m1=10)
    assert in_flight(ledger) == {"web": 5}

    # The member still reports the ten from before.
    ledger.observe(binding(on={"m1": 10}, generation=grown.generation, status={"m1": 10}), 3.0, WALL)
    assert in_flight(ledger) == {"web": 5}
    # Now it was seen small, and growing.
    for ready, left in ((5, 5), (7, 3), (10, 0)):
        ledger.observe(binding(on={"m1": 10}, generation=grown.generation, status={"m1": ready}), 4.0, WALL)
        assert in_flight(ledger).get("web", 0) == left


def test_a_workload_is_seen_small_also_with_promised_replicas_in_it(ledger):
    """Two of eleven landed, nine are taken back, seven come again: what is there now are no old pods."""
    first = decide(ledger, binding(), m1=11)
    ledger.report("m1", first.key, ArrivedReplicas((2,), 9), 1.0)
    smaller = decide(ledger, first, now=2.0, m1=2)
    ledger.report("m1", first.key, ArrivedReplicas((2,), 9), 3.0)  # nothing was deleted yet
    grown = decide(ledger, smaller, now=4.0, m1=9)
    ledger.report("m1", first.key, ArrivedReplicas((9,), 2), 5.0)  # of the eleven, for all we know
    assert in_flight(ledger) == {"web": 9}

    for bound, waiting, left in ((2, 0, 7), (2, 7, 7), (6, 3, 3), (9, 0, 0)):
        ledger.report("m1", grown.key, ArrivedReplicas((bound,), waiting), 6.0)
        assert in_flight(ledger).get("web", 0) == left


def test_a_promise_shrinks_with_the_decision(ledger, ended):
    after = decide(ledger, binding(), m1=5, m2=2)

    decide(ledger, after, now=1.0, m1=3)

    assert in_flight(ledger, "m1") == {"web": 3}
    assert ledger.clusters() == ["m1"]
    assert {(each.cluster, each.replicas, each.reason) for each in ended} == {
        ("m1", 2, PromiseEnd.SCALED_DOWN),
        ("m2", 2, PromiseEnd.REMOVED),
    }


def test_somebody_elses_edit_of_the_targets_counts_too(ledger):
    decide(ledger, binding(), m1=5)

    assert ledger.observe(binding(on={"m1": 2, "m2": 4}, generation=3), 1.0, WALL) == {"m1"}

    assert in_flight(ledger, "m1") == {"web": 2}
    assert in_flight(ledger, "m2") == {"web": 4}


def test_deletion_frees_everything(ledger, ended):
    after = decide(ledger, binding(), m1=5, m2=2)

    assert ledger.forget(after.key, 1.0) == {"m1", "m2"}

    assert ledger.clusters() == []
    assert {each.reason for each in ended} == {PromiseEnd.DELETED}


def test_a_binding_of_the_same_name_is_another_one(ledger):
    decide(ledger, binding(), m1=5)
    other = replace(binding(on={"m2": 1}, generation=1), uid="another")

    ledger.observe(other, 1.0, WALL)

    assert ledger.clusters() == ["m2"]


def test_a_cluster_that_is_gone_takes_its_promises_along(ledger, ended):
    decide(ledger, binding(), m1=5, m2=2)

    ledger.cluster_gone("m1", 1.0)

    assert ledger.clusters() == ["m2"]
    assert [(each.replicas, each.reason) for each in ended] == [(5, PromiseEnd.CLUSTER_GONE)]


def test_a_refused_decision_leaves_no_trace(ledger, ended):
    before = decide(ledger, binding(), m1=5)
    token = ledger.promise(before, targets(m1=9, m2=3), 1.0)
    assert in_flight(ledger, "m2") == {"web": 3}

    assert ledger.undo(token, 2.0) == {"m1", "m2"}

    assert in_flight(ledger, "m1") == {"web": 5}
    assert ledger.clusters() == ["m1"]
    assert {(each.cluster, each.replicas, each.reason) for each in ended} == {
        ("m1", 4, PromiseEnd.UNDONE),
        ("m2", 3, PromiseEnd.UNDONE),
    }
    assert ledger.undo(token, 3.0) == set()


def test_versions_from_before_a_decision_do_not_undo_it(ledger):
    old = binding(on={"m1": 2})
    ledger.observe(old, 0.0, WALL)
    token = ledger.promise(old, targets(m1=6), 1.0)

    ledger.observe(old, 1.0, WALL)  # while the write is under way
    assert in_flight(ledger) == {"web": 6}
    ledger.confirm(token, 2)
    ledger.observe(old, 1.0, WALL)  # a watch that lags
    assert in_flight(ledger) == {"web": 6}


def test_a_write_of_unknown_outcome_is_settled_by_the_next_version(ledger):
    old = running(ledger, m1=2)
    ledger.confirm(ledger.promise(old, targets(m1=6), 1.0), 0)
    assert in_flight(ledger) == {"web": 4}

    assert ledger.observe(old, 2.0, WALL) == {"m1"}

    assert in_flight(ledger) == {}


def test_a_promise_is_renewed_while_its_pods_wait_for_a_node_but_not_forever(ledger):
    after = decide(ledger, binding(), m1=3)
    for now in range(100, 900, 100):
        ledger.report("m1", after.key, ArrivedReplicas((1,), 2), float(now))
        ledger.expire(float(now))
        assert in_flight(ledger) == {"web": 2}

    ledger.report("m1", after.key, ArrivedReplicas((1,), 2), 899.0)
    ledger.expire(900.0)

    assert ledger.clusters() == []


def test_a_workload_of_components_is_promised_as_a_set(ledger):
    job = flink()
    token = ledger.promise(job, (TargetCluster("m1"),), 0.0)
    ledger.confirm(token, 2)

    (promise,) = ledger.promises("m1")
    assert promise.in_flight == (1, 3)
    ledger.report("m1", job.key, ArrivedReplicas((1, 1)), 1.0)
    assert promise.in_flight == (0, 2)


def test_a_target_says_itself_which_components_it_gets(ledger):
    target = TargetCluster("m1", 0, (TargetComponent("manager", 1), TargetComponent("worker", 2)))
    ledger.confirm(ledger.promise(flink(), (target,), 0.0), 2)

    assert [promise.in_flight for promise in ledger.promises("m1")] == [(1, 2)]


def test_health_without_a_hook_proves_nothing(ledger):
    ledger.confirm(ledger.promise(flink(), (TargetCluster("m1"),), 0.0), 2)
    placed = flink(on=["m1"], generation=2)
    healthy = replace(placed, aggregated=(AggregatedStatus("m1", True, "Healthy", {"jobs": 1}),))

    ledger.observe(healthy, 1.0, WALL)
    assert in_flight(ledger) == {"job": 4}

    # One that was unhealthy first has a hook.
    ill = replace(placed, aggregated=(AggregatedStatus("m1", True, "Unhealthy", {"jobs": 1}),))
    ledger.observe(ill, 2.0, WALL)
    ledger.observe(healthy, 3.0, WALL)
    assert in_flight(ledger) == {}


def test_what_places_no_workload_promises_nothing(ledger):
    config = replace(binding(on={"m1": 0}), replicas=0, requirements=None)

    ledger.observe(config, 0.0, WALL)

    assert ledger.clusters() == []


def test_reports_of_a_thousand_kinds_never_break_it(ledger):
    after = decide(ledger, binding(), m1=3)
    for status in (
        {"readyReplicas": "3"},
        {"readyReplicas": -5},
        {"readyReplicas": 10**30},
        {"replicas": True},
        {},
    ):
        ledger.observe(binding(on={"m1": 3}, generation=after.generation, status={"m1": status}), 1.0, WALL)
        assert 0 <= sum(in_flight(ledger).values()) <= 3
    ledger.report("m1", after.key, ArrivedReplicas((1, 2, 3)), 1.0)
    ledger.report("m1", after.key, ArrivedReplicas((-7,), -7), 1.0)
    assert in_flight(ledger) == {"web": 3}


def test_the_summary_is_charged_until_it_must_have_counted_the_pods(ledger):
    def charged():
        totals = ledger.charged("m1")
        return 0 if totals is None else totals.pods

    ledger.observe_cluster("m1", "first", 0.0)
    after = decide(ledger, binding(), m1=3)
    assert charged() == 3
    ledger.observe(binding(on={"m1": 3}, generation=after.generation, status={"m1": 3}), 5.0, WALL)
    assert in_flight(ledger) == {}
    assert charged() == 3  # the summary is older than the pods
    assert ledger.observe_cluster("m1", "second", 7.0) == {"m1"}
    assert charged() == 3  # it may have been made before them
    ledger.observe_cluster("m1", "second", 9.0)
    assert charged() == 3  # the same again is no news
    assert ledger.observe_cluster("m1", "third", 11.0) == {"m1"}
    assert charged() == 0
    assert ledger.clusters() == []


def test_a_quiet_cluster_has_counted_after_a_while(ledger):
    after = decide(ledger, binding(), m1=3)
    ledger.observe(binding(on={"m1": 3}, generation=after.generation, status={"m1": 3}), 5.0, WALL)

    assert ledger.expire(34.0) == set()
    assert ledger.expire(35.0) == {"m1"}
    assert ledger.clusters() == []


def test_the_summary_shows_pods_that_wait_so_they_are_not_charged_twice(ledger):
    after = decide(ledger, binding(), m1=3)
    pending = {"m1": deployed(0, 3)}
    ledger.observe(binding(on={"m1": 3}, generation=after.generation, status=pending), 5.0, WALL)
    ledger.expire(35.0)

    assert ledger.charged("m1").pods == 0
    assert in_flight(ledger) == {"web": 3}


def test_replicas_with_the_same_needs_are_added_up_for_the_summary(ledger):
    decide(ledger, binding("a"), m1=3)
    decide(ledger, binding("b"), m1=4)
    decide(ledger, binding("c", cpu="2"), m1=1)

    replicas_by_cpu = {requests[0][1]: replicas for ((requests, replicas),) in ledger.charged("m1").groups()}
    assert replicas_by_cpu == {1000: 7, 2000: 1}


def test_only_more_promises_make_an_answer_old(ledger):
    before = ledger.grown("m1")
    after = decide(ledger, binding(), m1=3)
    grown = ledger.grown("m1")
    assert grown > before
    ledger.observe(binding(on={"m1": 3}, generation=after.generation, status={"m1": 3}), 1.0, WALL)
    ledger.forget(after.key, 2.0)
    assert ledger.grown("m1") == grown


def test_it_says_when_to_look_again(ledger):
    assert ledger.next_expiry(0.0) is None
    decide(ledger, binding(), m1=3)
    assert ledger.next_expiry(0.0) == 300.0
    assert ledger.next_expiry(290.0) == 10.0
    assert ledger.next_expiry(400.0) == 0.0


def test_jobs_that_ended_have_landed(ledger):
    template = WorkloadTemplate("batch/v1", "Job", "default", "job", "u")
    ledger.confirm(ledger.promise(replace(binding("job"), template=template), targets(m1=3), 0.0), 2)
    done = binding("job", on={"m1": 3}, generation=2, status={"m1": {"active": 1, "succeeded": 2}})

    ledger.observe(replace(done, template=template), 1.0, WALL)

    assert in_flight(ledger) == {"job": 1}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_what_is_taken_back_is_the_newest(sizes):
    """Against one entry for each replica: those that were added last go first, the others keep their age."""
    found = Promise(binding().key, "m1", binding().template, workload_of(flink()), (0, 0))
    replicas: tuple[list[float], list[float]] = ([], [])  # when each replica was promised, by component
    for now, desired in enumerate(sizes):
        for ages, size in zip(replicas, desired, strict=True):
            ages[size:] = []
            ages.extend([float(now)] * (size - len(ages)))
        found.aim(desired, float(now))
        assert found.promised == tuple(map(len, replicas))
        assert [made for _, made in found.increments] == sorted({*replicas[0], *replicas[1]})
    for now in range(len(sizes) + 2):
        found.expire(float(now), PromiseLifetime(1.0, 1.0))
        left = [sum(age + 1.0 > now for age in ages) for ages in replicas]
        assert found.promised == tuple(left)


def test_a_cluster_that_is_listed_twice_is_promised_what_its_first_entry_says(ledger):
    twice = (TargetCluster("m1", 3), TargetCluster("m2", 1), TargetCluster("m1", 5))
    assert desired_of(binding(), twice) == {"m1": (3,), "m2": (1,)}
    ledger.observe(replace(binding(generation=2), targets=twice), 0.0, WALL)
    assert {name: in_flight(ledger, name) for name in ledger.clusters()} == {
        "m1": {"web": 3},
        "m2": {"web": 1},
    }
