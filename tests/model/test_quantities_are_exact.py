"""Quantities against an obviously right twin that works on fractions."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model import quantity
from karpool.model.errors import Invalid

_POWERS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


def naive(text: str, unit: Fraction) -> int:
    """The number, in units, away from zero: first to whole nanos, then to whole units; within int64."""
    mantissa, exponent, suffix = re.fullmatch(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+)?([a-zA-Z]*)", text).groups()
    number = Fraction("0" + mantissa.lstrip("+-") + "0" if "." in mantissa else mantissa.lstrip("+-"))
    number *= Fraction(10) ** int(exponent[1:]) if exponent else _POWERS[suffix]
    nanos = -(-number.numerator * 10**9 // number.denominator)
    amount = -(-nanos * unit.denominator // (unit.numerator * 10**9))
    return max(-(2**63), -amount) if mantissa.startswith("-") else min(2**63 - 1, amount)


signs = st.sampled_from(["", "+", "-"])
digits = st.text("0123456789", min_size=1, max_size=30)
mantissas = st.one_of(
    digits,
    st.tuples(digits, digits).map(".".join),
    digits.map(lambda whole: whole + "."),
    digits.map(lambda fraction: "." + fraction),
)
exponents = st.tuples(st.sampled_from("eE"), signs, st.integers(0, 60)).map(lambda e: f"{e[0]}{e[1]}{e[2]}")
suffixes = st.one_of(st.sampled_from(sorted(_POWERS)), exponents)
texts = st.tuples(signs, mantissas, suffixes).map("".join)


@given(texts)
def test_milli_value_is_the_rounded_fraction(text: str) -> None:
    assert quantity.milli_value(text) == naive(text, Fraction(1, 1000))


@given(texts)
def test_value_is_the_rounded_fraction(text: str) -> None:
    assert quantity.value(text) == naive(text, Fraction(1))


@pytest.mark.parametrize(
    ("text", "milli", "whole"),
    [
        pytest.param("0", 0, 0, id="zero"),
        pytest.param("-0", 0, 0, id="negative zero"),
        pytest.param("100m", 100, 1, id="part of a unit rounds up"),
        pytest.param("-100m", -100, -1, id="negative rounds away from zero"),
        pytest.param("1n", 1, 1, id="a nano is something"),
        pytest.param("0.0000000001", 1, 1, id="less than a nano counts as one"),
        pytest.param("1.5Gi", 1610612736000, 1610612736, id="binary fraction"),
        pytest.param("1e3", 10**6, 1000, id="exponent"),
        pytest.param("1E3", 10**6, 1000, id="capital exponent"),
        pytest.param("1E", 2**63 - 1, 10**18, id="capital E alone is exa"),
        pytest.param("1E-3", 1, 1, id="negative exponent"),
        pytest.param("8Ei", 2**63 - 1, 2**63 - 1, id="one too many saturates"),
        pytest.param("-9Ei", -(2**63), -(2**63), id="saturates below"),
        pytest.param("1e999", 2**63 - 1, 2**63 - 1, id="huge exponent"),
        pytest.param("1e-999", 1, 1, id="tiny exponent"),
        pytest.param("0e999999999999", 0, 0, id="zero of any size"),
        pytest.param("9" * 256, 2**63 - 1, 2**63 - 1, id="as many digits as are read"),
        pytest.param(2, 2000, 2, id="a bare integer"),
        pytest.param(0.1, 100, 1, id="a bare float means its decimal"),
        pytest.param(1e22, 2**63 - 1, 2**63 - 1, id="a bare large float"),
    ],
)
def test_known_quantities(text: str | float, milli: int, whole: int) -> None:
    assert quantity.milli_value(text) == milli
    assert quantity.value(text) == whole


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            ".",
            "+",
            "-",
            "1 ",
            " 1",
            "1KI",
            "1ki",
            "1mi",
            "1e",
            "1e+",
            "--1",
            "1.2.3",
            "1_000",
            "0x10",
        ),
        *("١", "1\n", "nan", "inf", "1e5m", "1Gib", "9" * 257, True, None, float("nan"), float("inf")),
        pytest.param(10**5000, id="an integer too long to be written"),
    ],
)
def test_what_is_no_quantity_is_refused_with_its_value(text: object) -> None:
    with pytest.raises(Invalid) as caught:
        quantity.value(text)  # type: ignore[arg-type]

    assert caught.value.reason
    assert len(str(caught.value)) < 400


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_invalid(text: str) -> None:
    try:
        assert isinstance(quantity.milli_value(text), int)
    except Invalid as error:
        assert error.value == text


@given(st.integers(-(2**62) // 1000, 2**62 // 1000))
def test_milli_amounts_survive_writing_and_reading(milli: int) -> None:
    assert quantity.milli_value(quantity.format_milli(milli)) == milli


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_amounts_survive_writing_and_reading(amount: int) -> None:
    assert quantity.value(quantity.format_value(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, "0"), (7, "7"), (1024, "1Ki"), (3 * 2**29, "1536Mi"), (2**31, "2Gi")]
)
def test_whole_amounts_are_written_with_the_largest_suffix(amount: int, shown: str) -> None:
    assert quantity.format_value(amount) == shown


@pytest.mark.parametrize(("milli", "shown"), [(0, "0"), (1, "1m"), (1500, "1500m"), (2000, "2")])
def test_milli_amounts_are_written_as_people_do(milli: int, shown: str) -> None:
    assert quantity.format_milli(milli) == shown


@given(st.integers(1, 2**62))
def test_rounded_amounts_are_within_a_hundredth_and_never_an_exponent(amount: int) -> None:
    shown = quantity.rounded_bytes(amount)
    assert "e" not in shown.lower().removesuffix("ei")
    assert abs(quantity.value(shown) - amount) * 100 <= amount + 100
    assert "e" not in quantity.rounded_milli(amount)
    assert abs(quantity.milli_value(quantity.rounded_milli(amount)) - amount) * 100 <= amount


@pytest.mark.parametrize(
    ("units", "shown"),
    [(1_720 * 2**30, "1.68Ti"), (2**28, "256Mi"), (3 * 2**29, "1.5Gi"), (7, "7"), (100 * 2**30, "100Gi")],
)
def test_bytes_are_shown_as_people_write_them(units: int, shown: str) -> None:
    assert quantity.rounded_bytes(units) == shown
