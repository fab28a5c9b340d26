"""Plugins that nobody here wrote: they come by entry point, and may do their worst."""

import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from karpool.estimator.plugins import registry
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import Estimate, EstimateCode, PluginRole
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.plugins.registry import PluginSettings, chosen
from karpool.estimator.question import EstimateQuestion
from karpool.manager.plugins import installed
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import NAMESPACES
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.wire.requests import ReplicasRequest
from tests.estimator.pictures import in_room
from tests.estimator.serving import World, asks, eventually, node, serving

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/estimator-plugin"
KNOWN = ("NodeAutoscalerEstimator", "NodeResourceEstimator", "ResourceQuotaEstimator", "Theirs")


class Theirs:
    name = "Theirs"

    def __init__(self, does):
        self._does = does

    def estimate(self, question):
        return self._does(question)


def asked(cpus=4):
    return EstimateQuestion(
        ReplicasRequest("c"), in_room(snapshot_of([NodeRow("n", allocatable={"pods": cpus})]))
    )


async def run(plugin, timeout_seconds=20.0):
    framework = Framework([NodeResourceEstimator()], [plugin], timeout_seconds=timeout_seconds)
    return await framework.run(asked())


async def test_a_plugin_without_a_role_caps():
    assert (await run(Theirs(lambda question: Estimate(3)))).answer == 3


async def test_a_plugin_may_be_a_source():
    plugin = Theirs(lambda question: Estimate(3))
    plugin.role = PluginRole.SOURCE

    assert (await run(plugin)).answer == 7


@pytest.mark.parametrize(
    "error",
    [RuntimeError("boom"), Invalid("x", 1, "is bad"), SystemExit(3), KeyboardInterrupt(), StopIteration()],
)
async def test_a_plugin_that_raises_cannot_tell(error):
    def raises(question):
        raise error

    found = await run(Theirs(raises))

    assert found.answer == -1
    assert found.code is EstimateCode.UNKNOWN
    assert any("Theirs" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    "nonsense", [None, 5, "many", (3, EstimateCode.SUCCESS), Estimate("three"), Estimate(1, "Fine")]
)
async def test_a_plugin_that_returns_something_else_cannot_tell(nonsense):
    assert (await run(Theirs(lambda question: nonsense))).answer == -1


async def test_a_plugin_that_hangs_cannot_tell_and_is_asked_again_when_it_is_back():
    release = threading.Event()
    calls = []

    def hangs(question):
        calls.append(question)
        release.wait(30)
        return Estimate(2)

    plugin = Theirs(hangs)
    framework = Framework([NodeResourceEstimator()], [plugin], timeout_seconds=0.02)
    for _ in range(10):
        assert (await framework.run(asked())).answer == -1
    assert len(calls) == 8  # places; the others were not even started

    release.set()
    await eventually(lambda: not framework._guards["Theirs"].abandoned)
    patient = Framework([NodeResourceEstimator()], [plugin], timeout_seconds=20.0)
    assert (await patient.run(asked())).answer == 2


async def test_a_plugin_that_raises_does_not_take_the_server_down(monkeypatch):
    class Broken:
        name = "NodeResourceEstimator"

        def estimate(self, question):
            raise ZeroDivisionError

    world = World()
    await world.add(node("a"))
    monkeypatch.setitem(registry.IN_TREE, "NodeResourceEstimator", lambda settings: Broken())
    async with serving(world.transport) as estimator:
        assert await estimator.replicas(asks()) == -1
        found = await estimator.explain()

    assert found.code == "Unknown"
    assert found.plugins[0].reasons == ["NodeResourceEstimator raised ZeroDivisionError"]


# Choosing


@pytest.mark.parametrize(
    ("plugins", "providers", "enabled"),
    [
        ((), (), ["NodeResourceEstimator", "ResourceQuotaEstimator"]),
        (("*",), (), sorted(KNOWN)),
        (("*", "-Theirs"), (), sorted(set(KNOWN) - {"Theirs"})),
        (("-ResourceQuotaEstimator",), (), ["NodeResourceEstimator"]),
        (("Theirs", "NodeResourceEstimator"), (), ["Theirs", "NodeResourceEstimator"]),
        ((), ("karpenter",), ["NodeResourceEstimator", "ResourceQuotaEstimator", "NodeAutoscalerEstimator"]),
        (("NodeAutoscalerEstimator",), ("karpenter",), ["NodeAutoscalerEstimator"]),
    ],
)
def test_names_choose_plugins(plugins, providers, enabled):
    assert chosen(plugins, providers, KNOWN) == enabled


@pytest.mark.parametrize("name", ["NodeResourceEstimater", "-Nothing", "noderesourceestimator"])
def test_a_name_that_nobody_knows_is_refused(name):
    with pytest.raises(Invalid, match="is not a plugin; known are") as error:
        chosen([name, "NodeResourceEstimator"], (), KNOWN)

    assert "ResourceQuotaEstimator" in str(error.value)


def test_a_plugin_that_cannot_be_made_is_named(monkeypatch):
    entry = EntryPoint("Theirs", "no.such.module:Theirs", registry.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])

    with pytest.raises(Invalid, match='failed to initialize plugin "Theirs"'):
        registry.build(["Theirs"], PluginSettings())


def test_nobody_takes_the_name_of_ours(monkeypatch):
    entry = EntryPoint("NodeResourceEstimator", "no.such.module:Theirs", registry.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])

    assert installed(registry.ENTRY_POINTS, registry.IN_TREE) == {}
    (plugin,) = registry.build(["NodeResourceEstimator"], PluginSettings())
    assert isinstance(plugin, NodeResourceEstimator)


# The example of the documentation


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Installed as a user would, into a folder of its own."""
    folder = tmp_path_factory.mktemp("plugins")
    flags = (
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "--target",
        folder,
    )
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, EXAMPLE], check=True)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("namespace_ceiling", None)


async def test_the_example_plugin_is_found_installed_and_heard(example):
    world = World()
    await world.add(node("a"))
    await world.client.create(
        NAMESPACES, {"metadata": {"name": "small", "annotations": {"example.com/replica-ceiling": "2"}}}
    )
    await world.namespace("free")
    assert "NamespaceCeiling" in installed(registry.ENTRY_POINTS, registry.IN_TREE)

    plugins = ("NodeResourceEstimator", "NamespaceCeiling")
    async with serving(world.transport, plugins=plugins) as estimator:
        small, free = asks(), asks()
        small.replica_requirements.namespace = "small"
        free.replica_requirements.namespace = "free"
        assert await estimator.replicas(small) == 2
        assert await estimator.replicas(free) == 4

        changed = {"metadata": {"annotations": {"example.com/replica-ceiling": "0"}}}
        await world.client.patch(NAMESPACES, "small", changed)
        plugin = estimator.members["member1"].framework.plugins[-1]
        await eventually(lambda: plugin._ceilings.known["small"] == 0)
        assert await estimator.replicas(small) == 0
