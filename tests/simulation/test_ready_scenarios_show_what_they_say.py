"""The ready scenarios, played as far as it takes to see what each is there to show."""

import json

import msgspec
import pytest

from karpool.cli.embedded.simulate import unmet
from karpool_fleet.simulation.engine import simulate
from karpool_fleet.simulation.ready_scenarios import FOLDER
from karpool_fleet.simulation.scenario_file import read_scenario


def part_of(name, duration, variant=None, **changes):
    """One variant, the first without a name, played this far; and what is not as the file expects."""
    variants = {each.name: each for each in read_scenario(FOLDER / f"{name}.yaml")}
    named = variants[variant or next(iter(variants))]
    shorter = msgspec.structs.replace(named.scenario, duration=duration, **changes)
    result = simulate(msgspec.structs.replace(named, scenario=shorter), folder=FOLDER)
    return result, unmet(shorter.expect, result)


def decided(result, what):
    lines = [json.loads(line) for line in result.log]
    return [line for line in lines if line["decision"] == what]


@pytest.fixture
def play():
    def played(name, duration):
        """Figures of the first variant; what the file itself expects has come true."""
        result, missed = part_of(name, duration)
        assert missed == []
        return result.figures

    return played


def test_every_ready_file_says_what_it_expects():
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) == 11
    assert [file.stem for file in files if not read_scenario(file)[0].scenario.expect] == []


@pytest.mark.long
def test_replicas_are_placed_where_gpus_could_be_bought_and_each_gets_one(play):
    figures = play("scale-from-zero-gpu", "15m")
    assert figures["launched"] == figures["podsBound"] == 10
    assert figures["placed"] == 1  # decided once, on machines that were not there yet
    assert figures["gpuUse"] == 100


@pytest.mark.long
def test_a_limit_that_is_raised_lets_in_what_waited_and_nothing_waits_inside(play):
    figures = play("pool-limits", "45m")
    assert figures["podsBound"] == 40
    assert figures["placed"] > 1  # some of them only after the limit was raised
    assert figures["pendingMost"] < 120  # half an hour was waited for the limit, not by pods


@pytest.mark.long
def test_what_a_cloud_out_of_stock_cannot_start_is_placed_elsewhere_once(play):
    figures = play("shortage-and-descheduler", "40m")
    assert figures["refused"] > 0
    assert figures["pods"] > figures["podsBound"] == 80  # those in the east never started, and came again
    assert figures["pendingEnd"] == 0


@pytest.mark.long
def test_nodes_come_go_and_come_back(play):
    figures = play("out-in-and-out-again", "130m")
    assert (figures["launched"], figures["nodesRemoved"], figures["nodesEnd"]) == (7, 3, 4)
    assert figures["moves"] == 3
    assert figures["evictions"] == 0


@pytest.mark.long
def test_without_protection_the_same_room_is_given_away_twice_and_with_it_never():
    kept, missed = part_of("regions-by-room", "5m30s", "protected")
    given_twice, missed_too = part_of("regions-by-room", "5m30s", "unprotected")
    assert missed == missed_too == []
    assert kept.figures["pods"] == kept.figures["podsBound"] < given_twice.figures["pods"]
    assert given_twice.figures["stuckMost"] > 10
    bought = [kept.by_cluster[each]["launched"] for each in ("virginia", "oregon", "ireland")]
    assert bought == sorted(bought, reverse=True)  # the larger the room, the more goes there
    assert bought[-1] > 0


@pytest.mark.long
def test_pools_are_used_by_weight_and_another_zone_follows_one_that_fails():
    result, missed = part_of("several-pools", "23m")
    assert missed == []  # among it: someone was drained from spot, someone was lost with the zone
    nodes = decided(result, "node")
    assert [node["pool"] for node in nodes[:4]] == ["first", "first", "first", "spot"]
    assert {each["capacityType"] for each in nodes if each["pool"] == "spot"} == {"spot"}
    before, after = (
        [each["zone"] for each in nodes if (each["t"] > 21 * 60) == late] for late in (False, True)
    )
    assert "us-east-1a" in before
    assert set(after) == {"us-east-1b"}
    assert {each["t"] // 60 for each in decided(result, "lost")} <= {21, 22}


@pytest.mark.long
def test_a_fraction_brings_one_node_for_each_need_whatever_fails():
    result, _ = part_of("gpu-fractions", "60m")
    figures = result.figures
    assert figures["refused"] == 3  # stock-out: another type, not another node
    assert figures["launched"] == figures["scaleUps"] == 8
    assert {each["type"] for each in decided(result, "node")} == {"g6.xlarge", "g5.xlarge"}
    assert figures["podsBound"] == figures["pods"] == 16 > figures["launched"]  # devices are shared
    assert 200 < figures["pendingMost"] < 300  # slow devices, and a crash while they are waited for
    assert figures["leftovers"] == figures["pendingEnd"] == 0


@pytest.mark.long
def test_model_servers_follow_their_load_in_two_regions_through_an_interruption_and_slow_devices():
    result, _ = part_of("inference", "26m")
    figures = result.figures
    assert [each["to"] for each in decided(result, "placed")] == [
        {"east": 1, "west": 1},
        {"east": 3, "west": 3},
    ]
    assert [each["t"] for each in decided(result, "evicted")] == [600]  # spot, interrupted after ten minutes
    assert figures["stuckMost"] == 1  # the one whose node had no device for five minutes
    assert figures["pendingEnd"] == 0
    assert figures["gpuUse"] > 99


@pytest.mark.long
def test_the_eager_policy_disturbs_and_saves_the_careful_ones_do_not():
    results = {
        name: part_of("consolidation-policies", "30m", name, measure_from="0s")[0].figures
        for name in ("WhenEmpty", "Balanced", "WhenEmptyOrUnderutilized")
    }
    assert results["WhenEmpty"]["evictions"] == results["Balanced"]["evictions"] == 0
    eager = results["WhenEmptyOrUnderutilized"]
    assert eager["evictions"] > 0
    assert eager["moves"] > 0
    assert eager["cost"] < results["WhenEmpty"]["cost"]
    assert eager["nodesEnd"] < results["WhenEmpty"]["nodesEnd"]
    assert all(result["stuckMost"] == result["overfull"] == 0 for result in results.values())


@pytest.mark.long
def test_pods_of_a_trace_get_what_they_need_and_it_is_given_back():
    trace = msgspec.structs.replace(read_scenario(FOLDER / "trace.yaml")[0].scenario.traces[0], limit=20)
    result, missed = part_of("trace", "4h", traces=[trace])
    figures = result.figures
    assert missed == []
    assert figures["pods"] == figures["podsBound"] == figures["podsEnded"] == 20
    assert figures["launched"] == figures["nodesRemoved"] > 0
    assert figures["nodesEnd"] == 0
    assert figures["evictions"] == 0


@pytest.mark.long
def test_who_knows_the_plan_pays_less_and_sees_what_is_billed():
    """Four hours of thirty days: the plan's family is listed dearer, and costs nothing more."""
    known, missed = part_of("shared-plan", "4h", "contract known", measure_from="2h")
    listed, missed_too = part_of("shared-plan", "4h", "list prices only", measure_from="2h")
    assert missed == missed_too == []
    assert known.figures["billed"] < 0.9 * listed.figures["billed"]
    assert known.figures["billPredicted"] == pytest.approx(known.figures["billed"], rel=0.05)
    assert listed.figures["billPredicted"] is None
