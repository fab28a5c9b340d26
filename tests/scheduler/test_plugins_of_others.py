"""Filters and scores of other packages take part in decisions, and cannot break them."""

from importlib.metadata import EntryPoint

import pytest

from karpool.manager.options import InvalidOptions, read_options
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import PLUGINS, DecisionOptions, enabled_plugins
from karpool.scheduler.cycle.decision import ScheduleReason
from karpool.scheduler.cycle.installed_plugins import ENTRY_POINTS, InstalledPlugin
from karpool.scheduler.cycle.settings import SchedulingSettings
from tests.scheduler.deciding import schedule
from tests.scheduler.placing import DYNAMIC, binding, clusters, rooms

ONE = [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]


class Nights:
    """Refuses one cluster, and likes another."""

    name = "Nights"

    def filter(self, binding, cluster):
        return "is asleep" if cluster.name == "m1" else ""

    def score(self, binding, cluster):
        return 70 if cluster.name == "m3" else 0


class Broken:
    name = "Broken"

    def __init__(self, answer=None):
        self.answer = answer

    def filter(self, binding, cluster):
        if self.answer is None:
            raise RuntimeError("out of ideas" + "!" * 1000)
        return self.answer

    def score(self, binding, cluster):
        return self.filter(binding, cluster)


class Silent:
    name = "Silent"


def decided(*plugins, placement=None, **more):
    settings = SchedulingSettings(others=tuple(InstalledPlugin(plugin.name, plugin) for plugin in plugins))
    told = binding(replicas=2, placement=placement or DYNAMIC, **more)
    return schedule(told, clusters("m1", "m2", "m3"), rooms(m1=9, m2=9, m3=9), settings)


def chosen(decision):
    return {target.name for target in decision.targets}


def test_a_filter_leaves_a_cluster_out_and_is_named():
    decision = decided(Nights())
    assert "m1" not in chosen(decision)
    (refused,) = decision.attempts[-1].refused
    assert (refused.about, refused.reason, refused.detail) == (
        "m1",
        ScheduleReason.PLUGIN,
        "plugin Nights: is asleep",
    )


def test_a_score_decides_between_equal_clusters():
    one = {**DYNAMIC, "spreadConstraints": ONE}
    assert chosen(decided(placement=one)) == {"m1"}
    assert chosen(decided(Nights(), placement=one)) == {"m3"}


def test_no_score_outweighs_where_the_binding_is():
    one = {**DYNAMIC, "spreadConstraints": ONE}

    class Loud(Silent):
        name = "Loud"

        def score(self, binding, cluster):
            return 10**9 if cluster.name == "m3" else -(10**9)

    assert chosen(decided(Loud(), placement=one)) == {"m3"}
    # A hundred for the plugin, a hundred for the place: the one with more room for what is there wins.
    assert chosen(decided(Loud(), placement=one, previous={"m2": 2})) == {"m2"}


@pytest.mark.parametrize("answer", [None, 7, ["m1"], object()])
def test_a_filter_that_fails_lets_nothing_through_and_says_so(answer):
    decision = decided(Broken(answer))
    assert not decision.is_success
    assert len(decision.attempts[-1].refused) == 3
    for refused in decision.attempts[-1].refused:
        assert "plugin Broken: failed" in refused.detail
        assert len(refused.detail) < 300


def test_a_score_that_fails_is_no_preference():
    class Numb(Silent):
        name = "Numb"

        def score(self, binding, cluster):
            raise RuntimeError

    assert chosen(decided(Numb())) == chosen(decided())


@pytest.fixture
def entries(monkeypatch):
    places = {
        "Nights": "tests.scheduler.test_plugins_of_others:Nights",
        "Silent": "tests.scheduler.test_plugins_of_others:Silent",
        "Other": "tests.scheduler.test_plugins_of_others:Nights",
        "Lost": "no.such.module:Lost",
        "ClusterAffinity": "no.such.module:Lost",
    }
    points = [EntryPoint(name, place, ENTRY_POINTS) for name, place in places.items()]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)


@pytest.mark.usefixtures("entries")
def test_only_those_that_are_named_are_loaded():
    assert enabled_plugins(("*",)) == frozenset(PLUGINS)
    assert enabled_plugins(("*", "Nights", "-ClusterEviction")) == {*PLUGINS, "Nights"} - {"ClusterEviction"}
    assert DecisionOptions().settings().others == ()
    (plugin,) = read_options(DecisionOptions, {"plugins": ["*", "Nights"]}).settings().others
    assert (plugin.name, plugin.filters, plugin.scores) == ("Nights", True, True)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Nothing", "is not a plugin; known are"),
        ("Silent", "has neither filter nor score"),
        ("Other", 'calls itself "Nights"'),
        ("Lost", 'failed to initialize plugin "Lost"'),
    ],
)
def test_one_that_cannot_run_is_named(name, why):
    with pytest.raises((Invalid, InvalidOptions), match=why):
        DecisionOptions(plugins=("*", name)).settings()
