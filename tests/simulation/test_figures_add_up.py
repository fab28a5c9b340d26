"""Figures are what a plain count of the clusters' own objects and machines gives."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.catalogue.files import load_shipped
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool_fleet.cloud.cloud import Cloud, CloudOffer
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.simulation import engine, measurements
from karpool_fleet.simulation.engine import simulate
from karpool_fleet.simulation.figures import FIGURES, document
from karpool_fleet.simulation.measurements import Bill, most_at_once, quantile
from tests.simulation.small import scenario

pytestmark = pytest.mark.timeout(240)  # whole runs, on a machine that may be busy


@pytest.fixture(scope="module")
def run():
    """One run, and a naive look at the same clusters right before it ended."""
    seen = {}
    original = measurements.RunMeasurements.through

    async def through(self, progress):
        await original(self, progress)
        seen["amounts"] = {name: dict(each._amounts) for name, each in self.watching.items()}
        seen["waiting"] = {name: set(each.waiting) for name, each in self.watching.items()}
        seen["objects"] = {
            name: (await each.client("naive").list(PODS), await each.client("naive").list(NODES))
            for name, each in self._fleet.api_servers.items()
        }

    patch = pytest.MonkeyPatch()
    patch.setattr(engine.RunMeasurements, "through", through)
    try:
        [named] = scenario()
        return simulate(named), seen
    finally:
        patch.undo()


def test_what_is_requested_and_there_is_what_objects_say(run):
    _, seen = run
    for cluster, (pods, nodes) in seen["objects"].items():
        live = [each for each in pods.items if each["status"].get("phase") not in ("Succeeded", "Failed")]
        names = {each["metadata"]["name"] for each in nodes.items}
        bound = [each for each in live if each["spec"].get("nodeName") in names]
        used = sum(effective_requests(decode(each, Pod)).get("cpu", 0) for each in bound)
        assert seen["amounts"][cluster].get("cpu used", 0) == used
        there = sum(_milli(each["status"]["allocatable"]["cpu"]) for each in nodes.items)
        assert seen["amounts"][cluster].get("cpu there", 0) == there
        pending = {
            f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            for each in live
            if not each["spec"].get("nodeName")
        }
        assert seen["waiting"][cluster] == pending


def _milli(text):
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


def test_something_of_everything_happened(run):
    result, _ = run
    for figure in ("cost", "pods", "podsBound", "podsEnded", "launched", "refused", "placed", "nodesRemoved"):
        assert result.figures[figure], figure
    assert result.figures["overfull"] == 0
    assert result.figures["leftovers"] == 0


def test_clusters_add_up_to_the_whole(run):
    result, _ = run
    for figure in ("cost", "pods", "podsBound", "evictions", "launched", "stuckHours", "nodesMean"):
        parts = sum(figures[figure] or 0 for figures in result.by_cluster.values())
        assert result.figures[figure] == pytest.approx(parts)


def test_every_figure_is_in_every_result_and_has_a_title(run):
    result, _ = run
    assert set(result.figures) == set(FIGURES)
    assert set(document(result)["figures"]) == set(FIGURES)
    assert all(len(series.values) == len(result.times) for series in result.series.values())


def test_a_machine_costs_from_its_launch_to_its_end():
    catalogue = load_shipped("us-east-1")
    offer = CloudOffer("m7i.large", "us-east-1a", "on-demand")
    price = catalogue.types[offer.type].price(offer.zone, offer.capacity_type)

    async def story():
        clock = LoopClock()
        cloud = Cloud(catalogue, clock, Random(1))
        bill = Bill(clock.monotonic, since=clock.monotonic())
        cloud.subscribe(bill.heard)
        machine = await cloud.launch([offer], tags={}, labels={})
        await clock.sleep(1800)
        bill.settle()
        half = bill.spent
        ended = clock.monotonic()
        await cloud.terminate(machine.id)
        took = clock.monotonic() - ended
        await clock.sleep(7200)
        bill.settle()
        return half, bill.spent, took

    half, whole, took = run_manual(story())
    assert half == pytest.approx(price / 2)
    assert whole == pytest.approx(price * (1800 + took) / 3600)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12), st.integers(0, 5))
def test_most_at_once_is_what_looking_at_every_moment_finds(waits, after):
    spans = [(float(start), float(start + length)) for start, length in waits]
    moments = [number / 2 for number in range(90)]
    looked = max((sum(since + after < at < until for since, until in spans) for at in moments), default=0)
    assert most_at_once(spans, after) == looked


def test_quantiles_of_little_and_nothing():
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0


@pytest.mark.long
def test_measuring_begins_where_the_scenario_says(run):
    whole, _ = run
    [named] = scenario("measureFrom: 12m\n")
    late = simulate(named)
    assert late.figures["pods"] < whole.figures["pods"]
    assert late.figures["cost"] < whole.figures["cost"] / 3
    assert late.log == whole.log  # looking changes nothing


def test_a_fault_in_a_component_that_is_not_there_is_refused():
    [named] = scenario("actions: []\n")
    fewer = {name: flags for name, flags in named.scenario.controllers.items() if name != "scheduler"}
    changed = msgspec.structs.replace(named.scenario, controllers=fewer)
    without = msgspec.structs.replace(named, scenario=changed)
    with pytest.raises(FleetError, match="has no component 'scheduler'"):
        simulate(without)
