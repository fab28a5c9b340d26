"""Plans of 200 random small clusters, against an exact solver and against upstream's search."""

from collections.abc import Iterator
from statistics import median

import pytest

from karpool.consolidation.methods import multi_node
from tests.consolidation.optimality import Compared, compared

CLUSTERS = 200
# Packings that the search tries in all of them: about 1,100 when this was written. What is bounded is
# work, so that a machine that is busy fails nothing.
PACKINGS_MAX = 5_000
pytestmark = pytest.mark.timeout(0)


class CountedPackings:
    def __init__(self) -> None:
        self.count, self._pack = 0, multi_node.exact_fit

    def __call__(self, *arguments):
        self.count += 1
        return self._pack(*arguments)


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def packings() -> Iterator[CountedPackings]:
    with pytest.MonkeyPatch.context() as patch:
        counted = CountedPackings()
        patch.setattr(multi_node, "exact_fit", counted)
        yield counted


@pytest.fixture(scope="module")
def found(packings) -> list[Compared]:
    return [compared(seed) for seed in range(CLUSTERS)]


def test_the_search_takes_no_more_packings_than_it_may(found, packings):
    assert 0 < packings.count <= PACKINGS_MAX


def test_half_of_the_plans_save_what_can_be_saved(found):
    assert median(each.ratio for each in found) >= 0.98


def test_no_plan_is_far_from_the_optimum(found):
    worst = min(found, key=lambda each: each.ratio)
    assert worst.ratio >= 0.85, worst


def test_no_plan_claims_more_than_the_optimum(found):
    most = max(found, key=lambda each: each.ratio)
    assert most.ratio <= 1 + 1e-6, most


def test_no_plan_saves_less_than_a_command_of_upstreams_search(found):
    worse = [each for each in found if each.savings < each.one_command - 1e-9]
    assert not worse


def test_clusters_have_something_to_save(found):
    assert sum(each.optimum > 0 for each in found) > CLUSTERS / 2
