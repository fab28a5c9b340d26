"""A memory that forgets by age is the same as one that keeps everything and looks at the age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.expiring import ExpiringMap, ExpiringSet

SECONDS, MOST = 10.0, 4


class Now:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 6)),
        st.tuples(st.just("amend"), st.integers(0, 6)),
        st.tuples(st.just("pop"), st.integers(0, 6)),
        st.tuples(st.just("wait"), st.integers(0, 12)),
    ),
    max_size=60,
)


@given(steps)
def test_it_holds_the_latest_few_that_are_young_enough(steps: list[tuple[str, int]]) -> None:
    clock = Now()
    recent = ExpiringMap[int, int](clock, SECONDS, MOST)
    everything: dict[int, tuple[float, int]] = {}  # the oldest put first
    for number, (what, key) in enumerate(steps):
        if what == "put":
            recent.put(key, number)
            everything.pop(key, None)
            everything[key] = clock.at, number
        elif what == "amend" and key in recent:
            recent.amend(key, number)
            everything[key] = everything[key][0], number
        elif what == "pop":
            recent.pop(key)
            everything.pop(key, None)
        elif what == "wait":
            clock.at += key
        young = {each: value for each, (at, value) in everything.items() if clock.at - at < SECONDS}
        expected = dict(list(young.items())[-MOST:])
        everything = {each: everything[each] for each in expected}
        assert {each: recent.get(each) for each in recent} == expected
        assert all((each in recent) == (each in expected) for each in range(7))
        assert len(recent) <= MOST


def test_what_is_too_old_takes_no_memory_after_the_next_put() -> None:
    clock = Now()
    recent = ExpiringMap[str, int](clock, SECONDS, 100)
    for number in range(50):
        recent.put(f"early-{number}", number)
    clock.at += SECONDS
    recent.put("late", 1)
    assert len(recent) == 1


def test_what_is_not_held_cannot_be_amended() -> None:
    with pytest.raises(KeyError):
        ExpiringMap[str, int](Now(), SECONDS, MOST).amend("a", 1)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30), st.integers(0, 3)), max_size=300))
def test_until_holds_what_has_not_ended_and_forgets_the_rest(puts: list[tuple[int, int, int]]) -> None:
    clock = Now()
    until, ends = ExpiringSet[int](clock), dict[int, float]()
    for key, seconds, pause in puts:
        until.put(key, seconds)
        ends[key] = clock.at + seconds
        clock.at += pause
        assert {each for each in ends if each in until} == {
            each for each, end in ends.items() if end > clock.at
        }
        assert until.left(key) == max(0, ends[key] - clock.at)
        if key % 5 == 0:
            until.pop(key)
            del ends[key]
            assert key not in until


def test_what_has_ended_does_not_pile_up() -> None:
    clock = Now()
    until = ExpiringSet[int](clock)
    for number in range(10_000):
        until.put(number, 10)
        clock.at += 1
    assert len(until) < 200
