"""Planning the same again finds the same again: the wait grows, and any change ends it."""

from hypothesis import given
from hypothesis import strategies as st

from karpool.consolidation.execution.controller import ConsolidatorSettings, _Idle

OPTIONS = ConsolidatorSettings(plan_seconds=10.0, idle_seconds=300.0)


def test_the_wait_doubles_up_to_its_limit_while_nothing_changes():
    idle, now, waits = _Idle(), 0.0, []
    for _ in range(8):
        idle = idle.after(True, 7, now, OPTIONS)
        waits.append(idle.until - now)
        now = idle.until
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_change_ends_the_wait_and_the_next_is_short_again():
    idle = _Idle()
    for _ in range(5):
        idle = idle.after(True, 7, 0.0, OPTIONS)
    assert idle.lasts(100.0, 7)
    assert not idle.lasts(100.0, 8)
    assert idle.after(True, 8, 100.0, OPTIONS).until == 110.0


def test_a_plan_with_moves_is_followed_by_another_at_once():
    idle = _Idle().after(True, 7, 0.0, OPTIONS).after(False, 7, 0.0, OPTIONS)
    assert not idle.lasts(0.0, 7)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30))
def test_nobody_waits_for_longer_than_the_limit(plans):
    idle, now = _Idle(), 0.0
    for fruitless, changes in plans:
        idle = idle.after(fruitless, changes, now, OPTIONS)
        assert idle.until <= now + OPTIONS.idle_seconds
        now += 1.0
