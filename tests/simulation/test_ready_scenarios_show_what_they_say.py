"""The ready scenarios, played as far as it takes to see what each is there to show."""

from pathlib import Path

import msgspec
import pytest

from karpool.cli.simulate import unmet
from karpool.fleet.simulation.engine import simulate
from karpool.fleet.simulation.scenario_file import read_scenario

FOLDER = Path(__file__).parents[2] / "scenarios"


@pytest.fixture
def play():
    def played(name, duration):
        """Figures of the first variant; what the file itself expects has come true."""
        named = read_scenario(FOLDER / f"{name}.yaml")[0]
        shorter = msgspec.structs.replace(named.scenario, duration=duration)
        result = simulate(msgspec.structs.replace(named, scenario=shorter), folder=FOLDER, keep_log=False)
        assert unmet(shorter.expect, result) == []
        return result.figures

    return played


def test_replicas_are_placed_where_gpus_could_be_bought_and_each_gets_one(play):
    figures = play("scale-from-zero-gpu", "15m")
    assert figures["launched"] == figures["podsBound"] == 10
    assert figures["placed"] == 1  # decided once, on machines that were not there yet
    assert figures["gpuUse"] == 100


def test_a_limit_that_is_raised_lets_in_what_waited_and_nothing_waits_inside(play):
    figures = play("pool-limits", "45m")
    assert figures["podsBound"] == 40
    assert figures["placed"] > 1  # some of them only after the limit was raised
    assert figures["pendingMost"] < 120  # half an hour was waited for the limit, not by pods


def test_what_a_cloud_out_of_stock_cannot_start_is_placed_elsewhere_once(play):
    figures = play("shortage-and-descheduler", "40m")
    assert figures["refused"] > 0
    assert figures["pods"] > figures["podsBound"] == 80  # those in the east never started, and came again
    assert figures["pendingEnd"] == 0


def test_nodes_come_go_and_come_back(play):
    figures = play("out-in-and-out-again", "130m")
    assert (figures["launched"], figures["nodesRemoved"], figures["nodesEnd"]) == (7, 3, 4)
    assert figures["moves"] == 3
    assert figures["evictions"] == 0
