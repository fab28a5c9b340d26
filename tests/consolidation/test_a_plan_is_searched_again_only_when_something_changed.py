"""Replanning gives what planning anew gives, and searches only when it must."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster import kinds
from karpool.consolidation.planning.plan_cache import PlanCache
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model.kubernetes.times import rfc3339
from tests.consolidation.built import NOW, BuiltCluster
from tests.consolidation.test_plans_hold_together import SETTINGS, random_cluster

CHOSEN = PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 2))


def two_nodes() -> BuiltCluster:
    cluster = BuiltCluster()
    cluster.pool(disruption={"consolidateAfter": "5m"})
    for name in ("n1", "n2"):
        cluster.node(name)
        cluster.pod(f"on-{name}", name, cpu=100)
    return cluster


def test_time_alone_starts_no_search_and_gives_the_plan_of_its_moment():
    cluster, again = two_nodes(), PlanCache()
    plans = [again.plan(cluster.view(), CHOSEN, NOW + seconds) for seconds in (0, 10, 4000)]
    assert again.searches == 1
    assert plans == [plan_consolidation(cluster.view(), CHOSEN, NOW + seconds) for seconds in (0, 10, 4000)]
    assert plans[0].moves


def test_a_quiet_time_that_ends_is_noticed_at_its_second():
    cluster, again = two_nodes(), PlanCache()
    early = NOW - 86400  # before the nodes were there: they are young
    cluster.pod("new", "n1", cpu=100, start=rfc3339(NOW))
    moments = (NOW, NOW + 299, NOW + 300, NOW + 301, early)
    plans = [again.plan(cluster.view(), CHOSEN, at) for at in moments]
    assert plans == [plan_consolidation(cluster.view(), CHOSEN, at) for at in moments]


def test_every_change_that_a_plan_reads_starts_a_search():
    def dearer(cluster):
        cluster.cluster.market.catalogue.version += 1

    changes = (
        lambda cluster: cluster.node("n3"),
        lambda cluster: cluster.pod("more", "n1", cpu=200),
        lambda cluster: cluster.pod(
            "on-n1", "n1", cpu=100, annotations={"karpenter.sh/do-not-disrupt": "true"}
        ),
        lambda cluster: cluster.pool(disruption={"budgets": [{"nodes": "0"}]}),
        lambda cluster: cluster.gone(kinds.NODES, "", "n2"),
        lambda cluster: cluster.stop(),
        dearer,
    )
    for number, change in enumerate(changes):
        cluster, again = two_nodes(), PlanCache()
        again.plan(cluster.view(), CHOSEN, NOW)
        change(cluster)
        assert again.plan(cluster.view(), CHOSEN, NOW) == plan_consolidation(cluster.view(), CHOSEN, NOW), (
            number
        )
        assert again.searches == 2, number


def test_other_settings_start_a_search():
    cluster, again = two_nodes(), PlanCache()
    for chosen in SETTINGS:
        assert again.plan(cluster.view(), chosen, NOW) == plan_consolidation(cluster.view(), chosen, NOW)
    assert again.searches == len(SETTINGS)


def test_a_plan_that_a_deadline_cut_short_is_not_given_again():
    cluster, again = random_cluster(3), PlanCache()
    hasty = PlanSettings(deadline_seconds=1.0)
    cut = again.plan(cluster.view(), hasty, NOW, elapsed=lambda: 2.0)
    assert cut.not_looked_at
    assert again.plan(cluster.view(), hasty, NOW, elapsed=lambda: 0.0) == plan_consolidation(
        cluster.view(), hasty, NOW
    )


@given(st.integers(0, 10_000))
@settings(max_examples=12)
def test_through_any_life_plans_are_those_that_are_made_anew(seed):
    chance, again = Random(seed), PlanCache()
    cluster, now = random_cluster(seed), NOW
    names = list(cluster.view().snapshot.names)
    for step in range(6):
        match chance.randrange(4):
            case 0:
                now += chance.choice((1.0, 60.0, 3600.0))
            case 1:
                cluster.pod(
                    f"late-{step}", chance.choice(names), cpu=chance.choice((100, 900)), start=rfc3339(now)
                )
            case 2:
                cluster.stop(chance.choice(("true", "false")))
            case _:
                cluster.pool("a", disruption={"budgets": [{"nodes": chance.choice(("0", "1", "50%"))}]})
        view = cluster.view()
        assert again.plan(view, SETTINGS[0], now) == plan_consolidation(view, SETTINGS[0], now)
