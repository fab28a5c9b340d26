"""Arrivals come when and as often as a scenario says, and each workload's are its own."""

from hypothesis import given
from hypothesis import strategies as st

from karpool_fleet.clusters.fleet_file import ClusterSpec
from karpool_fleet.simulation.arrivals import RUN_SECONDS, arrivals
from karpool_fleet.simulation.scenario_file import Scenario, ScenarioChoice, ScenarioWorkload, Wave


def coming(*workloads, seed=1, duration="6h"):
    return arrivals(
        Scenario(seed=seed, duration=duration, clusters=[ClusterSpec(name="a")], workloads=list(workloads))
    )


_EVERY = st.sampled_from(["30s", "exponential(1m)", "uniform(10s, 3m)", "lognormal(2m, 0.5)"])


@given(_EVERY, st.integers(0, 3), st.integers(0, 60), st.integers(1, 4))
def test_they_come_in_order_within_their_window_and_no_more_than_asked(every, start, count, hours):
    workload = ScenarioWorkload(name="w", every=every, start=f"{start}h", count=count, until=f"{start + 1}h")
    found = coming(workload, duration=f"{hours}h")
    times = [each.at for each in found]
    assert times == sorted(times)
    assert len(found) <= count
    assert all(start * 3600 <= at < min(start + 1, hours) * 3600 for at in times)
    assert len({each.object["metadata"]["name"] for each in found}) == len(found)


@given(st.integers(0, 1000))
def test_another_workload_changes_nothing_for_the_first(seed):
    first = ScenarioWorkload(
        name="first", every="exponential(5m)", replicas=[1, 9], lifetime="lognormal(5m, 1)"
    )
    second = ScenarioWorkload(name="second", every="exponential(3m)", cluster="a")
    alone = coming(first, seed=seed)
    both = coming(second, first, seed=seed)
    assert [each for each in both if each.object["metadata"]["name"].startswith("first")] == alone


def test_seeds_differ_and_the_same_seed_does_not():
    workload = ScenarioWorkload(name="w", every="exponential(1m)")
    assert coming(workload, seed=1) == coming(workload, seed=1)
    assert coming(workload, seed=1) != coming(workload, seed=2)


def test_a_wave_has_most_arrivals_at_its_peak():
    wave = Wave(period="24h", low=0.1, peak="12h")
    found = coming(ScenarioWorkload(name="w", every="10s", wave=wave), duration="24h")
    peak = sum(11 * 3600 <= each.at < 13 * 3600 for each in found)
    night = sum(each.at < 3600 or each.at >= 23 * 3600 for each in found)
    assert peak > 5 * night > 0


def test_pods_and_jobs_end_by_themselves_and_deployments_are_ended():
    kinds = {}
    for kind in ("Pod", "Job", "Deployment"):
        [kinds[kind]] = coming(ScenarioWorkload(name="w", kind=kind, count=1, lifetime="10m", start="1m"))
    assert kinds["Deployment"].ends_at == 660
    assert kinds["Pod"].ends_at is None
    assert kinds["Pod"].object["metadata"]["annotations"][RUN_SECONDS] == "600"
    template = kinds["Job"].object["spec"]["template"]
    assert template["metadata"]["annotations"][RUN_SECONDS] == "600"
    assert template["spec"]["restartPolicy"] == "Never"


def test_sizes_are_drawn_by_weight():
    sizes = [ScenarioChoice(requests={"cpu": "1"}, weight=9), ScenarioChoice(requests={"cpu": "2"}, weight=1)]
    found = coming(
        ScenarioWorkload(name="w", kind="Pod", every="10s", sizes=sizes, requests={"memory": "1Gi"})
    )
    requests = [each.object["spec"]["containers"][0]["resources"]["requests"] for each in found]
    small = sum(request["cpu"] == "1" for request in requests)
    assert all(each["memory"] == "1Gi" for each in requests)
    assert 0.85 < small / len(requests) < 0.95
