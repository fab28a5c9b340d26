"""`karpool simulate`: reports for people and machines, and an exit code for scripts."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from karpool.cli.embedded import simulate as command
from karpool.cli.embedded.simulate_html import over_time, report
from karpool.cli.main import run
from karpool_fleet.simulation.figures import FIGURES, FigureSeries, Result

QUIET = """\
kind: Scenario
title: Tiny <b>title</b>
duration: 5m
clusters:
  - name: east
    autoscaler: none
    nodes: [{type: m7i.large, count: 2}]
workloads:
  - {name: web, count: 3, every: 10s, replicas: 1, requests: {cpu: 500m}}
"""


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


@pytest.fixture
def play(tmp_path, capsys):
    def played(text, *flags):
        (tmp_path / "s.yaml").write_text(text)
        code = run(["simulate", str(tmp_path / "s.yaml"), *flags], "karpool")
        out, err = capsys.readouterr()
        return code, out, err

    return played


def test_a_table_has_a_row_for_each_figure_and_a_column_for_each_variant(play):
    variants = "variants:\n  - name: one\n  - {name: two, set: {seed: 2}}\n"
    code, out, err = play(QUIET + variants)
    assert code == 0
    header = out.splitlines()[0].split()
    assert header == ["FIGURE", "ONE", "TWO"]
    assert re.search(r"^pods created +3 +3$", out, re.MULTILINE)
    assert "one: 5m in" in err
    assert "x real time" in err


def test_json_has_every_figure_and_series(play):
    code, out, _ = play(QUIET, "-o", "json")
    report = json.loads(out)
    assert code == 0
    assert report["kind"] == "SimulationReport"
    [item] = report["items"]
    assert set(item["figures"]) == set(FIGURES)
    assert item["figures"]["podsBound"] == 3
    assert len(item["times"]) == len(item["series"]["nodes"]["values"]) == 6


def test_html_is_one_page_with_plots_that_trusts_no_text(play):
    code, out, _ = play(QUIET, "-o", "html")
    assert code == 0
    assert out.count("<svg") >= 3
    assert "<b>title</b>" not in out
    assert "&lt;b&gt;title" in out
    assert "<script" not in out
    assert "http-equiv" in out


def test_a_page_loads_nothing_from_anywhere_and_escapes_hostile_names():
    hostile = '"><img src=https://evil.example/x onerror=alert(1)>'
    figures = dict.fromkeys(FIGURES) | {"cost": 1.0, "evictions": 2.0}
    series = {"nodes": FigureSeries(hostile, hostile, [1.0, 2.0])}
    results = [Result(hostile, 1, 3600.0, figures, {hostile: figures, "b": figures}, [0.0, 60.0], series)]
    page = report(hostile, hostile, results, [hostile])
    found = Elements()
    found.feed(page)
    assert not {"img", "script", "link", "iframe", "object", "image", "use"} & found.tags
    assert not {"src", "href", "xlink:href", "onerror", "srcset", "action", "data"} & found.attributes
    assert not re.search(r"url\(|@import", page)
    assert "default-src 'none'" in page
    assert "GPU" not in page.partition("<h2>Figures</h2>")[2]  # what does not apply is not shown


def test_a_picture_is_xml_that_trusts_no_text(play):
    code, out, _ = play(QUIET + "variants: [{name: '<i>'}]\n", "-o", "svg")
    drawn = ElementTree.fromstring(out)
    assert code == 0
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "<i>" not in out
    assert "polyline" in out


def test_expectations_that_are_not_met_fail_with_the_figure_and_the_reason(play):
    extra = "expect:\n  - {figure: pods, least: 4, why: more was hoped for}\n  - {figure: cost, most: 100}\n"
    code, out, err = play(QUIET + extra)
    assert code == 1
    assert "pods created is 3, not at least 4 (more was hoped for)" in err
    assert "cost" not in err
    assert "pods created" in out


def test_check_plays_nothing(play):
    code, out, err = play(QUIET, "--check")
    assert (code, out) == (0, "")
    assert "valid" in err


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--variant", "three"), 2, "'three' is not in the scenario; there are result"),
        (("--duration", "soon"), 2, "must be a duration"),
        (("--trace", "gone.csv"), 1, "No such file"),
    ],
)
def test_wrong_flags_say_what_is_right(play, flags, code, says):
    found, _, err = play(QUIET, *flags)
    assert found == code
    assert says in err


TRACE = "name,cpu_milli,memory_mib,creation_time,deletion_time\n"


def test_a_trace_beside_the_scenario_is_played_and_what_is_left_out_is_said(play, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE + "a,100,100,5,60\nb,100,100,1,60\nc,100,100,2,\n")
    code, out, err = play(QUIET + "traces: [{file: t.csv, limit: 2}]\n")
    assert code == 0
    assert re.search(r"^pods created +5$", out, re.MULTILINE)
    assert "t.csv: the first 2 of 3 pods come (limit)" in err


@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_traces_of_every_variant_are_looked_at_before_anything_is_played(play, tmp_path, flags):
    (tmp_path / "t.csv").write_text(TRACE)
    variants = "variants: [{name: one}, {name: two, set: {traces: [{file: gone.csv}]}}]\n"
    code, out, err = play(QUIET + "traces: [{file: t.csv}]\n" + variants, *flags)
    assert (code, out) == (1, "")
    assert "gone.csv: No such file" in err
    assert "real time" not in err


def test_a_row_that_cannot_be_read_is_one_line_and_no_progress_is_left(play, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE + "a,100,100,5\n")
    code, out, err = play(QUIET + "traces: [{file: t.csv}]\n")
    assert (code, out) == (1, "")
    assert err == f"error: {tmp_path / 't.csv'}:2: has 4 fields, and the header has 5\n"


def test_reading_a_long_trace_shows_its_progress_in_a_terminal(play, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SHOW_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(command._Bar, "terminal", lambda self: True)
    (tmp_path / "t.csv").write_text(TRACE + "a,100,100,5,60\n" * 10_000)
    code, _, err = play(QUIET + "traces: [{file: t.csv, limit: 1}]\n")
    assert code == 0
    assert re.search(r"result: reading traces \[#+ +\] +\d\d %", err)
    assert err.rindex("reading traces [") < err.rindex("starting [") < err.index("result [")  # one by one


def test_a_fleet_that_starts_slowly_says_so_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(command, "SHOW_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(command._Bar, "terminal", lambda self: True)
    with command._Bar("result") as bar:
        bar._timer.join()  # nothing was told
    assert "result: starting [" in capsys.readouterr().err


def test_a_wrong_file_is_one_line_with_the_line_number(play):
    code, _, err = play(QUIET + "sample: often\n")
    assert code == 1
    assert re.search(r"s\.yaml:10: sample: 'often': must be a duration", err)


def test_decisions_are_json_lines(play, tmp_path):
    code, _, _ = play(QUIET, "--decisions", str(tmp_path / "d.log"))
    lines = [json.loads(line) for line in (tmp_path / "d.log").read_text().splitlines()]
    assert code == 0
    assert sum(line["decision"] == "bound" for line in lines) == 3
    times = [line["t"] for line in lines]
    assert times == sorted(times)


def test_objects_that_a_cluster_refuses_are_counted(play):
    text = QUIET.replace("replicas: 1,", "replicas: 1, namespace: nowhere,")
    code, out, _ = play(text)
    assert code == 0
    assert re.search(r"^arrivals refused +3$", out, re.MULTILINE)


def test_an_action_that_cannot_be_done_names_itself(play):
    code, _, err = play(QUIET + "actions:\n  - {at: 1m, scale: {name: nobody, replicas: 2}}\n")
    assert code == 1
    assert "actions: at 1m in east" in err


def test_a_variant_keeps_its_colour_where_another_has_nothing_to_draw():
    def result(name, values):
        series = {"evictions": FigureSeries("evicted", "pods", values)} if any(values) else {}
        return Result(name, 1, 60.0, dict.fromkeys(FIGURES, 0.0), {}, [0.0, 60.0], series)

    drawn = over_time([result("calm", [0, 0]), result("wild", [0, 5])], "evictions")
    assert drawn.count("<polyline") == 2
    assert re.search(r'class="l1"[^>]*><title>wild', drawn)


def test_shipped_scenarios_are_listed_and_played_by_name_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "--list"], "karpool") == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"consolidation-policies", "trace"} <= set(names)
    for name in names:
        assert run(["simulate", name, "--check"], "karpool") == 0, name
        assert f"{name}.yaml" in capsys.readouterr().err


def test_a_file_here_is_meant_before_a_shipped_scenario_of_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace").write_text(QUIET)
    assert run(["simulate", "trace", "-o", "json"], "karpool") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Tiny <b>title</b>"


def test_a_name_that_is_nothing_says_where_names_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "nothing"], "karpool") == 2
    assert "karpool simulate --list" in capsys.readouterr().err
    assert run(["simulate"], "karpool") == 2
    assert "karpool simulate --list" in capsys.readouterr().err
