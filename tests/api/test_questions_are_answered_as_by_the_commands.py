"""The Python API says what the commands say: same numbers, same words, same documents."""

import asyncio
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import karpool
from karpool.api.answers import html_table
from karpool.cli.main import run

FLEET = Path(__file__).resolve().parents[2] / "examples/notebooks/example-fleet.json"
WEB = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}},
}
NOTHING = """\
kind: Scenario
duration: 1m
clusters:
  - {name: a, autoscaler: none, nodes: [{type: m7i.large, count: 1}]}
"""


@pytest.fixture(scope="module")
def cluster():
    return karpool.open_cluster(FLEET)


@pytest.fixture
def said(capsys):
    def by_command(*words):
        run([*words, "--snapshot", str(FLEET)], "karpool")
        return capsys.readouterr().out

    return by_command


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda cluster: cluster.nodes(), ("top", "nodes")),
        (lambda cluster: cluster.pools(), ("top", "pools")),
        (lambda cluster: cluster.plan("Balanced", 2), ("plan", "--policy", "Balanced", "--threshold", "2")),
        (lambda cluster: cluster.plan(min_savings_per_hour=9.0), ("plan", "--min-savings", "9")),
        (lambda cluster: cluster.explain("general-5"), ("explain", "node", "general-5")),
    ],
)
def test_documents_are_those_of_the_command(cluster, said, ask, words):
    theirs, ours = json.loads(said(*words, "-o", "json")), ask(cluster).to_dict()
    for document in (theirs, ours):
        for key in ("madeAt", "made_at"):
            document.pop(key, None)  # of a plan: each was made at its own moment
        document.pop("lifetime_remaining", None)
    assert ours == theirs


def test_capacity_is_that_of_the_command(cluster, said, tmp_path):
    (tmp_path / "web.json").write_text(json.dumps(WEB))
    theirs = said("capacity", "-f", str(tmp_path / "web.json"), "--replicas", "40", "-o", "json")
    for workload in (WEB, tmp_path / "web.json", str(tmp_path / "web.json")):
        answer = cluster.capacity(workload, replicas=40)
        assert answer.to_dict() == json.loads(theirs)
    assert str(answer).splitlines()[0].startswith("WHERE")
    assert answer.fits
    assert answer.new_nodes == 1
    assert not cluster.capacity(WEB, replicas=10_000).fits


def test_a_count_is_what_capacity_has_room_for(cluster):
    count = cluster.count(WEB)
    assert int(count) == count.now > 0
    assert cluster.capacity(WEB, replicas=count.now).verdict.value == "fits now"
    assert cluster.capacity(WEB, replicas=count.now + 1).verdict.value == "fits after scale-up"
    assert not cluster.capacity(WEB, replicas=count.most + 1).fits


def test_what_if_takes_a_node_that_is_named_twice_once(cluster):
    assert cluster.what_if("general-3", "general-3") == cluster.what_if("general-3")


def test_what_if_places_every_pod_or_says_why_not(cluster):
    gone = cluster.what_if("general-3", "general-4")
    assert gone.possible
    assert {row["pod"] for row in gone.rows} == {"shop/web-3", "shop/web-4"}
    assert not {"general-3", "general-4"} & {row["to"] for row in gone.rows}
    assert gone.to_dict()["nodes"] == ["general-3", "general-4"]
    nowhere = cluster.what_if("no-such-node")
    assert not nowhere.possible
    assert "no-such-node" in str(nowhere)


def test_a_given_object_is_not_changed(cluster):
    before = json.dumps(WEB)
    cluster.capacity(WEB, namespace="shop")
    assert json.dumps(WEB) == before


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda cluster: cluster.plan("Eager"), "WhenEmptyOrUnderutilized"),
        (lambda cluster: cluster.plan(threshold=99), "between 1 and 3"),
        (lambda cluster: cluster.plan(savings=1), "min_savings_per_hour"),
        (lambda cluster: cluster.plan(region="eu-west-1"), "plan has no region"),
        (lambda cluster: cluster.explain("no-such-node"), "no-such-node"),
        (lambda cluster: cluster.what_if(), "at least one node"),
        (lambda cluster: cluster.capacity(WEB, replicas=1.5), "--replicas: 1.5: is not a whole number"),
        (lambda cluster: cluster.capacity({"kind": "Service"}), "contains no object with pods"),
        (lambda cluster: cluster.capacity("/no/such.yaml"), "/no/such.yaml"),
        (lambda cluster: cluster.capacity(WEB, replicas=-1), "-1"),
        (lambda cluster: karpool.open_cluster("/no/such.gz"), "/no/such.gz"),
        (lambda cluster: karpool.open_cluster(FLEET, context="prod"), "--snapshot"),
        (lambda cluster: karpool.open_cluster(FLEET, catalogue="/no/such.yaml"), "/no/such.yaml"),
        (lambda cluster: karpool.simulate("/no/such.yaml"), "/no/such.yaml"),
        (lambda cluster: karpool.simulate("pool-limits", variants=["no"]), "--variant"),
        (lambda cluster: cluster.nodes().to_polars(), "pip install polars"),
        (lambda cluster: cluster.nodes().to_pandas(), "pip install pandas"),
    ],
)
def test_what_cannot_be_answered_says_why(cluster, monkeypatch, ask, says):
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(karpool.KarpoolError, match=says):
        ask(cluster)


def test_a_page_obeys_no_text_of_a_cluster():
    page = html_table([{"<i>name</i>": "<script>alert(1)</script>", "pods": 3}, {"more": None}])
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<tr>") == 3


def test_an_answer_without_rows_shows_its_words(cluster):
    assert cluster.plan(min_savings_per_hour=9.0)._repr_html_().startswith("<pre>")


def test_tables_go_to_what_is_installed(cluster, monkeypatch):
    made = types.SimpleNamespace(DataFrame=lambda rows, **settings: ("frame", rows))
    monkeypatch.setitem(sys.modules, "polars", made)
    monkeypatch.setitem(sys.modules, "pandas", made)
    answer = cluster.plan()
    assert answer.to_polars() == answer.to_pandas() == ("frame", [dict(row) for row in answer.rows])


async def test_questions_may_be_asked_inside_a_running_loop(tmp_path):
    """As in a notebook."""
    (tmp_path / "quiet.yaml").write_text(NOTHING)
    assert karpool.open_cluster(FLEET).name == FLEET.name
    played = karpool.simulate(tmp_path / "quiet.yaml")
    assert played.figure("pods") == {"result": 0}
    assert asyncio.get_running_loop().is_running()


def test_a_simulation_has_a_row_for_each_seed_and_says_what_is_not_as_expected(tmp_path):
    (tmp_path / "s.yaml").write_text(NOTHING + "expect:\n  - {figure: pods, least: 5}\n")
    played = karpool.simulate(tmp_path / "s.yaml", seeds=[1, 2])
    assert [row["seed"] for row in played.rows] == [1, 2]
    assert len(played.unmet) == 2
    with pytest.raises(karpool.KarpoolError, match="cost"):
        played.figure("no such figure")


def test_refreshing_reads_again(tmp_path):
    (tmp_path / "fleet.json").write_text(FLEET.read_text())
    cluster = karpool.open_cluster(tmp_path / "fleet.json")
    fewer = json.loads(FLEET.read_text())
    fewer["items"] = [entry for entry in fewer["items"] if entry["metadata"]["name"] != "general-5"]
    (tmp_path / "fleet.json").write_text(json.dumps(fewer))
    assert len(cluster.nodes().rows) == 7
    cluster.refresh()
    assert len(cluster.nodes().rows) == 6


def test_importing_it_imports_nothing_heavy():
    """Every command begins with this import."""
    code = "import sys, karpool; print(sorted({'numpy', 'click', 'msgspec', 'aiohttp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(karpool, name) is not None for name in dir(karpool))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = karpool.no_such_name
