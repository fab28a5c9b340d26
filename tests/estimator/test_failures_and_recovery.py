"""Pools and offerings that do not deliver stop counting, and get another chance."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from karpool.cluster.market.failures import LaunchFailures, OfferingKey
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.packing.new_nodes.offerings import StockOut

SPOT_A = OfferingKey("m5.large", "a", "spot")
SPOT_B = OfferingKey("m5.large", "b", "spot")
POOLS = ("gpu", "cpu")

moments = st.integers(0, 2000).map(float)
news = st.one_of(
    st.tuples(
        st.just("failed"),
        st.sampled_from(POOLS),
        st.sampled_from(
            [LaunchReason.LAUNCH_FAILED, LaunchReason.STOCK_OUT, LaunchReason.REGISTRATION_FAILED]
        ),
        moments,
        st.sampled_from("xy"),
    ),
    st.tuples(
        st.just("out_of_stock"),
        st.sampled_from(POOLS),
        st.sampled_from([(SPOT_A,), (SPOT_A, SPOT_B)]),
        moments,
        st.sampled_from("xy"),
    ),
    st.tuples(st.just("claimed"), st.sampled_from(POOLS), moments),
    st.tuples(st.just("succeeded"), st.sampled_from(POOLS), st.sampled_from([None, SPOT_A]), moments),
)


def told(observations, waiting=None):
    failures = LaunchFailures()
    for pool in POOLS:
        failures.pool_seen(pool, "as it is", 0.0)
    for name, *arguments in observations:
        getattr(failures, name)(*arguments)
    failures.waiting(waiting or {})
    return failures


@settings(max_examples=200)
@given(st.lists(news, max_size=12), st.randoms(use_true_random=False), moments)
def test_order_and_repetition_of_news_change_nothing(observations, random, now):
    again = [*observations, *observations[: len(observations) // 2]]
    random.shuffle(again)

    assert told(observations).current(now) == told(again).current(now)


@pytest.mark.long
@settings(max_examples=200)
@given(st.lists(news, max_size=12), moments)
def test_whatever_failed_counts_again_after_the_interval(observations, now):
    failures = told(observations)

    for failure in failures.current(now):
        assert failure.since <= now < failure.until <= failure.since + 600.0 * 2**4
    assert failures.current(2000.0 + 600.0 * 2**4) == []


@settings(max_examples=100)
@given(st.lists(news, max_size=12), moments)
def test_the_trouble_of_one_pool_is_not_that_of_another(observations, now):
    alone = [observation for observation in observations if observation[1] == "gpu"]

    assert told(observations).of_pool("gpu", now) == told(alone).of_pool("gpu", now)


@settings(max_examples=100)
@given(st.lists(news, max_size=12), moments, moments)
def test_a_success_ends_every_failure_before_it(observations, at, later):
    failures = told([*observations, ("succeeded", "gpu", SPOT_A, at)])
    found = [
        each for each in failures.current(at + later) if each.pool == "gpu" and each.offer in (None, SPOT_A)
    ]

    assert all(each.since > at for each in found)


def turns():
    """By the book: three minutes to deliver, then out for ten minutes, twenty, and so on up to 160."""
    begins = 0.0
    for number in range(100):
        out = min(600.0 * 2**number, 9600.0)
        yield begins, begins + 180.0, begins + 180.0 + out
        begins += 180.0 + out


@settings(max_examples=200)
@given(moments, st.floats(0, 100_000))
def test_pods_that_wait_take_a_pool_out_in_turns_that_double(since, age):
    failures = told([], {"gpu": since})
    number, (_, out, ends) = next(turn for turn in enumerate(turns()) if age < turn[1][2])
    assume(all(abs(age - edge) > 1e-6 * (since + 1) for edge in (out, ends)))  # of floats
    failure = failures.of_pool("gpu", since + age)

    assert (failure is not None) == (age >= out)
    assert failures.probed_pools(since + age) == ({"gpu"} if age < out and number else frozenset())
    assert failures.of_pool("cpu", since + age) is None


def test_three_minutes_of_waiting_without_a_claim():
    failures = told([], {"gpu": 1000.0})

    assert failures.of_pool("gpu", 1179.0) is None
    failure = failures.of_pool("gpu", 1180.0)
    assert failure is not None
    assert (failure.cause, failure.since, failure.until) == (LaunchReason.PODS_WAITING, 1180.0, 1780.0)
    assert failures.of_pool("gpu", 1780.0) is None


def test_a_new_claim_is_a_sign_of_life():
    assert told([("claimed", "gpu", 1100.0)], {"gpu": 1000.0}).of_pool("gpu", 1200.0) is None


def test_pods_that_no_longer_wait_are_no_reason():
    failures = told([], {"gpu": 0.0})
    assert failures.of_pool("gpu", 200.0) is not None

    failures.waiting({})

    assert failures.of_pool("gpu", 200.0) is None


def test_other_limits_or_requirements_are_another_chance():
    failures = told(
        [
            ("failed", "gpu", LaunchReason.LAUNCH_FAILED, 100.0, "quota"),
            ("out_of_stock", "gpu", [SPOT_A], 100.0, "none"),
        ]
    )
    assert len(failures.current(150.0)) == 2

    failures.pool_seen("gpu", "as it is", 200.0)
    assert len(failures.current(210.0)) == 2
    failures.pool_seen("gpu", "larger", 200.0)

    assert failures.current(210.0) == []


def test_an_offering_out_of_stock_leaves_the_pool_counting():
    failures = told([("out_of_stock", "gpu", [SPOT_A, OfferingKey("", "b", "")], 100.0, "none left")])

    assert failures.of_pool("gpu", 110.0) is None
    assert failures.stock_outs(110.0) == (StockOut(None, "b", None), StockOut("m5.large", "a", "spot"))
    assert failures.stock_outs(700.0) == ()


def test_what_lies_in_the_future_is_not_believed_yet():
    """Clocks differ; a claim that fails tomorrow has not failed."""
    assert told([("failed", "gpu", LaunchReason.LAUNCH_FAILED, 900.0, "x")]).of_pool("gpu", 100.0) is None


def test_a_pool_that_is_gone_is_forgotten():
    failures = told([("failed", "gpu", LaunchReason.LAUNCH_FAILED, 100.0, "x")])
    failures.pool_gone("gpu")

    assert failures.current(101.0) == []


@pytest.mark.long
def test_offerings_do_not_pile_up():
    failures = LaunchFailures()
    for number in range(30_000):
        failures.out_of_stock("gpu", [OfferingKey(f"t{number}", "a", "spot")], float(number), "none")

    assert len(failures._offers) <= 20_000
    assert OfferingKey("t29999", "a", "spot") in failures._offers


@pytest.mark.long
@settings(max_examples=200)
@given(st.lists(st.tuples(news, st.integers(0, 900)), max_size=12), st.integers(0, 900))
def test_asking_in_between_changes_no_later_verdict(observations, later):
    """What has run out is forgotten when somebody asks; news of older moments cannot bring it back."""
    now, asked, silent = 0.0, told([]), told([])
    for (name, *arguments), seconds in observations:
        now += seconds
        asked.current(now)
        for failures in (asked, silent):
            getattr(failures, name)(*arguments)
    assert asked.current(now + later) == silent.current(now + later)


def test_after_the_wait_one_is_tried_and_a_failure_doubles_the_wait():
    failures = told([("out_of_stock", "gpu", (SPOT_A,), 100.0, "x")])
    probe = (StockOut(*SPOT_A),)
    assert (failures.stock_outs(699.0), failures.probed_offers(699.0)) == (probe, ())
    assert (failures.stock_outs(700.0), failures.probed_offers(700.0)) == ((), probe)

    failures.out_of_stock("gpu", (SPOT_A,), 710.0, "still none")
    assert (failures.stock_outs(1909.0), failures.probed_offers(1909.0)) == (probe, ())
    assert (failures.stock_outs(1910.0), failures.probed_offers(1910.0)) == ((), probe)

    failures.succeeded("gpu", SPOT_A, 1950.0)
    assert failures.stock_outs(1951.0) == failures.probed_offers(1951.0) == ()


def test_a_success_in_one_zone_opens_what_was_refused_in_any():
    anywhere = OfferingKey("m5.large", "", "spot")
    for news in (
        [("out_of_stock", "gpu", (anywhere,), 100.0, "x"), ("succeeded", "gpu", SPOT_A, 800.0)],
        [("succeeded", "gpu", SPOT_A, 800.0), ("out_of_stock", "gpu", (anywhere,), 100.0, "x")],
    ):
        assert told(news).stock_outs(801.0) == told(news).probed_offers(801.0) == ()


def test_news_of_the_same_refusal_do_not_double_the_wait():
    failures = told([("out_of_stock", "gpu", (SPOT_A,), at, "x") for at in (100.0, 130.0, 160.0)])

    assert failures.stock_outs(759.0) and not failures.stock_outs(760.0)


DAY = 24 * 3600.0


def test_a_pool_is_tried_again_too_and_other_limits_are_a_new_chance():
    failures = told([("failed", "gpu", LaunchReason.LAUNCH_FAILED, 100.0, "x")])

    assert failures.probed_pools(699.0) == frozenset()
    assert failures.probed_pools(700.0) == failures.probed_pools(700.0 + 30 * DAY) == {"gpu"}
    failures.pool_seen("gpu", "limits", 750.0)
    failures.pool_seen("gpu", "other limits", 800.0)
    assert failures.probed_pools(801.0) == frozenset()


def test_a_probe_that_nobody_uses_opens_nothing():
    """Only a success says that there is more than one; a refusal days later is that of a probe, too."""
    failures = told([("out_of_stock", "gpu", (SPOT_A,), 100.0, "x")])
    probe = (StockOut(*SPOT_A),)
    for now in (700.0, 4300.0, 700.0 + DAY, 700.0 + 30 * DAY):
        assert (failures.stock_outs(now), failures.probed_offers(now)) == ((), probe)

    failures.out_of_stock("gpu", (SPOT_A,), 2 * DAY, "still none")
    assert failures.stock_outs(2 * DAY + 1199.0) == probe
    assert failures.probed_offers(2 * DAY + 1200.0) == probe
    failures.succeeded("gpu", SPOT_A, 3 * DAY)
    assert failures.stock_outs(3 * DAY) == failures.probed_offers(3 * DAY) == ()


def test_of_very_many_offerings_the_oldest_refusals_are_forgotten():
    failures = told([])
    for number in range(20_001):
        failures.out_of_stock("gpu", (OfferingKey(f"t{number}", "", ""),), float(number), "x")
    kept = {out.instance_type for out in failures.probed_offers(1e9)}
    assert len(kept) == 10_000 and "t20000" in kept and "t0" not in kept


@pytest.mark.long
@settings(max_examples=200)
@given(st.lists(news, max_size=12), moments)
def test_what_is_probed_is_not_out_at_the_same_time(observations, now):
    failures = told(observations)

    assert not set(failures.stock_outs(now)) & set(failures.probed_offers(now))
    assert not {failure.pool for failure in failures.current(now) if failure.offer is None} & set(
        failures.probed_pools(now)
    )
