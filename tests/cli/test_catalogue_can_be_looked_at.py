"""`karpool catalogue`: regions, types and prices for a person, and newer prices that come back as a file."""

import json

import pytest

from karpool.cli.main import run
from karpool.model.catalogue.files import load_shipped, read_catalogue, shipped_regions


@pytest.fixture
def karpool(capsys):
    def command(*words, expect=0):
        code = run(["catalogue", *map(str, words)], "karpool")
        shown = capsys.readouterr()
        assert code == expect, shown.err
        return shown.err if expect else shown.out

    return command


def test_all_regions_are_listed_with_the_age_of_their_prices(karpool):
    items = json.loads(karpool("regions", "-o", "json"))["items"]

    assert [each["region"] for each in items] == list(shipped_regions())
    assert {each["provider"] for each in items} == {"aws", "azure", "gcp"}
    assert all(each["zones"] and each["on_demand_as_of"] for each in items)
    table = karpool("regions", "--provider", "gcp")
    assert "europe-west1 " in table
    assert "eastus" not in table


@pytest.mark.long
def test_types_of_a_region_are_listed_by_family(karpool):
    out = karpool("list", "--region", "westeurope", "--family", "Ds_v5")

    assert "Standard_D4s_v5" in out
    assert "0.2300" in out
    assert "Standard_E4s_v5" not in out
    assert "prices of on-demand 2026-06-18" in out


def test_types_with_gpus_are_listed_with_their_share_of_a_device(karpool):
    out = karpool("list", "--region", "eastus", "--gpu")

    assert "1 x a10 (1/3)" in out
    assert "Standard_D4s_v5" not in out


@pytest.mark.long
def test_one_type_is_shown_in_a_region_and_in_all(karpool):
    found = json.loads(karpool("show", "m5.large", "--region", "eu-central-1", "-o", "json"))
    everywhere = json.loads(karpool("show", "m5.large", "-o", "json"))["items"]

    assert found["allocatable"]["cpu"] == 1930
    assert found["labels"]["karpenter.k8s.aws/instance-family"] == "m5"
    assert {
        each["price_per_hour"] for each in found["offerings"] if each["capacity_type"] == "on-demand"
    } == {0.115}
    assert {each["region"]: each["on_demand_per_hour"] for each in everywhere}["us-east-1"] == 0.096
    assert "LEFT FOR PODS" in karpool("show", "m5.large", "--region", "eu-central-1")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "m5.huge"), 1, "is not sold in any shipped region"),
        (
            ("show", "m5.huge", "--region", "eu-west-1"),
            1,
            "`karpool catalogue show m5.huge` lists its regions",
        ),
        (("list",), 2, "pass --region"),
        (("list", "--region", "eu-west-9"), 2, "did you mean eu-west-"),
    ],
)
def test_what_is_not_there_is_said_with_the_next_step(karpool, words, code, said):
    assert said in karpool(*words, expect=code)


def test_newer_prices_are_compared_and_come_back_as_a_catalogue(karpool, tmp_path):
    table, written = tmp_path / "prices.csv", tmp_path / "mine.json"
    table.write_text(
        "region,type,zone,on_demand,on_demand_asof,spot\n"
        "eu-central-1,m5.large,,0.1,2026-11-01,\n"
        "eu-central-1,m5.xlarge,eu-central-1b,,,0.01\n"
        "us-east-1,m5.large,,9,,\n"
    )

    out = karpool("refresh", table, "--region", "eu-central-1", "--write", written)

    after, before = read_catalogue(written.read_bytes()), load_shipped("eu-central-1")
    assert "2 prices changed" in out
    assert after.price("m5.large", "eu-central-1a", "on-demand") == 0.1
    assert after.price("m5.xlarge", "eu-central-1b", "spot") == 0.01
    assert after.price("m5.xlarge", "eu-central-1a", "spot") == before.price(
        "m5.xlarge", "eu-central-1a", "spot"
    )
    assert "refreshed 2026-11-01" in after.as_of
    assert after.types["p4d.24xlarge"].gpu == before.types["p4d.24xlarge"].gpu
    for name, instance_type in before.types.items():
        assert after.types[name].capacity == instance_type.capacity
        assert after.types[name].allocatable == instance_type.allocatable


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("region,type\na,b\n", "line 1: 'region,type': must name region, type, and on_demand or spot"),
        ("region,type,spot\neu-west-1,m5.large,-1\n", "line 2.spot: '-1': must be a finite number"),
        ("region,type,spot\neu-west-1,m5.large,nan\n", "line 2.spot: 'nan'"),
        ("region,type,spot\n\neu-west-1,m5.large,x\n", "line 3.spot: 'x'"),
        (
            "region,type,spot,currency\neu-west-1,m5.large,1,EUR\n",
            "line 2.currency: 'EUR': prices are in USD",
        ),
        ("region,type,spot\n,m5.large,1\n", "line 2.region: '': must not be empty"),
        ("region,type,spot\neu-west-1,m5.large\n", "line 2: '': has another number of fields than line 1"),
        ("region,type,spot\neu-west-1,m5.large,1e300\n", "line 2.spot: '1e300': must be"),
        ("region,type,spot,spot\neu-west-1,m5.large,1,2\n", "line 1: 'spot': is the name of two columns"),
        (
            "region,type,spot\neu-west-1,m5.large,1\neu-west-1,m5.large,2\n",
            "line 3: 'eu-west-1/m5.large/spot': line 2 has a price for the same",
        ),
        ('region,type,spot\neu-west-1,"m5.large,1\n', "is not CSV"),
    ],
)
def test_a_mistake_in_a_price_table_names_its_line(karpool, tmp_path, text, said):
    table = tmp_path / "prices.csv"
    table.write_text(text)

    assert said in karpool("refresh", table, expect=1)


def test_nothing_is_written_of_a_table_that_is_wrong_or_about_elsewhere(karpool, tmp_path):
    table, written = tmp_path / "prices.csv", tmp_path / "mine.json"
    written.write_text("as it was")
    for text in ("region,type,spot\neu-west-1,m5.large,0.1\n", "region,type,spot\neu-central-1,m5.large,x\n"):
        table.write_text(text)
        karpool("refresh", table, "--region", "eu-central-1", "--write", written, expect=1)
    assert written.read_text() == "as it was"
    assert "does not occur in the file" in karpool(
        "refresh", _written(table, "region,type,spot\n"), "--region", "eu-central-1", expect=1
    )


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.long
def test_the_price_of_a_zone_counts_before_that_of_its_region(karpool, tmp_path):
    table, written = tmp_path / "prices.csv", tmp_path / "mine.json"
    lines = ["eu-central-1,m5.large,eu-central-1b,0.01", "eu-central-1,m5.large,,0.02"]
    for order in (lines, lines[::-1]):
        table.write_text("\n".join(("region,type,zone,spot", *order)) + "\n")
        karpool("refresh", table, "--write", written)
        after = read_catalogue(written.read_bytes())
        assert after.price("m5.large", "eu-central-1b", "spot") == 0.01
        assert after.price("m5.large", "eu-central-1a", "spot") == 0.02


def test_a_price_of_a_zone_that_nobody_can_place_is_no_change(capsys, tmp_path):
    """Zone ids differ from account to account: what is left out is not counted as changed."""
    table = _written(tmp_path / "prices.csv", "region,type,zone,spot\neu-central-1,m5.large,euc1-az1,0.01\n")

    assert run(["catalogue", "refresh", str(table)], "karpool") == 0

    shown = capsys.readouterr()
    assert "0 prices changed" in shown.out
    assert "not zones of eu-central-1: euc1-az1; use names like eu-central-1a" in shown.err


@pytest.mark.parametrize(("region", "kind"), [("us-central1", "a2-ultragpu-1g"), ("us-east-1", "p3.2xlarge")])
def test_a_newer_price_sells_a_type_nowhere_else(karpool, tmp_path, region, kind):
    """Neither in zones that never had it, nor where it cannot be had any more."""
    before = load_shipped(region)
    places = {(offer.zone, offer.available) for offer in before.types[kind].offerings}
    assert {zone for zone, available in places if available} < {*before.zones}
    table = _written(tmp_path / "prices.csv", f"region,type,on_demand\n{region},{kind},0.5\n")

    karpool("refresh", table, "--write", tmp_path / "mine.json")

    after = read_catalogue((tmp_path / "mine.json").read_bytes()).types[kind].offerings
    assert {(offer.zone, offer.available) for offer in after} == places
    assert {offer.price_per_hour for offer in after if offer.capacity_type == "on-demand"} == {0.5}
