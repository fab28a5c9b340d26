"""Code of the pages for Python and of the notebooks is executed, in order, where the example fleet lies."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from karpool import plugins
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.plugins.registry import PluginSettings
from karpool.estimator.question import EstimateQuestion
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.scheduler.cycle.installed_plugins import InstalledPlugin
from karpool.wire.requests import NO_SHAPE, ReplicasRequest
from tests.estimator.pictures import in_room

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples/notebooks/example-fleet.json", tmp_path)
    monkeypatch.chdir(tmp_path)


def executed(blocks: list[str], name: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": name}
    assert blocks
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}[{number}]", "exec"), names)
    return names


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_of_the_api():
    names = executed(blocks_of("python.md"), "python.md")
    assert list(names["saved"]) == ["general-5"]


def question(namespace: str) -> EstimateQuestion:
    rows = [NodeRow("n", allocatable={"pods": 50})]
    needs = ReplicaRequirements(NO_SHAPE, namespace)
    return EstimateQuestion(ReplicasRequest("c", needs), in_room(snapshot_of(rows)))


async def test_the_plugins_of_the_page_do_what_they_say(monkeypatch):
    names = executed(blocks_of("plugins.md"), "plugins.md")
    settings = PluginSettings(cluster="member1")

    limited = Framework([NodeResourceEstimator()], [names["Ceiling"](settings)])
    assert (await limited.run(question("trial"))).answer == 10
    assert (await limited.run(question("shop"))).answer == 50

    spared = Framework([], [names["WithSpares"](settings)])
    assert (await spared.run(question("shop"))).answer == 50 + 12

    nights = InstalledPlugin("Nights", names["Nights"]())
    closed = plugins.MemberCluster(name="a", labels={"example.com/closed": "true"})
    europe = plugins.MemberCluster(name="b", region="eu-west-1")
    assert nights.refusal(None, closed) == "the cluster is closed"  # type: ignore[arg-type]
    assert not nights.refusal(None, europe)  # type: ignore[arg-type]
    assert (nights.score(None, closed), nights.score(None, europe)) == (0, 100)  # type: ignore[arg-type]
    assert isinstance(names["Nights"](), plugins.FiltersClusters | plugins.ScoresClusters)


def test_every_promised_name_is_there():
    assert all(getattr(plugins, name) is not None for name in plugins.__all__)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook, capsys):
    document = json.loads(notebook.read_text())
    cells = ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in document["cells"])  # outputs would become old
    names = executed([cell.replace('"2h"', '"61m"') for cell in cells], notebook.stem)
    out = capsys.readouterr().out
    if notebook.stem == "how-full-is-my-fleet":
        assert len(names["fits"]) == 3
        assert "$/h" in out
        assert 0 < names["idle"] < names["total"]
    else:
        assert set(names["cost"]) == {"WhenEmpty", "Balanced", "WhenEmptyOrUnderutilized"}
        assert names["cheapest"] in names["cost"]


def test_there_are_two_notebooks():
    assert len(NOTEBOOKS) == 2
