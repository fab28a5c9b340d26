"""A full plan: every candidate tried with destinations and scored, nothing capped.

One cluster for every size, from one seed: Karpenter pools general (half), batch and
spot, nodes of m6i, c6i and r6i in three zones, pods of 300 workloads (one in five spread over
zones or hosts, or kept apart from its like), Balanced with k = 2, budgets of 10 %, the
shipped catalogue with every type of the families c, m and r. Once with room (35 to 95 %
of each node asked for), where most nodes could go and budgets decide; once packed (80 to
99 %), where nearly every node is also tried with new nodes, alone and with others.

The view (pods joined to nodes, prices) is made from objects once, and measured by itself;
a plan starts from a view. Each run makes a new view, so that nothing is remembered.
"""

import resource
from random import Random
from time import perf_counter
from typing import Any

from karpool.cluster import kinds
from karpool.cluster.changes import ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.market.market import Market
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, ClusterView, view_of
from karpool.model.catalogue.files import load_shipped
from karpool.model.karpenter.objects import ON_DEMAND, SPOT, NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import ARCH, HOSTNAME, INSTANCE_TYPE, OS, ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339

NOW = 1_800_000_000.0
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
SIZES = {4: "xlarge", 8: "2xlarge", 16: "4xlarge", 32: "8xlarge"}
ROOMY = (0.35, 0.95)
PACKED = (0.8, 0.99)
MIXED = (0.2, 0.99)
WORKLOADS = 300
SEED = 11
SETTINGS = PlanSettings(override=PolicyOverride(PolicyName.BALANCED, 2))


POOLS = {"general": ON_DEMAND, "batch": ON_DEMAND, "spot": SPOT}


def pool(name: str) -> NodePool:
    kind = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [POOLS[name]]}
    family = {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]}
    taints = [{"key": "batch", "effect": "NoSchedule"}] if name == "batch" else []
    raw = {
        "metadata": {"name": name},
        "spec": {
            "template": {"spec": {"requirements": [kind, family], "taints": taints}},
            "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "10%"}]},
        },
    }
    return decode(raw, NodePool)


def workload(number: int, chance: Random) -> dict[str, Any]:
    labels = {"app": f"app-{number}"}
    milli = chance.choice((50, 100, 200, 250, 500, 500, 1000, 2000))
    mib = int(milli * chance.choice((1, 2, 4, 4, 8)) * 1.024)
    where = chance.choice(("general", "general", "general", "batch", "spot"))
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": f"{milli}m", "memory": f"{mib}Mi"}}}],
        "nodeSelector": {"karpenter.sh/nodepool": where},
        "tolerations": [{"key": "batch", "operator": "Exists"}] if where == "batch" else [],
    }
    selector = {"matchLabels": labels}
    kind = number % 15
    if kind == 0:
        spread = {
            "maxSkew": 5,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        }
        spec["topologySpreadConstraints"] = [spread]
    elif kind == 1:
        spread = {
            "maxSkew": 3,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        }
        spec["topologySpreadConstraints"] = [spread]
    elif kind == 2:
        term = {"labelSelector": selector, "topologyKey": HOSTNAME}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"labels": labels, "spec": spec, "where": where, "milli": milli, "mib": mib, "kind": kind}


class BuiltCluster:
    """Objects as informers deliver them."""

    def __init__(
        self, node_count: int, pod_count: int, use: tuple[float, float] = ROOMY, seed: int = SEED
    ) -> None:
        chance = Random(seed)
        self._use = use
        self._template_of: dict[str, dict[str, Any]] = {}
        self._made = 0
        self.catalogue = load_shipped("us-east-1")
        self.cluster = Cluster(ASPECTS, market=Market(self.catalogue))
        for name in POOLS:
            self._tell(kinds.NODEPOOLS, ObjectKey("", name), pool(name))
        self._templates = [workload(number, chance) for number in range(WORKLOADS)]
        by_pool = {
            name: [template for template in self._templates if template["where"] == name] for name in POOLS
        }
        per_node, numbers = pod_count / node_count, 0
        for number in range(node_count):
            where = chance.choice(("general", "general", "batch", "spot"))
            kind = self._kind(chance, per_node)
            self._node(f"node-{number:05}", where, kind, ZONES[number % 3])
            numbers = self._fill(f"node-{number:05}", kind, by_pool[where], numbers, per_node, chance)
        self.pods = numbers

    def _kind(self, chance: Random, per_node: float) -> str:
        small = {ROOMY: (4, 8, 8, 16), PACKED: (4, 4, 4, 8), MIXED: (4, 8, 16, 32)}[self._use]
        if self._use is MIXED:
            return f"{chance.choice('mmcr')}6i.{SIZES[chance.choice(small)]}"
        sizes = small if per_node <= 12 else tuple(2 * size for size in small)
        return f"{chance.choice('mmcr')}6i.{SIZES[chance.choice(sizes)]}"

    def _node(self, name: str, where: str, kind: str, zone: str) -> None:
        each = self.catalogue.types[kind]
        labels = {
            HOSTNAME: name,
            INSTANCE_TYPE: kind,
            ZONE: zone,
            ARCH: "amd64",
            OS: "linux",
            "karpenter.sh/nodepool": where,
            "karpenter.sh/capacity-type": POOLS[where],
            "karpenter.sh/initialized": "true",
        }
        taints = [{"key": "batch", "effect": "NoSchedule"}] if where == "batch" else []
        amounts = {
            "cpu": f"{each.allocatable['cpu']}m",
            "memory": str(each.allocatable["memory"]),
            "pods": "110",
        }
        raw = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": f"bench:///{name}", "taints": taints},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self._tell(kinds.NODES, ObjectKey("", name), decode(raw, Node))
        since = rfc3339(NOW - 7200)
        conditions = ("Launched", "Registered", "Initialized", "Consolidatable")
        claim = {
            "metadata": {"name": f"c-{name}", "uid": f"u-{name}", "labels": labels},
            "status": {
                "providerID": f"bench:///{name}",
                "conditions": [
                    {"type": kind, "status": "True", "lastTransitionTime": since} for kind in conditions
                ],
            },
        }
        self._tell(kinds.NODECLAIMS, ObjectKey("", f"c-{name}"), decode(claim, NodeClaim))

    def _fill(  # noqa: PLR0917 - one call
        self,
        node: str,
        kind: str,
        templates: list[dict[str, Any]],
        number: int,
        per_node: float,
        chance: Random,
    ) -> int:
        """Pods up to the node's own share of use, about as many per node as asked for."""
        each = self.catalogue.types[kind].allocatable
        use = chance.uniform(*self._use)
        cpu, memory = each["cpu"] * use, each["memory"] * use / 2**20
        apart: set[int] = set()
        for _ in range(round(per_node * (chance.uniform(0.9, 1.75) if self._use is ROOMY else 2))):
            one = chance.choice(templates)
            for _ in range(12):  # something that still fits
                if one["milli"] <= cpu and one["mib"] <= memory and id(one) not in apart:
                    break
                one = chance.choice(templates)
            else:
                break
            cpu, memory = cpu - one["milli"], memory - one["mib"]
            if one["kind"] in (1, 2):
                apart.add(id(one))
            self._pod(f"pod-{number}", node, one)
            number += 1
        return number

    def _pod(self, name: str, node: str, one: dict[str, Any]) -> None:
        self._template_of[name] = one
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r"}
        raw = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "labels": one["labels"],
                "ownerReferences": [owner],
            },
            "spec": {**one["spec"], "nodeName": node},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        }
        self._tell(kinds.PODS, ObjectKey("team", name), decode(raw, Pod))

    def _tell(self, kind: ClusterKind, key: ObjectKey, found: Any) -> None:
        self.cluster.apply(kind, [ObjectChange("ADDED", key, found)], NOW)

    def make(self, plan: ConsolidationPlan) -> None:
        """What the plan says has happened."""
        for move in plan.moves:
            names = []
            for new in move.new_nodes:
                name = f"new-{self._made:05}"
                self._made += 1
                self._node(name, new.pool, new.chosen.instance_type, new.chosen.zone)
                names.append(name)
            for pod in move.pods:
                node = pod.node or (names[pod.new_node] if pod.new_node is not None else "")
                name = pod.pod.partition("/")[2]
                self._pod(name, node, self._template_of[name])
            for gone in move.nodes:
                self.end_node(gone.name)

    def end_node(self, name: str) -> None:
        for kind, key in ((kinds.NODES, name), (kinds.NODECLAIMS, f"c-{name}")):
            self.cluster.apply(kind, [ObjectChange("DELETED", ObjectKey("", key), None)], NOW)

    def move_elsewhere(
        self, name: str, by_pool: dict[str, list[str]], free: dict[str, list[int]], chance: Random
    ) -> None:
        """A pod ends, and another of its workload runs on some node of its pool that has room."""
        template = self._template_of[name]
        asked = template["milli"], template["mib"] << 20
        for _ in range(50):
            node = chance.choice(by_pool[template["where"]])
            if all(have >= need for have, need in zip(free[node], asked, strict=True)):
                break
        else:
            return
        free[node] = [have - need for have, need in zip(free[node], asked, strict=True)]
        del self._template_of[name]
        self.cluster.apply(kinds.PODS, [ObjectChange("DELETED", ObjectKey("team", name), None)], NOW)
        self._pod(f"{name}x", node, template)

    def view(self) -> ClusterView:
        return view_of(self.cluster.snapshot(NOW), NOW)


def _planned(
    node_count: int,
    pod_count: int,
    target: float | None,
    repeat: int,
    use: tuple[float, float] = ROOMY,
) -> dict[str, Any]:
    cluster = BuiltCluster(node_count, pod_count, use)
    values, moves, kind = [], 0, "roomy" if use is ROOMY else "packed"
    for _ in range(repeat):
        view = cluster.view()
        start = perf_counter()
        plan = plan_consolidation(view, SETTINGS, NOW)
        values.append(perf_counter() - start)
        moves = len(plan.moves)
    name = f"plan: {node_count:,} nodes, {cluster.pods:,} pods, {kind} ({moves} moves)"
    return {"name": name, "unit": "s", "values": values, "target": target}


def plan_1000() -> dict[str, Any]:
    return _planned(1000, 10_300, 1.0, 5)


def plan_5000() -> dict[str, Any]:
    return _planned(5000, 50_000, 8.0, 3)


def plan_10000() -> dict[str, Any]:
    return _planned(10_000, 300_000, 40.0, 3)


def plan_1000_packed() -> dict[str, Any]:
    return _planned(1000, 10_000, 1.0, 3, PACKED)


def plan_5000_packed() -> dict[str, Any]:
    return _planned(5000, 50_000, 8.0, 3, PACKED)


def plan_10000_packed() -> dict[str, Any]:
    return _planned(10_000, 200_000, 40.0, 1, PACKED)


def view_5000() -> dict[str, Any]:
    cluster = BuiltCluster(5000, 50_000)
    values = []
    for _ in range(3):
        start = perf_counter()
        cluster.view()
        values.append(perf_counter() - start)
    return {"name": "view: 5,000 nodes, 50,000 pods", "unit": "s", "values": values, "target": None}


def plan_memory() -> dict[str, Any]:
    """Of the whole process after planning for 5,000 nodes, objects included."""
    _planned(5000, 50_000, 8.0, 1)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"name": "plan: peak memory, 5,000 nodes", "unit": "MiB", "values": [used], "target": 1024.0}


def benchmarks() -> list[Any]:
    return [
        plan_1000,
        plan_1000_packed,
        view_5000,
        plan_5000,
        plan_5000_packed,
        plan_memory,
        plan_10000,
        plan_10000_packed,
    ]
