"""What a soak would complain about. The soak itself is a program: `make soak-30d`."""

from collections import Counter
from dataclasses import replace

from tests.chaos.soak import Evening, growth

FLAT = [Evening(day, Counter({"grows events": 50 + day % 3}), 100_000, 200.0, 0) for day in range(1, 31)]


def test_what_stays_as_it_is_is_flat() -> None:
    assert growth(FLAT) == []


def test_objects_that_pile_up_in_a_cluster_are_seen() -> None:
    piling = [replace(each, stored=Counter({"grows events": 50 + 10 * each.day})) for each in FLAT]
    assert growth(piling) == ["grows events: 150 objects, later 350"]


def test_memory_that_grows_is_seen() -> None:
    growing = [
        replace(each, alive=100_000 + 2_000 * each.day, resident_mib=200.0 + each.day) for each in FLAT
    ]
    assert [sentence.split(":")[0] for sentence in growth(growing)] == ["Python objects"]


def test_a_promise_that_is_left_is_seen() -> None:
    assert growth([*FLAT, replace(FLAT[-1], day=31, promises=1)]) == ["day 31: 1 promises are left"]
