"""Every form of a plan says what the plan says."""

import html.parser
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.cli.output import plan_html, plan_text
from karpool.consolidation.planning.comparison import PlanAlternative, label_of, overrides
from karpool.consolidation.planning.plan import MovedPod
from karpool.consolidation.planning.plan_file import SIZE_LIMIT, SavedPlan, parse_plan, to_document
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from tests.consolidation.plans import move, plan, source


def alternative(made, label="as the pools say"):
    return PlanAlternative(label, PolicyOverride(), made)


def report(made):
    return plan_html.report([alternative(made)], "prod")


# Tables


@pytest.mark.parametrize("wide", [False, True])
def test_a_table_names_every_move_destination_reason_and_total(wide):
    shown = plan_text.render(plan(), wide=wide)

    for word in (
        "2 moves: 2 nodes away, 1 new",
        "saves $1.600 per hour ($1,168 per month)",
        "disturbs 2 pods",
        "team/web-1",
        "node-3",
        "new m7i.medium #1",
        "none needed: the cost is 0",
        "score 0.12 < threshold 0.50",
        "disruption budget db allows none",
        "no NodeClaim",
        "Underutilized 1",
        "Empty any",
        "not considered: 1 node (the deadline of 1 s passed): node-9",
    ):
        assert word in shown


def test_a_score_is_shown_with_what_it_must_reach():
    assert re.search(r"m-node-1 .* 1\.25/0\.50\n", plan_text.render(plan(), wide=False))


def test_a_plan_without_moves_says_so_and_why():
    shown = plan_text.render(plan(moves=(), rejected=()), wide=False)

    assert shown.startswith("nothing to move")
    assert "NODES THAT STAY" in shown


def test_the_switch_that_stops_everything_comes_first():
    shown = plan_text.render(
        plan(stopped=Infeasible(ConsolidationReason.STOPPED, "stopped by ConfigMap a/b")), wide=False
    )

    assert shown.startswith("STOPPED: stopped by ConfigMap a/b")


def test_what_the_short_form_leaves_out_is_counted():
    many = [MovedPod(f"team/web-{number}", "node-1", 1.0, "node-3") for number in range(100)]
    codes = ConsolidationReason.YOUNG, ConsolidationReason.NOMINATED
    held = [
        KeptNode(
            f"n{number}",
            "p",
            1.0,
            2.0,
            (Infeasible(codes[number % 3 > 0], "because"),),
        )
        for number in range(50)
    ]
    made = plan(moves=[move(pods=many)], held=held)

    short, wide = (plan_text.render(made, wide=each) for each in (False, True))

    assert "... and 70 more; -o wide shows all" in short
    assert re.search(r"\n33 +nominated +n1 ", short)
    assert re.search(r"\n17 +young +n0 ", short)
    assert "team/web-99" in wide
    assert "more" not in wide


def test_policies_side_by_side():
    without = plan(moves=(), rejected=())

    header, rows = plan_text.comparison_table([alternative(plan(), "a"), alternative(without, "b")])

    assert [row[0] for row in rows] == ["a", "b"]
    assert dict(zip(header, rows[0], strict=True))["SAVES $/H"] == "1.600"
    assert dict(zip(header, rows[0], strict=True))["OF COST"] == "16.0%"
    assert dict(zip(header, rows[1], strict=True))["PODS"] == "0"


@pytest.mark.parametrize(
    ("policies", "thresholds", "labels"),
    [
        pytest.param([], [], ["as the pools say"], id="nothing"),
        pytest.param([], [1, 3], ["Balanced k=1", "Balanced k=3"], id="thresholds alone"),
        pytest.param(
            [PolicyName.WHEN_EMPTY, PolicyName.BALANCED], [2], ["WhenEmpty", "Balanced k=2"], id="both"
        ),
        pytest.param([PolicyName.WHEN_EMPTY] * 2, [], ["WhenEmpty"], id="the same once"),
        pytest.param(
            [PolicyName.WHEN_EMPTY_OR_UNDERUTILIZED],
            [1, 3],
            ["WhenEmptyOrUnderutilized", "Balanced k=1", "Balanced k=3"],
            id="thresholds beside another policy",
        ),
    ],
)
def test_what_is_compared(policies, thresholds, labels):
    assert [label_of(override) for override in overrides(policies, thresholds)] == labels


# Documents


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_plan_comes_back_from_its_document(form):
    from karpool.cli.output.text import machine

    saved = SavedPlan(plan(), {"policy": "Balanced", "threshold": 2}, "prod")

    found = parse_plan(machine("ConsolidationPlan", to_document(saved), form).encode())

    assert found == saved


def test_a_document_carries_the_sums_for_readers():
    document = to_document(SavedPlan(plan()))

    assert document["savings_per_hour"] == pytest.approx(1.6)
    assert document["moves"][0]["savings_per_month"] == pytest.approx(730)
    assert document["moves"][0]["pods_disturbed"] == 1
    assert document["rejected"][0]["move"]["savings_per_hour"] == pytest.approx(0.5)


def document(**changes):
    made = {"kind": "ConsolidationPlan", **to_document(SavedPlan(plan())), **changes}
    return msgspec.json.encode({key: value for key, value in made.items() if value is not None})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "must hold one document", id="empty"),
        pytest.param(b"[1]", "is not a ConsolidationPlan", id="a list"),
        pytest.param(b"{:::", "neither JSON nor YAML", id="not data"),
        pytest.param(document(kind="Pod"), "is not a ConsolidationPlan", id="another kind"),
        pytest.param(document(kind="ConsolidationComparison"), "one --policy", id="a comparison"),
        pytest.param(document(flags=3), "flags", id="flags of a wrong type"),
        pytest.param(document(moves=[{"id": 3}]), "moves[0]", id="half a move"),
        pytest.param(document(fingerprint=None), "fingerprint", id="no fingerprint"),
        pytest.param(b"[" * 100_000, "plan", id="nested without end"),
        pytest.param(b'{"kind": "ConsolidationPlan", "moves": ' + b"[" * 5000, "plan", id="nested inside"),
    ],
)
def test_a_document_that_cannot_be_used_names_its_fault(data, words):
    with pytest.raises(Invalid) as error:
        parse_plan(data, "plan.json")

    assert words in str(error.value)


def test_a_file_without_end_is_not_read(tmp_path):
    from karpool.consolidation.planning.plan_file import read_plan

    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT + 1)

    with pytest.raises(Invalid, match="is larger than"):
        read_plan(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.long
@given(
    field=st.sampled_from(
        ["moves", "rejected", "held", "pools", "before", "made_at", "stopped", "flags", "kind"]
    ),
    value=json_values,
)
def test_whatever_stands_in_a_field_it_is_read_or_refused(field, value):
    try:
        found = parse_plan(document(**{field: value}))
    except Invalid:
        return
    assert isinstance(found.plan.moves, tuple)


# The report


class Page(html.parser.HTMLParser):
    """What a browser would make of it: tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "line", "rect", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        self.text.append(data)


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"


def test_hostile_names_stay_text():
    bad = source(HOSTILE, pool="general")
    made = plan(
        moves=[move(bad, pods=[MovedPod(HOSTILE, HOSTILE, 1.0, HOSTILE)], notes=[HOSTILE])],
        held=[KeptNode(HOSTILE, HOSTILE, 1.0, 1.0, (Infeasible(HOSTILE, HOSTILE, HOSTILE),))],
        problems=(HOSTILE,),
        stopped=Infeasible(ConsolidationReason.STOPPED, HOSTILE),
        before=replace(plan().before, by_type={HOSTILE: 3}),
    )

    page = Page(plan_html.report([alternative(made, HOSTILE), alternative(made, "b")], HOSTILE))

    assert not {"script", "img", "iframe", "link", "object", "a"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in "".join(page.text)


def test_the_report_loads_nothing_and_forbids_it():
    text = report(plan())
    page = Page(text)

    assert not [value for name, value in page.attributes if name in ("src", "href", "srcset", "action")]
    assert "url(" not in text
    assert "@import" not in text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert page.open == []


def test_the_report_follows_light_and_dark():
    assert "prefers-color-scheme: dark" in report(plan())


def test_the_report_has_both_charts_and_everything_the_tables_have():
    page = Page(report(plan()))
    text = " ".join(page.text)

    assert page.tags.count("svg") == 2
    for word in ("Savings against disruption", "m7i.medium", "team/web-1", "new m7i.medium #1", "node-9"):
        assert word in text
    for word in (
        "disruption budget db allows none",
        "score 0.12 < threshold 0.50",
        "NodePool broken: weight",
    ):
        assert word in text


def test_the_report_has_no_empty_chart_can_be_printed_and_copied_as_markdown():
    nothing = Page(report(plan(moves=(), rejected=())))
    shown = report(plan())

    assert nothing.tags.count("svg") == 0
    assert "@media print" in shown
    assert "Copy as Markdown" in shown and "## Consolidation plan" in shown
    assert Page(shown).tags.count("pre") == 1


def test_an_empty_plan_can_be_drawn():
    empty = replace(plan().before, by_type={}, nodes=0, price_per_hour=0.0)
    made = plan(moves=(), rejected=(), held=(), before=empty, after=empty)

    assert "Nothing to draw" in report(made)


@given(
    points=st.lists(st.tuples(st.floats(), st.floats()), max_size=5),
    values=st.lists(st.floats(0, 1e300), max_size=3),
)
def test_charts_draw_any_numbers(points, values):
    from karpool.cli.output import charts

    drawn = charts.line_chart([charts.ChartSeries("s", points)], title="t", x_label="x", y_label="y")
    bars = charts.bar_chart([charts.ChartBar("b", values)], ["v"] * len(values), title="t")

    for place in re.findall(r'(?:cx|cy|x1|x2|y1|y2|x|y|width|points)="([^"]*)"', drawn + bars):
        assert "nan" not in place
        assert "inf" not in place
