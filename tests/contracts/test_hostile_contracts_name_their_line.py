"""Contracts that were written in haste, or to do harm: the error names line and field, and comes soon."""

import pytest

from karpool.model.contracts.contract_file import read_contract
from karpool.model.errors import Invalid

HEAD = "format: karpool-contract/1\n"
RESERVED = "kind: reservation, types: [m5.large], count: 3"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("discounts:\n  - {name: a, percent: 5, percent: 50}\n", "line 3.percent"),
        ("discounts: []\ndiscounts: []\n", "line 3.discounts"),
        ("discounts:\n  - {name: '', percent: 5}\n", "line 3.discounts[0].name"),
        ('discounts:\n  - {name: "a\\nb", percent: 5}\n', "line 3.discounts[0].name"),
        ("discounts:\n  - name: a\n    precent: 5\n", "line 4.discounts[0].precent"),
        ("discount: []\n", "line 2.discount"),
        ("discounts:\n  - {name: a, percent: 5, types: [m5.larg]}\n", "line 3.discounts[0].types[0]"),
        (
            "commitments:\n  - {name: a, kind: reservation, types: [m5.large], count: 1.5}\n",
            "line 3.commitments[0].count",
        ),
        (f"commitments:\n  - {{name: a, {RESERVED}, zones: [mars-1a]}}\n", "line 3.commitments[0].zones[0]"),
        (
            f"commitments:\n  - {{name: a, {RESERVED}, regions: [eu-west-1], zones: [us-east-1a]}}\n",
            "line 3.commitments[0].zones[0]",
        ),
        ("elsewhere:\n  'A b': []\n", "line 3.elsewhere"),
        (
            "elsewhere:\n  south:\n    - {type: m5.large, family: m5, provider: aws, region: us-east-1,"
            " zone: us-east-1a, count: -3, rate: 0.1, cpus: 2}\n",
            "line 4.elsewhere.south[0].count",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, path):
    with pytest.raises(Invalid) as refusal:
        read_contract((HEAD + text).encode())

    assert refusal.value.path == path


def test_clouds_write_that_something_never_ends_as_a_day_of_the_year_9999():
    plan = "{name: a, kind: savings-plan, perHour: 1, percent: 20, end: 9999-12-31}"

    (commitment,) = read_contract(f"{HEAD}commitments:\n  - {plan}\n".encode()).commitments

    assert commitment.term.end == float("inf")


@pytest.mark.parametrize(
    "more", ["types: [m5.large]", "families: [m5], provider: aws", "types: [m5.large, c5.large]"]
)
def test_overlaps_are_found_whatever_two_agreements_name(more):
    """One names a type, the other the same, its family, or nothing."""
    first = f"{{name: a, percent: 5, {more}}}"

    for second in ("{name: b, percent: 5}", f"{{name: b, percent: 5, {more}}}"):
        for pair in ((first, second), (second, first)):
            text = HEAD + "discounts:\n" + "".join(f"  - {entry}\n" for entry in pair)
            with pytest.raises(Invalid, match="is about machines that"):
                read_contract(text.encode())


def test_a_type_and_its_family_overlap():
    entries = (
        "{name: a, percent: 5, types: [m5.large]}",
        "{name: b, percent: 5, families: [m5], provider: aws}",
    )

    for pair in (entries, entries[::-1]):
        with pytest.raises(Invalid, match="is about machines that"):
            read_contract((HEAD + "discounts:\n" + "".join(f"  - {entry}\n" for entry in pair)).encode())
