"""Contracts: the bill against a calculator that shares no code, and what a machine adds to it."""

from collections import Counter
from random import Random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool.cluster.market.market import Market
from karpool.model.contracts.contract import BilledKind, Contract, Fleet
from karpool.model.contracts.contract_file import read_contract
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.errors import Invalid
from tests.contracts.independent_bill import bill
from tests.contracts.random_contracts import REGION, TYPES, ZONES, few_types, machine, written_contract

CATALOGUE = few_types()


def labels(name: str, zone: str, kind: str) -> dict[str, str]:
    return {
        "node.kubernetes.io/instance-type": name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": REGION,
        "karpenter.sh/capacity-type": kind,
    }


def contracted(written: dict) -> tuple[Contract, Market]:
    contract = read_contract(yaml.safe_dump(written).encode())
    return contract, Market(CATALOGUE, contract=contract)


def fleet_of(market: Market, machines: list[tuple[str, str, str]]) -> Fleet:
    kinds = [market.billed(labels(*each)) for each in machines]
    return Counter(kind for kind in kinds if kind is not None)


def random_machines(chance: Random, most: int = 8) -> list[tuple[str, str, str]]:
    return [
        (chance.choice(TYPES), chance.choice(ZONES), chance.choice(("on-demand", "on-demand", "spot")))
        for _ in range(chance.randint(0, most))
    ]


@given(st.integers(0, 10**9))
def test_the_bill_is_that_of_an_independent_calculator(seed: int) -> None:
    chance = Random(seed)
    written, machines = written_contract(chance), random_machines(chance)
    contract, market = contracted(written)

    found = contract.bill(fleet_of(market, machines)).per_hour

    expected = bill(written, [machine(CATALOGUE, *each) for each in machines])
    assert found == pytest.approx(float(expected), abs=1e-7)


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
        assert prices[kind] == pytest.approx(max(float(added), kind.least), abs=1e-7)
        assert kind.least <= prices[kind] <= kind.rate + 1e-7


@given(st.integers(0, 10**9))
def test_one_more_machine_never_costs_more_than_its_rate_nor_makes_the_bill_fall(seed: int) -> None:
    chance = Random(seed)
    written, machines = written_contract(chance), random_machines(chance)
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


@given(st.integers(0, 10**9))
def test_clusters_under_one_contract_count_each_others_machines(seed: int) -> None:
    chance = Random(seed)
    written = written_contract(chance)
    contract, market = contracted(written)
    shared = SharedContract(contract)
    machines = {name: random_machines(chance) for name in ("north", "south")}
    members = {name: shared.member(name) for name in machines}
    for name in ("north", "south", "north"):  # the first learns of the second when it looks again
        members[name].see_fleet(fleet_of(market, machines[name]))

    everything = [machine(CATALOGUE, *each) for each in (*machines["north"], *machines["south"])]
    assert shared.bill().per_hour == pytest.approx(float(bill(written, everything)), abs=1e-7)
    for index, each in enumerate(machines["north"]):
        kind = market.billed(labels(*each))
        assert kind is not None
        added = bill(written, everything) - bill(written, everything[:index] + everything[index + 1 :])
        assert members["north"].price(kind) == pytest.approx(max(float(added), kind.least), abs=1e-7)


def test_until_its_machines_are_seen_a_cluster_counts_on_no_commitment() -> None:
    plan = {"name": "p", "kind": "savings-plan", "perHour": 10, "percent": 25}
    _, market = contracted({"format": "karpool-contract/1", "commitments": [plan]})
    there = labels("m5.large", ZONES[0], "on-demand")

    assert market.price(there) == market.list_price(there) == 0.115
    market.contracted.see_fleet(fleet_of(market, [("m5.large", ZONES[0], "on-demand")]))
    assert market.price(there) == pytest.approx(0.115 / 10_000_000)


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
        ("percent: 27", "persent: 27", r"line 8\.commitments\[0\].*persent"),
        ("percent: 27", "percent: .nan", r"line 11\.commitments\[0\]\.percent"),
        ("- name: compute", "- nome: compute", r"line 8"),
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
