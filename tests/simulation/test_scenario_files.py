"""Scenario files are checked as a whole, and whatever is wrong has its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.simulation.ready_scenarios import FOLDER
from karpool_fleet.simulation.scenario_file import merged, parse_scenario, read_scenario
from tests.simulation.small import scenario

READY = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_scenario_is_right(path):
    found = read_scenario(path)
    assert found
    assert all(each.scenario.description for each in found)


def test_there_are_at_least_eight():
    assert len(READY) >= 8


ONE = "kind: Scenario\nduration: 1h\nclusters:\n  - name: a\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("kind: Fleet\n", 1, "must be karpool.dev/v1alpha1 Scenario"),
        ("kind: Scenario\nduration: soon\nclusters: [{name: a}]\n", 2, "duration"),
        ("kind: Scenario\ndurations: 1h\n", 1, "durations"),
        (ONE + "sample: 1ms\n", 5, "samples"),
        (ONE + "measureFrom: 2h\n", 5, "before the end"),
        (ONE + "controllers:\n  scheduler: {}\n", 6, "needs Karmada"),
        (ONE + "controllers:\n  butler: {}\n", 6, "is not a controller"),
        (ONE + "controllers:\n  consolidator:\n    policy: Eager\n", 7, "must be one of"),
        (ONE + "controllers:\n  consolidator:\n    speed: 3\n", 7, "is not a flag"),
        (ONE + "controllers:\n  gpu-scaler:\n    strategy: best\n", 7, "must be one of"),
        (ONE + "karmada: {}\ncontrollers:\n  estimator: {plugins: [Nope]}\n", 7, "Nope"),
        (ONE + "workloads:\n  - name: w\n    kind: Cron\n", 7, "must be one of Deployment, Job, Pod"),
        (ONE + "workloads:\n  - name: w\n  - name: w\n", 7, "only once"),
        (ONE + "workloads:\n  - name: w\n    every: 0s\n", 7, "longer than 0s"),
        (ONE + "workloads:\n  - name: w\n    every: often\n", 7, "is not a delay"),
        (ONE + "workloads:\n  - name: w\n    replicas: [3, 1]\n", 7, "the least and the most"),
        (ONE + "workloads:\n  - name: w\n    requests:\n      cpu: lots\n", 8, "lots"),
        (ONE + "workloads:\n  - name: w\n    cluster: b\n", 7, "is not one of a"),
        (ONE + "workloads:\n  - name: w\n    count: many\n", 7, "count"),
        (ONE + "traces:\n  - file: x.csv\n    speed: 0\n", 7, "above 0"),
        (ONE + "actions:\n  - at: 1m\n", 6, "exactly one of apply, scale, delete"),
        (ONE + "actions:\n  - at: 1m\n    apply: {kind: Pod}\n", 7, "metadata.name"),
        (ONE + "faults:\n  - cluster: b\n    interruptSpot: 1\n", 6, "is not one of the clusters"),
        (ONE + "variants:\n  - name: x\n    set: {duration: never}\n", 7, "with it, the scenario is wrong"),
        (ONE + "variants:\n  - name: x\n    set: {seeds: 3}\n", 7, "with it, the scenario is wrong"),
        (ONE + "variants:\n  - name: x\n  - name: x\n", 7, "only once"),
        (ONE + "expect:\n  - figure: happiness\n    least: 1\n", 6, "is not a figure"),
        (ONE + "expect:\n  - figure: cost\n", 6, "least, most or both"),
        (ONE + "expect:\n  - {figure: cost, most: 1, variant: z}\n", 6, "is not one of the variants"),
    ],
)
def test_what_is_wrong_has_its_line_and_a_way_out(text, line, says):
    with pytest.raises(FleetError) as caught:
        parse_scenario(text.encode(), "s.yaml")
    assert str(caught.value).startswith(f"s.yaml:{line}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_variant_is_the_scenario_with_some_fields_replaced():
    extra = "variants:\n  - name: calm\n  - {name: wild, set: {seed: 9, controllers: {descheduler: null}}}\n"
    calm, wild = scenario(extra)
    assert (calm.name, calm.scenario.seed, wild.name, wild.scenario.seed) == ("calm", 5, "wild", 9)
    assert "descheduler" in calm.scenario.controllers
    assert "descheduler" not in wild.scenario.controllers
    assert wild.scenario.clusters == calm.scenario.clusters


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FleetError, match="give the path of a scenario file"):
        read_scenario(tmp_path / "no.yaml")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_scenario_or_an_error_of_one_line(data):
    try:
        parse_scenario(data)
    except FleetError as error:
        assert str(error)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(_VALUES, _VALUES)
def test_a_merge_leaves_what_is_merged_as_it_was_and_twice_is_once(target, patch):
    before = repr(target)
    once = merged(target, patch)
    assert repr(target) == before
    assert merged(once, patch) == once


@given(_VALUES)
def test_an_empty_patch_changes_no_object(target):
    if isinstance(target, dict):
        assert merged(target, {}) == target
