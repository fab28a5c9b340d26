from hypothesis import given
from hypothesis import strategies as st

from karpool.scheduler.cycle.selection import RegionGroup, select_groups
from tests.scheduler import naive

GROUPS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 10, 10, 20, 30, 1100])), max_size=7).map(
    lambda made: [RegionGroup(f"R{number}", *each) for number, each in enumerate(made)]
)


@given(GROUPS, st.integers(1, 5), st.integers(0, 7), st.integers(0, 14))
def test_the_choice_is_that_of_trying_every_combination(groups, least, most, clusters):
    raw = [{"name": group.name, "value": group.clusters, "weight": group.score} for group in groups]
    expected = naive.select_groups(raw, least, most, clusters)

    found = select_groups(groups, least, most, clusters)

    assert (found and [each.name for each in found]) == (expected and [each["name"] for each in expected])


def test_a_hundred_regions_are_no_trouble():
    groups = [RegionGroup(f"R{number:03}", 1 + number % 4, number * 7 % 50) for number in range(100)]

    found = select_groups(groups, 10, 50, 60)

    assert found is not None
    assert 10 <= len(found) <= 50
    assert sum(each.clusters for each in found) >= 60


def test_more_clusters_than_there_are_is_nothing_at_once():
    assert select_groups([RegionGroup("R", 3, 0)], 1, 2, 2**62) is None
