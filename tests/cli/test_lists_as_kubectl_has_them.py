"""Every command that lists chooses, sorts and prints in the forms of kubectl, by one implementation."""

import csv
import io
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool.cli.inspect.listing_options import ListingOptions, show_listing
from karpool.cli.main import run
from karpool.cli.output.jsonpath import expand_template, values_at
from karpool.cli.output.listing import ListedItem, Listing, ListingForm, chosen_items, render_listing
from karpool.model.catalogue.files import load_shipped
from karpool.model.errors import Invalid
from tests.cli.example_fleet import example_fleet

Capture = pytest.CaptureFixture[str]
DOCUMENT = {
    "items": [
        {"name": "a", "zone": "x", "price": 2.5, "tags": ["t1", "t2"], "labels": {"a.b/c": "1"}},
        {"name": "b", "zone": "y", "price": 0.5, "tags": []},
        {"name": "c", "zone": "x", "price": None, "tags": ["t3"]},
    ]
}


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(example_fleet(load_shipped("us-east-1"))))
    return str(path)


def top(capsys: Capture, fleet: str, *arguments: str) -> str:
    assert run(["top", *arguments, "--snapshot", fleet], "karpool") == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].name}", "a b c"),
        ("{.items[0].tags}", '["t1", "t2"]'),
        ("{.items[-1].name}", "c"),
        ("{.items[0:2].name}", "a b"),
        ("{..name}", "a b c"),
        ('{.items[?(@.zone=="x")].name}', "a c"),
        ("{.items[?(@.price>1)].name}", "a"),
        ("{.items[?(@.labels)].name}", "a"),
        ("{.items[0].labels['a.b/c']}", "1"),
        ('{range .items[*]}{.name}{"\\t"}{.price}{"\\n"}{end}', "a\t2.5\nb\t0.5\nc\tnull\n"),
        ('{range .items[*]}{.name}:{range .tags[*]}{@},{end}{";"}{end}', "a:t1,t2,;b:;c:t3,;"),
        ("{.nothing.here}", ""),
        ("text {$.items[1].name} text", "text b text"),
        ("{range .nothing[*]}{.a}{end}left", "left"),
    ],
)
def test_templates_give_what_kubectl_gives(template: str, text: str) -> None:
    assert expand_template(template, DOCUMENT) == text


@pytest.mark.parametrize(
    "template", ["{.a", "}", "{range .items[*]}{.name}", "{end}", "{.items[?(@.a=)]x}", "{.a b}", "{'x}"]
)
def test_templates_that_mean_nothing_are_refused(template: str) -> None:
    with pytest.raises(Invalid):
        expand_template(template, DOCUMENT)


@given(st.text(alphabet="{}.[]*?@'\"=!<>:-0a \\\n$", max_size=40))
def test_no_template_does_more_than_be_refused(template: str) -> None:
    try:
        expand_template(template, DOCUMENT)
    except Invalid as error:
        assert str(error)


def test_paths_of_nothing_are_the_document() -> None:
    assert values_at(DOCUMENT, ".") == [DOCUMENT]


def listing() -> Listing:
    items = [
        ListedItem(
            item["name"], item, [item["name"], item["zone"]], [str(item["price"])], {"app": item["name"]}
        )
        for item in DOCUMENT["items"]
    ]
    return Listing("ThingList", "thing", ["NAME", "ZONE"], items, ["PRICE"], {"cluster": "c"}, ["three"])


def names(**form: str) -> list[str]:
    return [item.name for item in chosen_items(listing(), ListingForm(**form))]


def test_choosing_and_sorting() -> None:
    assert names(selector="app in (a,b)") == ["a", "b"]
    assert names(field_selector="zone=x") == ["a", "c"]
    assert names(field_selector="zone!=x") == ["b"]
    assert names(field_selector="zone==x,name!=a") == ["c"]
    assert names(sort_by=".price") == ["b", "a", "c"], "what has none comes last"
    assert names(sort_by="{.name}") == names(sort_by="name") == ["a", "b", "c"]


def test_what_is_left_out_is_said() -> None:
    shown = render_listing(listing(), ListingForm(field_selector="zone=x"))

    assert shown.splitlines() == [
        "NAME   ZONE",
        "a      x",
        "c      x",
        "",
        "2 of 3 are shown; of all:",
        "three",
    ]


def test_a_spreadsheet_is_handed_no_formula() -> None:
    evil = Listing(
        "L", "l", ["A", "B"], [ListedItem("x", {}, ["=cmd()", "-1.5"]), ListedItem("y", {}, ["-", "@a"])]
    )

    rows = list(csv.reader(io.StringIO(render_listing(evil, ListingForm("csv")))))

    assert rows == [["A", "B"], ["'=cmd()", "-1.5"], ["-", "'@a"]]


@pytest.mark.parametrize("what", ["nodes", "pools", "gpus"])
def test_top_has_every_form(capsys: Capture, fleet: str, what: str) -> None:
    document = json.loads(top(capsys, fleet, what, "-o", "json"))
    count = len(document["items"])

    assert yaml.safe_load(top(capsys, fleet, what, "-o", "yaml")) == document
    assert len(top(capsys, fleet, what, "-o", "name").splitlines()) == count
    assert len(list(csv.reader(io.StringIO(top(capsys, fleet, what, "-o", "csv"))))) == count + 1
    assert top(capsys, fleet, what, "-o", "wide").splitlines()[0].startswith("N")
    bare = top(capsys, fleet, what, "--no-headers").splitlines()
    assert bare == top(capsys, fleet, what).splitlines()[1 : count + 1], "rows, and nothing else"


def test_what_matches_nothing_is_not_called_empty() -> None:
    shown = render_listing(listing(), ListingForm(field_selector="zone=z"))

    assert shown.splitlines() == ["0 of 3 are shown; of all:", "three"]


@pytest.mark.parametrize("form", [{"sort_by": ".prize"}, {"field_selector": "metadata.name=a"}])
def test_a_field_that_no_item_has_is_refused_with_those_there_are(form: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="no such field; there are labels, name, price, tags, zone"):
        names(**form)


def test_a_misspelled_field_is_wrong_usage(capsys: Capture, fleet: str) -> None:
    assert run(["top", "nodes", "--sort-by", ".prize", "--snapshot", fleet], "karpool") == 2

    assert "--sort-by: '.prize': no such field; there are " in capsys.readouterr().err


def test_yaml_repeats_a_value_that_stands_under_two_keys(capsys: Capture, fleet: str) -> None:
    assert "*id" not in top(capsys, fleet, "nodes", "-o", "yaml")


def test_top_of_nodes_by_label_and_price(capsys: Capture, fleet: str) -> None:
    shown = top(
        capsys,
        fleet,
        "nodes",
        "-o",
        "custom-columns=NAME:.name,PRICE:.pricePerHour",
        "--sort-by",
        ".pricePerHour",
    )
    assert shown.splitlines()[-1].split() == ["gpu-6", "0.8048"]
    assert top(capsys, fleet, "nodes", "-l", "karpenter.sh/nodepool=gpu", "-o", "name") == "node/gpu-6\n"
    assert "CAPACITY-TYPE" in top(capsys, fleet, "nodes", "-L", "karpenter.sh/capacity-type")


def test_keys_are_camel_case_and_old_ones_are_still_there(capsys: Capture, fleet: str) -> None:
    (node, *_) = json.loads(top(capsys, fleet, "nodes", "-o", "json"))["items"]

    assert node["pricePerHour"] == node["price_per_hour"]
    assert "karpenter.sh/nodepool" in node["labels"], "keys that are data are left alone"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "xml"], "must be one of table, wide, json"),
        (["-o", "jsonpath={.a"], "brace that is not closed"),
        (["-o", "custom-columns=NAME"], "is not a column"),
        (["-l", "a in ("], "unbalanced"),
        (["--field-selector", "zone"], "is not like pool=general"),
        (["--sort-by", ".a["], "cannot be parsed"),
        (["-w", "-o", "json"], "--watch shows tables"),
        (["--watch-interval", "0s", "-w"], "--watch-interval"),
    ],
)
@pytest.mark.parametrize("command", [["top", "nodes"], ["get", "scale-ups"]])
def test_wrong_input_is_refused_before_anything_is_read(capsys: Capture, command, arguments, words) -> None:
    assert run([*command, *arguments], "karpool") == 2

    assert words in capsys.readouterr().err


def test_watching_shows_changes_and_ends_with_ctrl_c(capsys: Capture, monkeypatch) -> None:
    """In a pipe: everything once, then lines that are new or have changed."""
    moments = [("a", "1"), ("a", "1"), ("a", "2")]

    def look() -> Listing:
        if not moments:
            raise KeyboardInterrupt
        name, value = moments.pop(0)
        return Listing("L", "l", ["NAME", "VALUE"], [ListedItem(name, {}, [name, value])])

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    show_listing(look, ListingOptions(watch=True))

    assert capsys.readouterr().out.splitlines() == ["NAME   VALUE", "a      1", "a      2"]


def test_ctrl_c_says_what_it_ends(capsys: Capture, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("karpool.cli.inspect.top.load_cluster", interrupted)

    assert run(["top", "nodes"], "karpool") == 130
    assert capsys.readouterr().err.strip() == "interrupted: karpool top did not finish"
