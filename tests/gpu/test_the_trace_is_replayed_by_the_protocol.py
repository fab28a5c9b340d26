"""The openb replay of the benchmarks, on a small trace of our own making."""

import csv
import gzip

import pytest
from bench import gpu, openb, openb_policies
from bench.__main__ import measured

NODES = [("a", 16_000, 65_536, 4, "G2"), ("b", 64_000, 65_536, 4, "T4"), ("c", 32_000, 65_536, 8, "G2")]
PODS = [
    *((4_000, 4_096, 1, 1000, "") for _ in range(6)),
    *((2_000, 2_048, 1, 470, "") for _ in range(8)),
    *((2_000, 2_048, 1, 810, "") for _ in range(4)),
    *((3_000, 2_048, 1, 1000, "T4") for _ in range(2)),
    *((8_000, 2_048, 0, 0, "") for _ in range(2)),
    (8_000, 8_192, 2, 1000, ""),
]


@pytest.fixture
def trace(tmp_path, monkeypatch):
    def write(name, header, rows):
        with gzip.open(tmp_path / name, "wt", newline="") as lines:
            csv.writer(lines).writerows([header, *rows])

    write("nodes_gpu_node.csv.gz", ["sn", "cpu_milli", "memory_mib", "gpu", "model"], NODES)
    write(
        "pods_default.csv.gz",
        ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"],
        [(f"pod-{number:02}", *pod) for number, pod in enumerate(PODS)],
    )
    write(
        "fgd_expected_alloc.csv.gz",
        ["workload", "sc_policy", "seed", "100"],
        [
            ("openb_pod_list_default", f"0{place}-{name}", 42, 90)
            for place, name in enumerate(gpu.openb_policies.NAMES)
        ],
    )
    monkeypatch.setenv("KARPOOL_OPENB", str(tmp_path))
    monkeypatch.setenv("KARPOOL_OPENB_SEEDS", "1")
    for cached in (openb.nodes, openb.pods, openb.published):
        cached.cache_clear()
    yield
    for cached in (openb.nodes, openb.pods, openb.published):
        cached.cache_clear()


def clusters():
    yield from (openb_policies.BY_NAME[name]("default", 42) for name in openb_policies.NAMES)
    yield gpu.Karpool("default")


@pytest.mark.usefixtures("trace")
def test_every_policy_places_what_fits_and_nothing_more():
    for cluster in clusters():
        arriving = openb.arrivals("default", 42)
        placed = [pod for pod in arriving if cluster.place(pod)]

        gpus, cpu = cluster.free_gpus(), cluster.free_cpu()
        assert gpus[gpus >= 0].sum() == openb.nodes().total_milli - sum(pod.asked for pod in placed)
        assert cpu.sum() == sum(row[1] for row in NODES) - sum(pod.cpu_milli for pod in placed)
        assert cpu.min() >= 0
        assert ((gpus >= 0) == (openb_policies.Random("default", 1).gpus >= 0)[:, : gpus.shape[1]]).all()
        assert 0 < len(placed) < len(arriving)


@pytest.mark.usefixtures("trace")
def test_arrivals_are_topped_up_to_130_percent_and_depend_on_the_seed_only():
    arriving = openb.arrivals("default", 7)

    assert arriving == openb.arrivals("default", 7)
    assert arriving != openb.arrivals("default", 8)
    assert 1.2 * 16_000 < sum(pod.asked for pod in arriving) <= 1.3 * 16_000


@pytest.mark.usefixtures("trace")
def test_our_measure_of_what_is_lost_is_that_of_the_trace():
    cluster = gpu.Karpool("default")
    for pod in openb.arrivals("default", 42):
        cluster.place(pod)
        worth = cluster.strategy.score(cluster.allocator.table)
        published = openb.Fragments(openb.usual("default"))
        expected = published.lost(cluster.free_cpu(), cluster.free_gpus(), openb.np.arange(len(NODES)))
        assert worth.node_lost[: len(NODES)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("trace")
def test_ours_is_no_worse_than_packing_on_the_small_trace():
    ours = openb.replay("default", 42, gpu.Karpool("default"))
    packing = openb.replay("default", 42, openb_policies.GpuPacking("default", 42))

    assert ours.allocated_percent >= packing.allocated_percent
    assert 0 <= ours.fragmented_percent <= 100 - ours.allocated_percent + 1


def test_without_the_trace_the_benchmark_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("KARPOOL_OPENB", str(tmp_path))

    results = list(measured("gpu", ["openb_trace"]))

    assert len(results) == 1
    assert "set KARPOOL_OPENB" in results[0]["error"]
