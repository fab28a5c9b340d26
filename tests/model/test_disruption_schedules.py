"""Cron schedules, and the budgets of a pool over time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.cron import parse_schedule
from karpool.model.errors import Invalid
from karpool.model.karpenter.budgets import (
    UNBOUNDED,
    allowed_by,
    allowed_disruptions,
    budgets_of,
    grant_of,
    is_active,
)
from karpool.model.karpenter.objects import Budget, Disruption


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "after", "hit"),
    [
        ("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01:00"),
        ("*/15 9-17 * * mon-fri", "2026-01-02T17:45:00", "2026-01-05T09:00:00"),
        ("0 0 29 2 *", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 13 * fri", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
        ("0 0 13 * *", "2026-01-01T00:00:00", "2026-01-13T00:00:00"),
        ("30/10 * * * ?", "2026-01-01T00:00:30", "2026-01-01T00:30:00"),
        ("0 0 * JAN SUN", "2026-01-31T00:00:00", "2027-01-03T00:00:00"),
        ("@weekly", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
        ("@hourly", "2026-01-01T00:59:59", "2026-01-01T01:00:00"),
    ],
)
def test_the_next_hit_is_strictly_later(schedule: str, after: str, hit: str) -> None:
    assert parse_schedule(schedule).next_after(at(after)) == at(hit)


def test_a_day_that_never_comes_is_never_hit() -> None:
    assert parse_schedule("0 0 31 2 *").next_after(at("2026-01-01T00:00:00")) is None


@pytest.mark.parametrize(
    "schedule",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* * 0 * *", "* * * * 7", "* * * * tue-mon"),
        *("*/0 * * * *", "@dailyish", "TZ=Europe/Paris 0 9 * * *", "a * * * *", "*-5 * * * *", "1- * * * *"),
        "9" * 300,
    ],
)
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(Invalid):
        parse_schedule(schedule)


fields = st.tuples(
    st.sampled_from(["*", "*/7", "0", "5-20", "1,59"]),
    st.sampled_from(["*", "3", "22-23", "*/5"]),
    st.sampled_from(["*", "1", "15-20", "?"]),
    st.sampled_from(["*", "feb", "6-8"]),
    st.sampled_from(["*", "0", "mon-wed", "5,6"]),
)


@settings(max_examples=60)
@given(fields, st.integers(0, 60 * 24 * 700))
def test_no_minute_is_missed(parts: tuple[str, ...], start: int) -> None:
    schedule = parse_schedule(" ".join(parts))
    begin = at("2026-01-01T00:00:00") + start * 60
    hit = schedule.next_after(begin)
    assert hit is not None
    assert hit > begin
    # Whatever lies in between is no hit: looking again from just before finds the same one.
    assert schedule.next_after(hit - 1) == hit
    assert schedule.next_after((begin + hit) / 2) == hit


@settings(max_examples=60)
@given(st.integers(0, 100), st.integers(0, 1000))
def test_a_percentage_rounds_up(percent: int, nodes: int) -> None:
    grant = allowed_by(Budget(nodes=f"{percent}%"), nodes, 0.0)
    assert grant * 100 >= percent * nodes > (grant - 1) * 100


def test_a_budget_with_a_schedule_counts_from_each_hit_for_its_duration() -> None:
    budget = Budget(nodes="0", schedule="0 9 * * *", duration="8h")
    day = at("2026-01-01T00:00:00")
    for hour in range(48):
        assert is_active(budget, day + hour * 3600) == (9 <= hour % 24 < 17)
    assert not is_active(budget, day + 9 * 3600 - 1)


def test_the_smallest_budget_that_speaks_of_the_reason_decides() -> None:
    budgets = [Budget(nodes="50%"), Budget(nodes="2", reasons=["Empty"]), Budget(nodes="0", reasons=[])]
    assert allowed_disruptions(budgets, 10, "Empty", 0.0) == 2
    assert allowed_disruptions(budgets, 10, "Drifted", 0.0) == 5
    assert allowed_disruptions(budgets[1:], 10, "Drifted", 0.0) == UNBOUNDED


def test_one_broken_budget_closes_the_pool_for_every_reason() -> None:
    broken = Budget(nodes="5", schedule="nonsense", duration="1h", reasons=["Empty"])
    assert allowed_disruptions([Budget(nodes="100%"), broken], 10, "Drifted", 0.0) == 0


def test_a_broken_budget_of_another_reason_allows_nothing_though_the_others_are_read() -> None:
    broken = Budget(nodes="5", schedule="@dailyish", duration="1h", reasons=["Empty"])
    grant = grant_of([Budget(nodes="7"), broken], 10, "Drifted", 0.0)
    assert (grant.allowed, grant.effective) == (7, 0)
    assert grant.problem is not None
    assert grant_of([Budget(nodes="7"), broken], 10, "Empty", 0.0).allowed == 0


def test_a_budget_that_is_not_active_is_not_read_further() -> None:
    asleep = Budget(nodes="no number", schedule="@yearly", duration="1h")
    assert grant_of([asleep], 10, "Empty", at("2026-06-01T00:00:00")).effective == UNBOUNDED
    assert grant_of([asleep], 10, "Empty", at("2026-01-01T00:30:00")).effective == 0
    # A schedule without a duration never is; a duration without a schedule cannot be read.
    assert not is_active(Budget(nodes="1", schedule="* * * * *"), at("2026-06-01T00:00:00"))
    assert grant_of([Budget(nodes="1", duration="1h")], 10, "Empty", 0.0).problem is not None


def test_no_budgets_at_all_is_not_the_default() -> None:
    assert [budget.nodes for budget in budgets_of(Disruption())] == ["10%"]
    assert allowed_disruptions(budgets_of(Disruption(budgets=[])), 10, "Empty", 0.0) == UNBOUNDED


def test_a_window_over_midnight_is_one_window() -> None:
    budget = Budget(nodes="1", schedule="0 22 * * *", duration="4h")
    start = datetime(2026, 1, 1, 22, tzinfo=UTC)
    for minutes in range(0, 240, 7):
        assert is_active(budget, (start + timedelta(minutes=minutes)).timestamp())
    assert not is_active(budget, (start + timedelta(hours=4)).timestamp())
