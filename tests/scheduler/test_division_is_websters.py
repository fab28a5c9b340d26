import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.scheduler.cycle.webster import divide, divide_capped, prefers_last
from tests.scheduler import naive

NAMES = [f"m{number}" for number in range(7)]
UIDS = st.sampled_from(["", "4858ca61-3ff8-4095-8267-f3d059d8074c", "d43fdeeb-d750-4e2b-bee3-64eb94534f4c"])
AMOUNTS = st.one_of(st.integers(0, 3), st.integers(0, 60), st.integers(0, 2**31 - 1))
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), AMOUNTS, max_size=7)
HELD = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40), max_size=4)


@given(st.integers(0, 150), WEIGHTS, st.one_of(st.just({}), HELD), UIDS)
def test_seats_are_those_of_handing_out_one_by_one(seats, weights, held, uid):
    assert divide(seats, weights, held, uid) == naive.divide(seats, weights, held, uid)


@given(st.integers(0, 2**31 - 1), WEIGHTS, st.one_of(st.just({}), HELD), UIDS)
def test_every_seat_is_given_and_none_is_taken_away(seats, weights, held, uid):
    result = divide(seats, weights, held, uid)

    given_out = seats if any(weights.values()) else 0
    assert sum(result.values()) == given_out + sum(held.values())
    assert all(result[name] >= count for name, count in held.items())
    assert list(result) == sorted({*weights, *held})


@given(st.integers(0, 10**6), st.integers(1, 1000), WEIGHTS, UIDS)
def test_more_seats_take_none_away(seats, more, weights, uid):
    before, after = divide(seats, weights, uid=uid), divide(seats + more, weights, uid=uid)

    assert all(after[name] >= count for name, count in before.items())


@given(WEIGHTS, st.integers(0, 2**31 - 1), UIDS)
def test_nobody_gets_more_than_its_room(weights, seats, uid):
    result = divide(min(seats, sum(weights.values())), weights, uid=uid)

    assert all(result[name] <= room for name, room in weights.items())


@given(st.integers(0, 60), WEIGHTS, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12)), UIDS)
def test_caps_are_those_of_handing_out_one_by_one(seats, weights, caps, uid):
    def one_by_one():
        have = dict.fromkeys(sorted(weights), 0)
        for _ in range(seats):
            open_ = {name: weights[name] for name in have if weights[name] and have[name] < caps.get(name, 0)}
            if not open_:
                break
            grown = naive.divide(1, open_, {name: have[name] for name in open_}, uid)
            have |= grown
        return have

    assert divide_capped(seats, weights, caps, uid) == one_by_one()


def test_ties_go_to_favourites_before_names():
    assert divide(1, {"a": 5, "b": 5, "c": 5}, first=["c", "b"]) == {"a": 0, "b": 0, "c": 1}


@pytest.mark.parametrize(
    ("uid", "last"),
    [
        pytest.param("", False, id="none"),
        pytest.param("4858ca61-3ff8-4095-8267-f3d059d8074c", False, id="even"),
        pytest.param("d43fdeeb-d750-4e2b-bee3-64eb94534f4c", True, id="odd"),
    ],
)
def test_the_uid_decides_which_end_of_the_names_is_favoured(uid, last):
    assert prefers_last(uid) is last
