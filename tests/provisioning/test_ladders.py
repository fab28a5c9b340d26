"""What to try, in which order; and what no pool can ever launch is never tried."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.taints import NO_SCHEDULE, Taint, Toleration
from karpool.packing.new_nodes.offerings import Offerings
from karpool.provisioning.candidates.ladder import CANDIDATES_MAX, CandidateLadder, CandidateQuery, ladder
from tests.provisioning.naive_ladder import launchable, only

GIB = 2**30
GPU_NAME = "karpenter.k8s.aws/instance-gpu-name"
ZONES = ("zone-a", "zone-b")


def gpu_type(
    name: str, gpus: int, model: str, price: float | None, kinds: tuple[str, ...] = (ON_DEMAND, SPOT)
) -> InstanceType:
    capacity = {"cpu": 8000 * gpus, "memory": 32 * GIB * gpus, "pods": 50, "nvidia.com/gpu": gpus}
    offerings = [
        Offering(zone, kind, None if price is None else price / (3 if kind == SPOT else 1))
        for zone in ZONES
        for kind in kinds
    ]
    labels = {INSTANCE_TYPE: only(name), GPU_NAME: only(model)}
    return InstanceType(name, labels, capacity, capacity).sold_as(offerings)


CATALOGUE = Catalogue(
    "test",
    "here",
    [
        gpu_type("one-a", 1, "a100", 3.0),
        gpu_type("one-b", 1, "a100", 4.0),
        gpu_type("four", 4, "a100", 12.0),
        gpu_type("eight", 8, "a100", 24.0, (ON_DEMAND,)),
        gpu_type("other", 1, "t4", 1.0),
        gpu_type("unpriced", 2, "a100", None),
    ],
)
A100 = ({GPU_NAME: only("a100")},)


def climbed(wish: CandidateQuery, *pools: CompiledPool) -> CandidateLadder:
    return ladder(wish, pools, Offerings(CATALOGUE))


def test_cheaper_and_smaller_nodes_come_first_and_the_widest_last() -> None:
    found = climbed(CandidateQuery({"nvidia.com/gpu": 1}, A100), CompiledPool("gpu"))
    assert [candidate.instance_types for candidate in found.candidates] == [
        ("one-a", "one-b"),
        ("four",),
        ("eight",),
        ("unpriced",),
        ("eight", "four", "one-a", "one-b", "unpriced"),
    ]
    assert [each.price for each in found.candidates] == [1.0, 4.0, 24.0, None, 1.0]
    assert found.skipped == ()


def test_a_unit_of_four_devices_never_asks_for_smaller_nodes() -> None:
    found = climbed(CandidateQuery({"nvidia.com/gpu": 4}, A100), CompiledPool("gpu"))
    assert found.candidates[-1].instance_types == ("eight", "four")


def test_preferences_come_before_what_is_merely_allowed() -> None:
    wish = CandidateQuery(
        {"nvidia.com/gpu": 8},
        A100,
        preferences=(
            (10, {ZONE: only("zone-b")}),
            (50, {ZONE: only("zone-a")}),
            (1, {ZONE: only("nowhere")}),
        ),
    )
    found = climbed(wish, CompiledPool("gpu"))
    assert [candidate.zones for candidate in found.candidates] == [("zone-a",), ("zone-b",), ()]


def test_alternatives_keep_the_order_of_the_pods_terms() -> None:
    wish = CandidateQuery({"nvidia.com/gpu": 8}, ({ZONE: only("zone-b")}, {ZONE: only("zone-a")}))
    assert [candidate.zones for candidate in climbed(wish, CompiledPool("gpu")).candidates] == [
        ("zone-b",),
        ("zone-a",),
    ]


def test_pools_come_in_karpenters_order() -> None:
    pools = (CompiledPool("a"), CompiledPool("b"), CompiledPool("heavy", weight=10))
    found = climbed(CandidateQuery({"nvidia.com/gpu": 8}), *pools)
    assert [candidate.pools for candidate in found.candidates] == [
        ("heavy",),
        ("b",),
        ("a",),
        ("a", "b", "heavy"),
    ]


def test_each_pool_that_cannot_help_says_why() -> None:
    pools = (
        CompiledPool("static", is_static=True),
        CompiledPool("tainted", taints=(Taint(key="team", value="x", effect=NO_SCHEDULE),)),
        CompiledPool("small", requirements={INSTANCE_TYPE: only("other")}),
        CompiledPool("elsewhere", requirements={ZONE: only("zone-c")}),
        CompiledPool("limited", limits={"nvidia.com/gpu": 2}),
        CompiledPool("labelled", requirements={GPU_NAME: only("t4")}),
        CompiledPool("good"),
    )
    found = climbed(CandidateQuery({"nvidia.com/gpu": 4}, A100), *pools)
    reasons = {each.pool: each.reason for each in found.skipped}
    assert reasons == {
        "static": "it is static",
        "tainted": "the pods do not tolerate its taint team=x:NoSchedule",
        "small": "none of its instance types has the labels asked for",
        "elsewhere": "none of its instance types has the labels asked for",
        "limited": "its limits are below what is asked for: nvidia.com/gpu",
        "labelled": f"its nodes cannot have {GPU_NAME} In (a100)",
    }
    assert {pool for candidate in found.candidates for pool in candidate.pools} == {"good"}


def test_the_taint_that_guards_devices_is_tolerated_and_no_other() -> None:
    guard = Taint(key="nvidia.com/gpu", value="true", effect=NO_SCHEDULE)
    (first, *_) = climbed(
        CandidateQuery({"nvidia.com/gpu": 1}), CompiledPool("gpu", taints=(guard,))
    ).candidates
    assert [toleration.tolerates(guard) for toleration in first.tolerations] == [True]


def test_a_predicate_narrows_what_labels_cannot_say() -> None:
    wish = CandidateQuery({"nvidia.com/gpu": 1}, only=lambda each: each.name == "four")
    assert {candidate.instance_types for candidate in climbed(wish, CompiledPool("gpu")).candidates} == {
        ("four",)
    }


def test_a_ladder_that_is_too_long_is_cut_before_the_widest_and_says_so() -> None:
    pools = [CompiledPool(f"pool-{number:03}") for number in range(CANDIDATES_MAX)]
    found = climbed(CandidateQuery({"nvidia.com/gpu": 8}), *pools)
    assert len(found.candidates) == CANDIDATES_MAX
    assert len(found.candidates[-1].pools) == CANDIDATES_MAX
    assert any(each.pool == "" and "left out" in each.reason for each in found.skipped)


# Any wish and any pools, against the naive twin

VALUES = {
    GPU_NAME: ("a100", "t4", "h100"),
    INSTANCE_TYPE: ("one-a", "four", "other", "missing"),
    ZONE: (*ZONES, "zone-c"),
    CAPACITY_TYPE: (ON_DEMAND, SPOT),
}


@st.composite
def requirements(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=2))
    some = {key: st.sets(st.sampled_from(VALUES[key]), min_size=1, max_size=2) for key in sorted(keys)}
    return {key: only(*draw(values)) for key, values in some.items()}


TEAM = Taint(key="team", effect=NO_SCHEDULE)
GUARD = Taint(key="nvidia.com/gpu", effect=NO_SCHEDULE)
TAINTS = st.sampled_from(((), (TEAM,), (GUARD,)))


@st.composite
def pools(draw: st.DrawFn, name: str) -> CompiledPool:
    return CompiledPool(
        name,
        weight=draw(st.integers(0, 3)),
        requirements=draw(requirements()),
        taints=draw(TAINTS),
        limits=draw(st.sampled_from(({}, {"nvidia.com/gpu": 2}, {"cpu": 10**6}))),
        is_static=draw(st.sampled_from((False, False, False, True))),
    )


@st.composite
def wishes(draw: st.DrawFn) -> CandidateQuery:
    return CandidateQuery(
        {"nvidia.com/gpu": draw(st.integers(0, 9)), "cpu": draw(st.integers(0, 70_000))},
        tuple(draw(st.lists(requirements(), min_size=1, max_size=2))),
        tuple((draw(st.integers(1, 100)), draw(requirements())) for _ in range(draw(st.integers(0, 2)))),
        tolerations=draw(st.sampled_from(((), (Toleration(key="team", operator="Exists"),)))),
        overhead=draw(st.sampled_from(({}, {"cpu": 1000}))),
    )


@settings(max_examples=60)
@given(wishes(), st.tuples(pools("p1"), pools("p2")))
def test_rungs_hold_what_the_naive_twin_would_launch_and_nothing_else(
    wish: CandidateQuery, given_: tuple[CompiledPool, ...]
) -> None:
    found = climbed(wish, *given_)
    by_name = {pool.name: pool for pool in given_}
    possible = {
        (number, pool.name, type_)
        for number, alternative in enumerate(wish.alternatives)
        for pool in given_
        for type_ in launchable(wish, pool, CATALOGUE, alternative)
    }
    assert bool(found.candidates) == bool(possible)
    for candidate in found.candidates:
        allowed = {(pool, type_) for _, pool, type_ in possible}
        assert {pool for pool, _ in allowed} >= set(candidate.pools)
        for type_ in candidate.instance_types:
            assert any((pool, type_) in allowed for pool in candidate.pools), (candidate, type_)
        if len(candidate.pools) == 1:
            (pool,) = candidate.pools
            alone = launchable(wish, by_name[pool], CATALOGUE, candidate.constraints)
            assert set(candidate.instance_types) <= alone
    reached = {
        (pool, type_) for each in found.candidates for pool in each.pools for type_ in each.instance_types
    }
    assert reached >= {(pool, type_) for _, pool, type_ in possible}, "every way is on the ladder"
    skipped = {each.pool for each in found.skipped}
    assert skipped.isdisjoint(pool for each in found.candidates for pool in each.pools)
    assert skipped | {pool for _, pool, _ in possible} >= set(by_name), "a pool serves or says why not"


@settings(max_examples=40)
@given(wishes(), st.permutations([0, 1, 2]))
def test_the_order_in_which_pools_are_given_does_not_matter(wish: CandidateQuery, order: list[int]) -> None:
    given_ = [
        CompiledPool("a"),
        CompiledPool("b", weight=2, requirements={ZONE: only("zone-a")}),
        CompiledPool("c"),
    ]
    one = climbed(wish, *given_).candidates
    assert one == climbed(wish, *(given_[index] for index in order)).candidates
    keys = [each.key for each in one]
    assert len(keys) == len(set(keys))


@settings(max_examples=40)
@given(wishes())
def test_a_preference_never_takes_away_what_is_possible(wish: CandidateQuery) -> None:
    plain = climbed(replace(wish, preferences=()), CompiledPool("a")).candidates
    preferred = climbed(wish, CompiledPool("a")).candidates
    assert preferred[-1:] == plain[-1:]
    assert {each.key for each in preferred} >= {each.key for each in plain}
