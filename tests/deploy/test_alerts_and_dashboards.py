"""Alerts and dashboards ask only for metrics and labels that the program has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import build_dashboards

from karpool.consolidation.execution.record import MovePhase
from karpool.estimator.serving.metrics import RESULTS as ESTIMATES
from karpool.scheduler.controller.metrics import RESULTS as ATTEMPTS
from karpool.scheduler.controller.queue import POOLS
from karpool.scheduler.promises.ledger import PromiseEnd
from tests.deploy.manifests import DEPLOY, ROOT, Object

RULES = sorted((DEPLOY / "alerts").glob("*.yaml"))
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
_NAME = re.compile(r"\b(?:karpool|karmada|karpenter|scheduler)_[a-z0-9_]+\b")
_SELECTED = re.compile(r"([a-z_:]+)\{([^}]*)\}")
_BY = re.compile(r"\bby \(([^)]*)\)")


def known() -> dict[str, set[str]]:
    """Every series with its labels, from the reference that is made from the code."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if match := re.match(r"\| `([a-z0-9_]+)` \| (\w+) \| ([^|]*) \|", line):
            name, kind, labels = match[1], match[2], set(re.findall(r"`(\w+)`", match[3]))
            if kind == "histogram":
                found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
            else:
                found[name] = labels
    return found


KNOWN = known()


def check(expression: str) -> None:
    names = set(_NAME.findall(expression))
    assert names, expression
    assert names <= set(KNOWN), names - set(KNOWN)
    for name, selectors in _SELECTED.findall(expression):
        labels = set(re.findall(r"(\w+)\s*[!=]~?=?", selectors))
        assert labels <= KNOWN[name], (name, labels)
    labels = {each.strip() for group in _BY.findall(expression) for each in group.split(",")}
    assert labels <= set.union(*(KNOWN[name] for name in names)), (labels, expression)


def test_the_reference_is_read() -> None:
    assert len(KNOWN) > 60
    assert KNOWN["karpool_gpu_scaling_results_total"] == {"pool", "model", "result", "reason"}
    with pytest.raises(AssertionError):
        check("sum(karpool_estimator_no_such_thing)")
    with pytest.raises(AssertionError):
        check("sum by (pod) (karpool_estimator_cluster_nodes)")
    with pytest.raises(AssertionError):
        check('karpool_estimator_cluster_nodes{pod="x"}')


def rules(path: Path) -> list[Object]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_alerts_ask_for_what_exists_and_say_what_to_do(path: Path) -> None:
    for rule in rules(path):
        check(rule["expr"])
        if "alert" in rule:
            assert rule["alert"].startswith("Karpool")
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert len(rule["annotations"]["description"]) > 60, "a person is woken: say what to look at"


def test_values_that_alerts_look_for_are_ones_that_there_are() -> None:
    values: dict[str, set[str]] = {}
    for path in RULES:
        if path.stem == "gpu":  # has a test of its own
            continue
        for rule in rules(path):
            for label, text in re.findall(r'(\w+)=~?"([^"]+)"', rule["expr"]):
                values.setdefault(label, set()).update(text.split("|"))
    assert values.pop("result") <= {*ESTIMATES, *ATTEMPTS, "kept", "descheduled", "error"}
    assert values.pop("reason") <= {each.value for each in PromiseEnd}
    assert values.pop("queue") <= set(POOLS)
    assert values.pop("phase") | values.pop("outcome") <= {str(each) for each in MovePhase}
    assert values == {"step": {"Total"}}


@pytest.mark.long
def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: the rules were not checked by Prometheus itself")
    stories = Path(__file__).parent / "alerts_test.yaml"
    for command in (["check", "rules", *map(str, RULES)], ["test", "rules", str(stories)]):
        answer = subprocess.run([tool, *command], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr


# For each alert without a story in alerts_test.yaml: after how long, series of minutes that raise it, and
# milder ones that must not.
_ATTEMPTS = 'karmada_scheduler_schedule_attempts_total{result="%s"}'
_SECONDS = 'karmada_scheduler_estimator_estimating_algorithm_duration_seconds_bucket{step="Total",le="%s"}'
_MOVES = 'karpool_consolidation_move_outcomes_total{outcome="%s"}'
_DISTURBED = "karpool_consolidation_pods_%sdisturbed_total"
STORIES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "KarpoolConsolidationStopped": (
        "13h",
        {"karpool_consolidation_stopped": "1x900"},
        {"karpool_consolidation_stopped": "1x600 0x300"},
    ),
    "KarpoolMovesRolledBack": (
        "70m",
        {_MOVES % "RolledBack": "0+0.2x90", _MOVES % "Done": "0+0.1x90"},
        {_MOVES % "RolledBack": "0+0.02x90", _MOVES % "Done": "0+0.01x90"},
    ),
    "KarpoolPodsDisturbedAgain": (
        "70m",
        {_DISTURBED % "re": "0+3x90", _DISTURBED % "": "0+10x90"},
        {_DISTURBED % "re": "0+1x90", _DISTURBED % "": "0+10x90"},
    ),
    "KarpoolSavingsUnknown": (
        "2h",
        {"karpool_consolidation_unmeasured_moves_total": "0x60 1x90"},
        {"karpool_consolidation_unmeasured_moves_total": "4x150"},
    ),
    "KarpoolEstimatorClusterStale": (
        "20m",
        {'karpool_estimator_cluster_staleness_seconds{cluster="m1"}': "0+60x30"},
        {'karpool_estimator_cluster_staleness_seconds{cluster="m1"}': "299x30"},
    ),
    "KarpoolEstimatorSlow": (
        "30m",
        {_SECONDS % "0.5": "0+50x40", _SECONDS % "1": "0+100x40", _SECONDS % "+Inf": "0+100x40"},
        {_SECONDS % "0.5": "0+100x40", _SECONDS % "1": "0+100x40", _SECONDS % "+Inf": "0+100x40"},
    ),
    "KarpoolPoolDoesNotLaunch": (
        "40m",
        {'karpool_estimator_failed_pools{cluster="m",provider="karpenter",pool="p",cause="c"}': "1x60"},
        {'karpool_estimator_failed_pools{cluster="m",provider="karpenter",pool="p",cause="c"}': "1x20 0x40"},
    ),
    "KarpoolObjectsNotUnderstood": (
        "20m",
        {'karpool_estimator_cluster_skipped_objects{cluster="m1"}': "2x30"},
        {'karpool_estimator_cluster_skipped_objects{cluster="m1"}': "0x30"},
    ),
    "KarpoolSchedulerTwoLeaders": (
        "5m",
        {'karpool_scheduler_leading{pod="a"}': "1x9", 'karpool_scheduler_leading{pod="b"}': "1x9"},
        {'karpool_scheduler_leading{pod="a"}': "1x4 0x5", 'karpool_scheduler_leading{pod="b"}': "0x4 1x5"},
    ),
    "KarpoolSchedulingErrors": (
        "40m",
        {_ATTEMPTS % "error": "0+3x60", _ATTEMPTS % "scheduled": "0+7x60"},
        {_ATTEMPTS % "error": "0+1x60", _ATTEMPTS % "scheduled": "0+9x60"},
    ),
    "KarpoolBindingsWait": (
        "90m",
        {'scheduler_pending_bindings{queue="unschedulable"}': "3x90"},
        {
            'scheduler_pending_bindings{queue="unschedulable"}': "3x50 0x1 3x40",
            'scheduler_pending_bindings{queue="active"}': "9x90",
        },
    ),
    "KarpoolEstimatorsUnreachable": (
        "10m",
        {"karpool_scheduler_unreachable_estimators": "1x20"},
        {"karpool_scheduler_unreachable_estimators": "1x3 0x20"},
    ),
    "KarpoolDeschedulerFailing": (
        "50m",
        {'karpool_descheduler_bindings_total{result="error"}': "0+1x60"},
        {'karpool_descheduler_bindings_total{result="descheduled"}': "0+1x60"},
    ),
}


def _story(alert: str, after: str, series: dict[str, str], *, fires: bool) -> Object:
    expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    sample = {"labels": "{}", "value": int(fires)}
    return {
        "name": f"{alert}: {fires}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": after, "exp_samples": [sample]}],
    }


@pytest.mark.long
def test_every_alert_is_raised_by_its_trouble_and_by_nothing_milder(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: the rules were not checked by Prometheus itself")
    tests = [
        _story(alert, after, series, fires=fires)
        for alert, (after, bad, good) in STORIES.items()
        for series, fires in ((bad, True), (good, False))
    ]
    document = {"rule_files": list(map(str, RULES)), "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "stories.yaml").write_text(yaml.safe_dump(document))
    command = [tool, "test", "rules", str(tmp_path / "stories.yaml")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_no_alert_is_without_a_story() -> None:
    told = (Path(__file__).parent / "alerts_test.yaml").read_text()
    ours = {rule["alert"] for path in RULES if path.stem != "gpu" for rule in rules(path) if "alert" in rule}
    assert ours == set(re.findall(r"alertname: (\w+)", told)) | set(STORIES)
    assert all(
        set(_NAME.findall(name)) <= set(KNOWN)
        for _, *each in STORIES.values()
        for one in each
        for name in one
    )


@pytest.mark.parametrize("board", build_dashboards.BOARDS, ids=lambda board: board.name)
def test_dashboards_are_what_their_description_makes(board: build_dashboards.Board) -> None:
    path = build_dashboards.FOLDER / f"karpool-{board.name}.json"
    assert path.read_text() == build_dashboards.text(board), "run python tools/build_dashboards.py"


def test_there_is_no_other_dashboard() -> None:
    assert [path.stem for path in BOARDS] == sorted(
        f"karpool-{board.name}" for board in build_dashboards.BOARDS
    )


def panels(board: Object) -> Iterator[Object]:
    yield from (each for each in board["panels"] if each["type"] != "row")


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_for_what_exists(path: Path) -> None:
    board = json.loads(path.read_text())
    for panel in panels(board):
        for target in panel["targets"]:
            check(target["expr"])
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            (by,) = _BY.findall(target["expr"]) or [None]
            if by is not None:
                assert shown <= {each.strip() for each in by.split(",")}, target
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            assert label in KNOWN[metric]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_dashboards_work_with_any_data_source_and_do_not_overlap(path: Path) -> None:
    board = json.loads(path.read_text())
    variables = {each["name"] for each in board["templating"]["list"]}
    assert "datasource" in variables
    sources = {json.dumps(source) for source in _sources(board)}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
    used = set(re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in panels(board)])))
    assert used - {"__rate_interval"} <= variables
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def _sources(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "datasource":
                yield inner
            yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)
