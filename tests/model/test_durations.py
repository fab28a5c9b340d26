import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model import durations
from karpool.model.errors import Invalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("30s", 30),
        ("1h30m", 5400),
        ("720h", 2592000),
        ("720h0m0s", 2592000),
        ("1.5h", 5400),
        (".5m", 30),
        ("1m1m", 120),
        ("100ms", 0.1),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1ns", 1e-9),
        ("-1h", -3600),
        ("+1h", 3600),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1", "h", ".h", "1d", "1h ", " 1h", "1 h", "Never", "never", "1h-1m", "--1h", "1e3s"]
)
def test_anything_else_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        durations.seconds(text)

    assert caught.value.value == text


@pytest.mark.parametrize("text", ["2562048h", "9" * 100 + "h", "1h" * 100])
def test_what_go_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        durations.seconds(text)


def test_never_is_no_duration_at_all() -> None:
    assert durations.seconds_or_never("Never") is None
    assert durations.seconds_or_never("0s") == 0


def test_a_negative_setting_is_refused() -> None:
    with pytest.raises(Invalid, match="must not be negative"):
        durations.seconds_or_never("-5m")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "Never"),
        (0, "0s"),
        (45, "45s"),
        (5400, "1h30m"),
        (3600, "1h"),
        (3601, "1h1s"),
        (0.25, "0.25s"),
        (-60, "-1m"),
    ],
)
def test_durations_are_shown_as_people_write_them(seconds: float | None, shown: str) -> None:
    assert durations.show(seconds) == shown


@given(st.integers(-(10**9), 10**9))
def test_whole_seconds_survive_showing_and_reading(seconds: int) -> None:
    assert durations.seconds(durations.show(seconds)) == seconds


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_invalid(text: str) -> None:
    try:
        assert isinstance(durations.seconds(text), float)
    except Invalid as error:
        assert error.value == text
