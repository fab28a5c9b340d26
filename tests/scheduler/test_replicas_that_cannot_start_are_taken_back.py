import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.karmada.binding import TargetCluster
from karpool.scheduler.descheduler.lowering import lower_targets, waiting_clusters

COUNTS = st.none() | st.integers(-5, 20)


@pytest.mark.parametrize(
    ("desired", "ready", "stuck", "after"),
    [
        pytest.param(5, 4, 1, 4, id="one cannot start"),
        pytest.param(5, 0, 5, 0, id="none can start"),
        pytest.param(5, 0, 2, 3, id="some are merely slow"),
        pytest.param(10, 9, 1, 9, id="the rest runs"),
        pytest.param(5, 4, 3, 4, id="never one that runs"),
        pytest.param(5, 5, 2, 5, id="all run, so nothing is stuck"),
        pytest.param(5, 1, 6, 5, id="more stuck than there are: nonsense"),
        pytest.param(5, 1, -1, 5, id="fewer than none: nonsense"),
        pytest.param(5, None, 2, 3, id="nothing is known to run"),
        pytest.param(5, 7, 2, 5, id="more run than should"),
    ],
)
def test_lowering(desired, ready, stuck, after):
    result, changes = lower_targets([TargetCluster("m1", desired)], {"m1": ready}, {"m1": stuck})

    assert result == [TargetCluster("m1", after)]
    assert sum(change.taken_back for change in changes) == desired - after


def test_no_answer_takes_nothing_back():
    assert lower_targets([TargetCluster("m1", 5)], {}, {}) == ([TargetCluster("m1", 5)], [])


def test_only_clusters_that_wait_are_asked():
    targets = [TargetCluster("m1", 3), TargetCluster("m2", 3), TargetCluster("m3", 0), TargetCluster("m4", 1)]

    assert waiting_clusters(targets, {"m1": 3, "m2": 1, "m3": 0, "m4": None}) == ["m2", "m4"]


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 9), COUNTS, COUNTS)),
)
def test_what_runs_stays_and_nothing_grows(made):
    targets = [TargetCluster(name, desired) for name, (desired, _, _) in made.items()]
    ready = {name: each for name, (_, each, _) in made.items()}
    stuck = {name: each for name, (_, _, each) in made.items() if each is not None}

    result, _ = lower_targets(targets, ready, stuck)

    for before, after in zip(targets, result, strict=True):
        assert after.name == before.name
        assert min(ready[before.name] or 0, before.replicas) <= after.replicas <= before.replicas
