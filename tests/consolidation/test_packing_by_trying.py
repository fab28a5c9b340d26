"""The search for a packing finds the first there is, and says that there is none only when there is none."""

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from karpool.packing.relocation.exact import exact_fit

sizes = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=3)
rooms = st.lists(st.lists(st.integers(-1, 9), min_size=2, max_size=2), min_size=1, max_size=4)


@st.composite
def problems(draw: st.DrawFn):
    amounts = [tuple(enumerate(size)) for size in draw(sizes)]
    places = draw(rooms)
    items = sorted(draw(st.lists(st.integers(0, len(amounts) - 1), max_size=6)))
    masks = st.lists(st.booleans(), min_size=len(amounts), max_size=len(amounts))
    admits = draw(st.lists(masks, min_size=len(places), max_size=len(places)))
    return items, amounts, places, admits


def fits(items, amounts, rooms, admits, choice) -> bool:
    left = [list(room) for room in rooms]
    for item, place in zip(items, choice, strict=True):
        if not admits[place][item]:
            return False
        for index, units in amounts[item]:
            if left[place][index] < units:
                return False
            left[place][index] -= units
    return True


def first_of_all(items, amounts, rooms, admits) -> list[int] | None:
    choices = product(range(len(rooms)), repeat=len(items))
    return next((list(choice) for choice in choices if fits(items, amounts, rooms, admits, choice)), None)


@pytest.mark.long
@settings(max_examples=400)
@given(problems())
@example(([0, 0, 0], [((0, 2), (1, 1))], [[3, 3], [3, 3]], [[True], [True]]))
@example(([], [((0, 2), (1, 1))], [[-1, 0]], [[True]]))
def test_it_finds_the_first_of_all_packings(problem) -> None:
    assert exact_fit(*problem) == first_of_all(*problem)


def test_equal_nodes_and_equal_pods_are_not_tried_again_and_again() -> None:
    """Of sixteen pods of 5, nine of 3 and one of 2 in twelve nodes of 11, most orders come to the same."""
    amounts = [((0, 5),), ((0, 3),), ((0, 2),)]
    items = [0] * 16 + [1] * 9 + [2]
    assert sum((5, 3, 2)[item] for item in items) <= 12 * 11
    nodes = [[11] for _ in range(12)]
    found = exact_fit(items, amounts, nodes, [[True] * 3 for _ in nodes])
    assert found is not None and fits(items, amounts, nodes, [[True] * 3] * 12, found)
    assert exact_fit([*items, *items], amounts, nodes, [[True] * 3 for _ in nodes]) is None
