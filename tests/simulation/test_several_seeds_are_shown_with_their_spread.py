"""Several seeds: means with least and most, by hand-made results; nothing is played here."""

import json
from xml.etree import ElementTree

from karpool.cli.embedded import simulate_spread
from karpool.cli.main import run
from karpool_fleet.simulation.figures import FIGURES, Result


def result(variant, seed, **figures):
    return Result(variant, seed, 3600.0, dict.fromkeys(FIGURES) | figures, {}, [0.0, 3600.0], {})


RESULTS = [
    result("a", 1, cost=1.0, evictions=0, pendingP95=10.0),
    result("b", 1, cost=4.0, evictions=7, pendingP95=None),
    result("a", 2, cost=2.0, evictions=0, pendingP95=20.0),
    result("b", 2, cost=8.0, evictions=8, pendingP95=None),
]


def test_a_table_has_means_with_least_and_most_and_leaves_out_what_is_nothing_throughout():
    header, rows = simulate_spread.table(RESULTS, ["cost", "evictions", "pendingP95", "moves"])
    assert header == ["FIGURE", "A", "B"]
    assert rows == [
        ["cost ($)", "1.50 (1.00 to 2.00)", "6.00 (4.00 to 8.00)"],
        ["pods evicted", "0", "8 (7 to 8)"],
        ["pending, 95 % (s)", "15.0 (10.0 to 20.0)", "-"],
    ]


def test_machines_get_the_same_with_the_seeds():
    first, second = simulate_spread.document(RESULTS)
    assert (first["variant"], first["seeds"]) == ("a", [1, 2])
    assert first["figures"]["cost"] == {"mean": 1.5, "least": 1.0, "most": 2.0}
    assert second["figures"]["pendingP95"] is None
    json.dumps([first, second])


def test_a_picture_is_xml_that_trusts_no_text_and_draws_every_variant():
    hostile = [*RESULTS, result("<script>x</script>", 1, cost=3.0, evictions=1, pendingP95=1.0)]
    drawn = simulate_spread.picture('A "title" & <b>', hostile)
    root = ElementTree.fromstring(drawn)
    assert "<script" not in drawn
    assert "<b>" not in drawn
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("a") == texts.count("b") == texts.count("<script>x</script>") == 3
    assert "bars: mean of 2 seeds; lines: least and most" in texts


def test_several_seeds_make_no_page(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text("kind: Scenario\nduration: 1m\nclusters: [{name: east, autoscaler: none}]\n")
    assert run(["simulate", str(path), "--seed", "1", "--seed", "2", "-o", "html"], "karpool") == 2
    assert "several seeds need" in capsys.readouterr().err
