"""Contracts: the bill against a calculator that shares no code, and what a machine adds to it."""

from collections import Counter
from datetime import datetime
from random import Random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool.cluster.market.market import Market
from karpool.model.contracts.contract import BilledKind, Contract, Fleet
from karpool.model.contracts.contract_file import read_contract
from karpool.model.contracts.contracted_prices import ContractedPrices
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.contracts.written_machines import written_machines
from karpool.model.errors import Invalid
from karpool.provisioning.market_file import contracted_prices
from tests.consolidation.built import BuiltCluster
from tests.contracts.independent_bill import NOW, bill
from tests.contracts.random_contracts import (
    REGION,
    TYPES,
    ZONES,
    as_file,
    few_types,
    machine,
    written_contract,
)

CATALOGUE = few_types()


def labels(name: str, zone: str, kind: str) -> dict[str, str]:
    return {
        "node.kubernetes.io/instance-type": name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": REGION,
        "karpenter.sh/capacity-type": kind,
    }


def contracted(written: dict) -> tuple[Contract, Market]:
    """At the moment of the calculator."""
    market = Market(CATALOGUE, contract=read_contract(as_file(written)))
    market.contracted.see_time(NOW.timestamp())
    return market.contracted.contract, market


def fleet_of(market: Market, machines: list[tuple[str, str, str]]) -> Fleet:
    kinds = [market.billed(labels(*each)) for each in machines]
    return Counter(kind for kind in kinds if kind is not None)


def random_machines(chance: Random, most: int = 8) -> list[tuple[str, str, str]]:
    return [
        (
            chance.choice(TYPES),
            chance.choice(ZONES),
            chance.choice(("on-demand", "on-demand", "on-demand", "spot", "reserved")),
        )
        for _ in range(chance.randint(0, most))
    ]


@pytest.mark.long
@given(st.integers(0, 10**9))
def test_the_bill_is_that_of_an_independent_calculator(seed: int) -> None:
    chance = Random(seed)
    written, machines = written_contract(chance), random_machines(chance)
    contract, market = contracted(written)

    found = contract.bill(fleet_of(market, machines)).per_hour

    expected = bill(written, [machine(CATALOGUE, *each) for each in machines])
    assert found == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.long
@given(st.integers(0, 10**9))
def test_the_price_of_a_machine_is_what_it_adds_to_the_bill(seed: int) -> None:
    chance = Random(seed)
    written, machines = written_contract(chance), random_machines(chance)
    contract, market = contracted(written)
    fleet = fleet_of(market, machines)
    prices = contract.prices(fleet)

    plain = [machine(CATALOGUE, *each) for each in machines]
    for index, each in enumerate(machines):
        kind = market.billed(labels(*each))
        assert kind is not None
        added = bill(written, plain) - bill(written, plain[:index] + plain[index + 1 :])
        assert prices[kind] == pytest.approx(max(float(added), kind.least), abs=1e-6)
        assert kind.least <= prices[kind] <= kind.rate + 1e-6


@given(st.integers(0, 10**9))
def test_one_more_machine_never_costs_more_than_its_rate_nor_makes_the_bill_fall(seed: int) -> None:
    """But for places of reserved capacity that were bought at another price: a machine that draws before a
    dearer place adds what that one then costs."""
    chance = Random(seed)
    written, machines = written_contract(chance), random_machines(chance)
    written["commitments"] = [
        entry for entry in written["commitments"] if entry["kind"] != "capacity-reservation"
    ]
    contract, market = contracted(written)
    fleet = fleet_of(market, machines)
    more = market.billed(labels(chance.choice(TYPES), chance.choice(ZONES), "on-demand"))
    assert more is not None

    grown = contract.beyond({**fleet, more: fleet.get(more, 0) + 1}) - contract.beyond(fleet)

    assert -1e-9 <= grown <= more.rate + 1e-9
    assert more.least <= contract.added(more, contract.headroom(fleet)) <= more.rate


def kind(rate: float, cpus: float = 2, name: str = "m5.large") -> BilledKind:
    return BilledKind(cpus, name, "m5", "aws", REGION, ZONES[0], "on-demand", rate)


def test_inside_an_unused_plan_a_machine_costs_next_to_nothing_and_beyond_it_its_rate() -> None:
    plan = {"name": "p", "kind": "savings-plan", "perHour": 0.15, "percent": 25}
    contract, _ = contracted({"format": "karpool-contract/1", "commitments": [plan]})
    one = kind(0.1)

    assert contract.added(one, contract.headroom({})) == one.least
    assert contract.added(one, contract.headroom({one: 1})) == pytest.approx(one.least)
    assert contract.added(one, contract.headroom({one: 2})) == 0.1
    assert contract.bill({one: 3}).per_hour == pytest.approx(0.15 + 0.1)
    assert contract.bill({one: 3}).uses[0].used == pytest.approx(0.15)
    assert contract.prices({one: 3})[one] == pytest.approx(0.1)
    assert contract.prices({one: 2})[one] == one.least


def test_what_other_clusters_use_of_a_plan_is_not_there() -> None:
    plan = {"name": "p", "kind": "savings-plan", "perHour": 0.15, "percent": 25, "usedElsewhere": 0.15}
    contract, _ = contracted({"format": "karpool-contract/1", "commitments": [plan]})
    one = kind(0.1)

    assert contract.added(one, contract.headroom({})) == 0.1


@pytest.mark.long
@given(st.integers(0, 10**9))
def test_clusters_under_one_contract_count_each_others_machines(seed: int) -> None:
    chance = Random(seed)
    written = written_contract(chance)
    contract, market = contracted(written)
    shared = SharedContract(contract)
    machines = {name: random_machines(chance) for name in ("north", "south")}
    members = {name: shared.member(name) for name in machines}
    for member in members.values():
        member.see_time(NOW.timestamp())
    for name in ("north", "south", "north"):  # the first learns of the second when it looks again
        members[name].see_fleet(fleet_of(market, machines[name]))

    everything = [machine(CATALOGUE, *each) for each in (*machines["north"], *machines["south"])]
    assert shared.bill().per_hour == pytest.approx(float(bill(written, everything)), abs=1e-6)
    for index, each in enumerate(machines["north"]):
        kind = market.billed(labels(*each))
        assert kind is not None
        added = bill(written, everything) - bill(written, everything[:index] + everything[index + 1 :])
        assert members["north"].price(kind) == pytest.approx(max(float(added), kind.least), abs=1e-6)


def test_until_its_machines_are_seen_a_cluster_counts_on_no_commitment() -> None:
    plan = {"name": "p", "kind": "savings-plan", "perHour": 10, "percent": 25}
    _, market = contracted({"format": "karpool-contract/1", "commitments": [plan]})
    there = labels("m5.large", ZONES[0], "on-demand")

    assert market.price(there) == market.list_price(there) == 0.115
    market.contracted.see_fleet(fleet_of(market, [("m5.large", ZONES[0], "on-demand")]))
    assert market.price(there) == pytest.approx(0.115 / 10_000_000)


PLAN = {"name": "p", "kind": "savings-plan", "perHour": 10, "percent": 25}


def plan_between(start: str, end: str) -> Contract:
    document = {"format": "karpool-contract/1", "commitments": [{**PLAN, "start": start, "end": end}]}
    return read_contract(yaml.safe_dump(document).encode())


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_commitment_begins_and_ends_with_its_days() -> None:
    prices = ContractedPrices(plan_between("2026-03-01", "2026-03-31"))
    one = kind(0.1)
    costs = {}
    for at in ("2026-02-28T23:59:59", "2026-03-01T00:00:00", "2026-03-31T23:59:59", "2026-04-01T00:00:00"):
        prices.see_time(seconds(f"{at}+00:00"))
        prices.see_fleet({one: 1})
        costs[at[:10]] = prices.price(one), prices.contract.bill({one: 1}).per_hour

    assert costs == {
        "2026-02-28": (0.1, 0.1),
        "2026-03-01": (one.least, 10.0),
        "2026-03-31": (one.least, 10.0),
        "2026-04-01": (0.1, 0.1),
    }


def test_at_an_unknown_time_what_begins_or_ends_does_not_count() -> None:
    assert plan_between("2026-03-01", "").at(None).commitments == ()
    assert plan_between("", "").at(None).commitments != ()


def test_a_renewed_commitment_does_not_overlap_with_the_one_before() -> None:
    entries = [
        {**PLAN, "name": "old", "end": "2026-06-30"},
        {**PLAN, "name": "new", "start": "2026-07-01"},
    ]
    document = {"format": "karpool-contract/1", "commitments": entries}

    contract = read_contract(yaml.safe_dump(document).encode())

    assert [each.name for each in contract.at(seconds("2026-06-30T12:00:00+00:00")).commitments] == ["old"]
    assert [each.name for each in contract.at(seconds("2026-07-01T12:00:00+00:00")).commitments] == ["new"]


CAPACITY = {
    "name": "zone",
    "kind": "capacity-reservation",
    "types": ["m5.large"],
    "zones": [ZONES[0]],
    "regions": [REGION],
    "count": 3,
}


def test_places_of_reserved_capacity_are_billed_whether_machines_fill_them_or_not() -> None:
    contract, market = contracted({"format": "karpool-contract/1", "commitments": [CAPACITY]})
    one = market.billed(labels("m5.large", ZONES[0], "on-demand"))
    other = market.billed(labels("m5.large", ZONES[1], "on-demand"))
    assert one is not None and other is not None

    bills = [round(contract.bill({one: count}).per_hour / one.rate, 6) for count in range(6)]
    assert bills == [3, 3, 3, 3, 4, 5]
    assert contract.bill({other: 1}).per_hour == pytest.approx(4 * one.rate)
    assert contract.added(one, contract.headroom({one: 2})) == one.least
    assert contract.added(one, contract.headroom({one: 3})) == one.rate
    assert contract.bill({one: 2}).uses[0].used == 2


def test_places_that_are_used_elsewhere_are_neither_billed_nor_filled_here() -> None:
    document = {"format": "karpool-contract/1", "commitments": [{**CAPACITY, "usedElsewhere": 1}]}
    contract, market = contracted(document)
    one = market.billed(labels("m5.large", ZONES[0], "on-demand"))
    assert one is not None

    bills = [round(contract.bill({one: count}).per_hour / one.rate, 6) for count in range(5)]
    assert bills == [2, 2, 2, 3, 4]


def test_a_plan_pays_for_reserved_capacity_that_is_empty() -> None:
    """So nothing of it is left for a machine elsewhere, and that one is not free."""
    plan = {"name": "ri", "kind": "reservation", "types": ["m5.large"], "count": 3}
    contract, market = contracted({"format": "karpool-contract/1", "commitments": [CAPACITY, plan]})
    other = market.billed(labels("m5.large", ZONES[1], "on-demand"))
    assert other is not None

    assert contract.added(other, contract.headroom({})) == other.rate
    assert contract.bill({other: 1}).beyond == pytest.approx(other.rate)


def test_machines_that_are_written_of_other_clusters_use_up_a_plan() -> None:
    one = kind(0.1)
    document = {
        "format": "karpool-contract/1",
        "commitments": [{**PLAN, "perHour": 0.15}],
        "elsewhere": {"south": written_machines({one: 2})},
    }
    prices = ContractedPrices(read_contract(yaml.safe_dump(document).encode()))
    prices.see_fleet({one: 1})
    assert prices.price(one) == pytest.approx(0.1)

    shared = SharedContract(read_contract(yaml.safe_dump(document).encode()))
    north, south = (
        shared.member("north"),
        shared.member("south"),
    )  # looked at: what is written is old
    south.see_fleet({one: 1})
    north.see_fleet({one: 1})
    assert north.price(one) == one.least


def test_prices_of_a_cluster_follow_terms_though_no_machine_changes() -> None:
    """Also of one that begins: until then its machines cost what they cost without it."""
    cluster = BuiltCluster(CATALOGUE, contract=plan_between("2026-03-01", "2026-03-31"))
    cluster.pool()
    cluster.node("n", "m5.large", zone=ZONES[0], capacity_type="on-demand")

    prices = [
        cluster.cluster.snapshot(seconds(f"{day}T12:00:00+00:00")).nodes[0].price_per_hour
        for day in ("2026-02-28", "2026-03-01", "2026-04-01")
    ]

    assert prices == [0.115, pytest.approx(0.115e-7), 0.115]


def test_a_contract_is_read_again_when_its_file_changes(tmp_path) -> None:
    file = tmp_path / "contract.yaml"
    document = {"format": "karpool-contract/1", "commitments": [PLAN]}
    file.write_text("format: karpool-contract/1\n")
    prices = contracted_prices(file)
    one = kind(0.1)

    def price_at(now: float) -> float:
        prices.see_time(now)
        prices.see_fleet({one: 1})
        return prices.price(one)

    assert price_at(100) == 0.1
    file.write_text(yaml.safe_dump(document))
    assert price_at(105) == 0.1  # not asked yet
    assert price_at(111) == one.least
    file.write_text("format: nonsense")
    assert price_at(200) == one.least  # the one before holds
    file.unlink()
    assert price_at(300) == one.least


def test_agreements_of_other_accounts_do_not_count() -> None:
    plan = {"name": "p", "kind": "savings-plan", "perHour": 10, "percent": 25, "accounts": ["other"]}
    contract, _ = contracted({"format": "karpool-contract/1", "account": "ours", "commitments": [plan]})

    assert contract.commitments == ()


FILE = """\
format: karpool-contract/1
discounts:
  - name: private
    families: [m5]
    regions: [eu-central-1]
    percent: 12
commitments:
  - name: compute
    kind: savings-plan
    perHour: 10
    percent: 27
  - name: machines
    kind: reservation
    types: [m5.large]
    count: 4
"""


def test_a_whole_file_is_read() -> None:
    contract = read_contract(FILE.encode())

    assert [each.name for each in contract.commitments] == ["machines", "compute"]
    assert contract.discounts[0].fraction == 0.12


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("percent: 12", "percent: -12", r"line 6\.discounts\[0\]\.percent"),
        ("percent: 12", "percent: 100", r"line 6\.discounts\[0\]\.percent: 100.0: must be below 100"),
        ("[m5]", "[m55]", r"line 4\.discounts\[0\]\.families\[0\]: 'm55': is no family of aws"),
        ("[eu-central-1]", "[sa-east-1]", r"line 5\.discounts\[0\]\.regions\[0\]: 'sa-east-1': no catalogue"),
        (
            "kind: savings-plan",
            "kind: saving-plan",
            r"line 9\.commitments\[0\]\.kind: 'saving-plan': must be one of",
        ),
        ("perHour: 10", "perHour: -10", r"line 10\.commitments\[0\]\.perHour"),
        (
            "percent: 27",
            "percent: 0",
            r"line 11\.commitments\[0\]\.percent: 0.0: must be what the plan takes off",
        ),
        (
            "count: 4",
            "count: 4\n    cpus: 3",
            r"line 15\.commitments\[1\]\.count: 4.0: a reservation has either",
        ),
        ("name: machines", "name: compute", r"line 12\.commitments\[1\]\.name: 'compute': is the name of"),
        ("format: karpool-contract/1", "format: x", r"line 1\.format: 'x': must be karpool-contract/1"),
        (
            "discounts:",
            "currency: EUR\ndiscounts:",
            r"line 2\.currency: 'EUR': prices are in USD",
        ),
        (
            "commitments:",
            "  - name: again\n    regions: [eu-central-1]\n    percent: 3\ncommitments:",
            r"line 7\.discounts\[1\]: 'again': is about machines that 'private' is about",
        ),
        (
            "  - name: machines",
            "  - name: more\n    kind: savings-plan\n    perHour: 1\n    percent: 20\n  - name: machines",
            r"line 12\.commitments\[1\]: 'more': is about machines that 'compute' is about",
        ),
        (
            "percent: 27",
            "percent: 27\n    usedElsewhere: 11",
            r"line 12\.commitments\[0\]\.usedElsewhere: 11.0: is more",
        ),
        ("percent: 27", "persent: 27", r"line 11\.commitments\[0\]\.persent"),
        ("percent: 27", "percent: .nan", r"line 11\.commitments\[0\]\.percent"),
        ("- name: compute", "- nome: compute", r"line 8"),
        (
            "percent: 27",
            "percent: 27\n    end: soon",
            r"line 12\.commitments\[0\]\.end: 'soon': must be a day",
        ),
        ("percent: 27", "percent: 27\n    end: 2026-02-30", r"line 12\.commitments\[0\]\.end"),
        (
            "percent: 27",
            "percent: 27\n    start: 2026-02-03\n    end: 2026-02-02",
            r"line 13\.commitments\[0\]\.end: '2026-02-02': is before the start",
        ),
        (
            "percent: 27",
            "percent: 27\n    start: 2026-02-03T10:00:00",
            r"line 12\.commitments\[0\]\.start: .*with its zone",
        ),
        (
            "kind: reservation",
            "kind: capacity-reservation",
            r"line 12\.commitments\[1\]\.zones: \[\]: capacity is reserved for one type in one zone",
        ),
        ("count: 4", "count: 4\n    targeted: true", r"line 16\.commitments\[1\]\.targeted: True: only"),
        (
            "percent: 12",
            "percent: 12\n    capacityTypes: [spt]",
            r"line 7\.discounts\[0\]\.capacityTypes\[0\]",
        ),
        (
            "commitments:",
            "elsewhere: {south: [{type: m5.large, family: m5, provider: ibm, region: r, zone: z, count: 1,"
            " rate: 1, cpus: 2}]}\ncommitments:",
            r"line 7\.elsewhere\.south\[0\]\.provider: 'ibm': must be one of",
        ),
        (
            "commitments:",
            "elsewhere: {south: [{type: m5.large, count: -1}]}\ncommitments:",
            r"line 7\.elsewhere",
        ),
    ],
)
def test_a_mistake_in_a_contract_names_its_line(old: str, new: str, error: str) -> None:
    assert old in FILE
    with pytest.raises(Invalid, match=error):
        read_contract(FILE.replace(old, new, 1).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"a: [", b"\xff", b"&a [*a]", b"x", b"--- a\n--- b\n"])
def test_what_is_no_contract_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_contract(data)
