"""The packing kernel on the synthetic cluster: counting, sets, events, overlays."""

from collections.abc import Callable
from functools import cache
from itertools import count as numbers
from random import Random
from time import perf_counter
from typing import Any

from bench.cluster import GIB, ZONES, cluster, nodes, pods
from bench.timing import timed
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.cluster.snapshot import ClusterFacts, Snapshot
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher, LabelRequirement
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import Toleration
from karpool.packing.counting.count import count
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.fit_reasons import explain_nodes

PLAIN = PodShape((("cpu", 1000), ("memory", 2 * GIB)))
SETS = (
    PodGroup(PodShape((("cpu", 4000), ("memory", 8 * GIB))), 1),
    PodGroup(PodShape((("cpu", 2000), ("memory", 4 * GIB))), 3),
)
WEB = LabelMatcher((LabelRequirement("app", "In", frozenset(("web",))),))


def constrained() -> PodShape:
    """A node selector, an affinity and a toleration."""
    kinds = frozenset(("m6.2xlarge", "m6.8xlarge", "r6.4xlarge"))
    zones = ValueSet(frozenset(ZONES[:2]))
    return PodShape(
        (("cpu", 1000), ("memory", 2 * GIB)),
        node_selector=(("karpenter.sh/capacity-type", "on-demand"), ("kubernetes.io/arch", "amd64")),
        node_terms=(NodeTerm(((ZONE, zones), (INSTANCE_TYPE, ValueSet(kinds)))),),
        tolerations=(Toleration(key="dedicated", operator="Equal", value="batch", effect="NoSchedule"),),
    )


@cache
def state(node_count: int = 5000, pod_count: int = 50_000) -> ClusterRoom:
    return cluster(node_count, pod_count)


def result(
    name: str, values: list[float], target: float | None, unit: str = "ms", **more: Any
) -> dict[str, Any]:
    return {"name": name, "unit": unit, "values": values, "target": target, **more}


def count_plain_5000() -> dict[str, Any]:
    snapshot = state().snapshot()
    return result("count, plain request, 5,000 nodes", timed(lambda: count(snapshot, PLAIN)), 0.3)


def count_plain_20000() -> dict[str, Any]:
    snapshot = state(20_000, 200_000).snapshot()
    return result("count, plain request, 20,000 nodes", timed(lambda: count(snapshot, PLAIN)), 1.0)


def count_constrained_first() -> dict[str, Any]:
    """Each run on nodes that nothing was asked about before."""
    shape, values = constrained(), []
    for _ in range(8):
        snapshot = cluster(pod_count=0).snapshot()
        start = perf_counter()
        count(snapshot, shape)
        values.append((perf_counter() - start) * 1e3)
    return result("count, selector + affinity + toleration, first time", values, 2.0)


def count_constrained_repeated() -> dict[str, Any]:
    snapshot, shape = state().snapshot(), constrained()
    return result(
        "count, selector + affinity + toleration, repeated", timed(lambda: count(snapshot, shape)), 0.3
    )


def count_while_pods_come_and_go() -> dict[str, Any]:
    """A pod event, a snapshot and a count, over and over."""
    busy, shape, number = cluster(), constrained(), numbers()

    def cycle() -> None:
        busy.put_pod(f"default/churn-{next(number) % 50}", PLAIN, f"node-{next(number) % 5000:05}")
        count(busy.snapshot(), shape)

    return result("pod event + snapshot + constrained count", timed(cycle, repeat=100), None)


def count_spread_over_zones() -> dict[str, Any]:
    spread = TopologySpread(1, ZONE, required=True, selector=WEB)
    shape = PodShape(PLAIN.requests, namespace="team-1", labels=(("app", "web"),), spreads=(spread,))
    snapshot = state().snapshot()
    return result("count, zone spread, 5,000 nodes", timed(lambda: count(snapshot, shape)), None)


def count_one_per_host() -> dict[str, Any]:
    apart = AffinityTerm(WEB, HOSTNAME, frozenset(("team-1",)))
    shape = PodShape(PLAIN.requests, namespace="team-1", labels=(("app", "web"),), anti_affinity=(apart,))
    snapshot = state().snapshot()
    return result("count, anti-affinity by host, 5,000 nodes", timed(lambda: count(snapshot, shape)), None)


def component_sets() -> dict[str, Any]:
    snapshot = state().snapshot()
    found = first_fit(snapshot, SETS, bound=9001).sets
    values = timed(lambda: first_fit(snapshot, SETS, bound=9001), repeat=10)
    return result(f"component sets, {found:,} sets, 5,000 nodes", values, 50.0)


def assumed_workloads() -> dict[str, Any]:
    """500 two-component workloads deducted, then counted."""
    random, snapshot = Random(3), state().snapshot()
    workloads = [
        [
            PodGroup(PodShape((("cpu", random.choice((500, 1000, 2000))), ("memory", GIB))), 1),
            PodGroup(
                PodShape((("cpu", random.choice((250, 750))), ("memory", 2 * GIB))), random.randint(1, 5)
            ),
        ]
        for _ in range(500)
    ]
    picture = Snapshot(0, snapshot, ClusterFacts(Aspect.ROOM, {}, {}, Market(), LaunchFailures()))
    values = timed(lambda: count(picture.assume(workloads).room, PLAIN), repeat=10)
    return result("500 assumed workloads deducted, then count", values, None)


def explain_refusals() -> dict[str, Any]:
    snapshot, shape = state().snapshot(), constrained()
    return result(
        "explain, selector + affinity + toleration", timed(lambda: explain_nodes(snapshot, shape)), None
    )


def pod_event() -> dict[str, Any]:
    """A decoded pod, new or moved, applied to the columns."""
    return result("one pod event applied", _events(lambda busy: None), 50.0, "µs")


def pod_event_after_snapshot() -> dict[str, Any]:
    """The worst case: every column it touches was just handed out."""
    values = _events(lambda busy: busy.snapshot())
    return result("one pod event applied, right after a snapshot", values, None, "µs")


def _events(between: Callable[[ClusterRoom], object]) -> list[float]:
    busy = cluster()
    events = [_pod(number) for number in range(400)]
    values = []
    for event in events + events[::-1]:
        between(busy)
        start = perf_counter()
        busy.upsert_pod(event)
        values.append((perf_counter() - start) * 1e6)
    return values


def _pod(number: int) -> Pod:
    container = {
        "name": "app",
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}},
        "ports": [{"containerPort": 8080}],
    }
    raw = {
        "metadata": {
            "name": f"web-{number % 200}",
            "namespace": "team-1",
            "labels": {"app": "web", "pod-template-hash": "5d8c7b9f6"},
        },
        "spec": {
            "nodeName": f"node-{number * 7 % 5000:05}",
            "containers": [container, container],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
        },
        "status": {"phase": "Running"},
    }
    return decode(raw, Pod)


def snapshot_after_pod_event() -> dict[str, Any]:
    busy, number = cluster(), numbers()
    values = []
    for _ in range(100):
        busy.put_pod(f"default/churn-{next(number)}", PLAIN, f"node-{next(number) % 5000:05}")
        start = perf_counter()
        busy.snapshot()
        values.append((perf_counter() - start) * 1e6)
    return result("snapshot after a pod event, 5,000 nodes", values, 100.0, "µs")


def build_state() -> dict[str, Any]:
    hosts = nodes()
    bound = pods(hosts)

    def build() -> None:
        fresh = ClusterRoom()
        for host in hosts:
            fresh.put_node(host)
        for pod in bound:
            fresh.put_pod(pod.key, pod.shape, pod.node)
        fresh.snapshot()

    return result("5,000 nodes and 50,000 pods into columns", timed(build, repeat=3, warm=0), None)


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    return [
        count_plain_5000,
        count_plain_20000,
        count_constrained_first,
        count_constrained_repeated,
        count_while_pods_come_and_go,
        count_spread_over_zones,
        count_one_per_host,
        component_sets,
        assumed_workloads,
        explain_refusals,
        pod_event,
        pod_event_after_snapshot,
        snapshot_after_pod_event,
        build_state,
    ]
