"""Fitting pods on nodes the slow and obvious way: dictionaries and nested loops.

Nothing here shares code with the kernel but the model's values. Topology is in
`naive_topology`.
"""

from dataclasses import dataclass, field

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm
from karpool.packing.tables.node_table import NodeRow


@dataclass
class NaiveNode:
    name: str
    labels: dict
    taints: list
    free: dict  # includes "pods"
    ports: list = field(default_factory=list)


def naive_nodes(rows: list[NodeRow], pods: list[tuple[str, PodShape]] = ()) -> list[NaiveNode]:
    """Nodes with the room that is left beside their pods (node name, shape)."""
    nodes = []
    for row in rows:
        here = [shape for name, shape in pods if name == row.name]
        free = {}
        for resource in row.allocatable:
            if resource == "pods":
                used = len(here)
            else:
                used = sum(dict(shape.requests).get(resource, 0) for shape in here)
            free[resource] = max(row.allocatable[resource] - used, 0)
        ports = [port for shape in here for port in shape.host_ports]
        nodes.append(NaiveNode(row.name, dict(row.labels), list(row.taints), free, ports))
    return nodes


def term_matches(term: NodeTerm, node: NaiveNode) -> bool:
    labels_fit = all(wanted.admits(node.labels.get(key)) for key, wanted in term.labels)
    return labels_fit and all(
        wanted.admits(node.name if key == "metadata.name" else "") for key, wanted in term.fields
    )


def tolerated(taint, tolerations) -> bool:
    for toleration in tolerations:
        if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
            continue
        if toleration.operator == "Exists":
            return True
        if toleration.operator in ("", "Equal") and toleration.value == taint.value:
            return True
    return False


def ports_clash(one, other) -> bool:
    same = one[1:] == other[1:]
    return same and (one[0] == other[0] or one[0] == "0.0.0.0" or other[0] == "0.0.0.0")


def admits(node: NaiveNode, shape: PodShape) -> bool:
    for key, value in shape.node_selector:
        if node.labels.get(key) != value:
            return False
    if shape.node_terms is not None and not any(term_matches(term, node) for term in shape.node_terms):
        return False
    for alternatives in shape.volume_terms:
        if not any(term_matches(term, node) for term in alternatives):
            return False
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not tolerated(taint, shape.tolerations):
            return False
    return not any(ports_clash(held, wanted) for held in node.ports for wanted in shape.host_ports)


def has_room(node: NaiveNode, shape: PodShape) -> bool:
    if node.free.get("pods", 0) < 1:
        return False
    return all(node.free.get(resource, 0) >= units for resource, units in shape.requests)


def put(node: NaiveNode, shape: PodShape) -> None:
    node.free["pods"] -= 1
    for resource, units in shape.requests:
        node.free[resource] -= units
    node.ports.extend(shape.host_ports)


def place_one(nodes: list[NaiveNode], shape: PodShape) -> str | None:
    for node in nodes:
        if admits(node, shape) and has_room(node, shape):
            put(node, shape)
            return node.name
    return None


def naive_count(nodes: list[NaiveNode], shape: PodShape, limit: int = 10_000) -> int:
    placed = 0
    while placed < limit and place_one(nodes, shape):
        placed += 1
    return placed


def naive_sets(nodes: list[NaiveNode], components: list[tuple[PodShape, int]], bound: int) -> int:
    """Pod by pod; the last, failing set stays half placed."""
    for done in range(bound):
        for shape, replicas in components:
            for _ in range(replicas):
                if place_one(nodes, shape) is None:
                    return done
    return bound


def best_sets(nodes: list[NaiveNode], components: list[tuple[PodShape, int]], bound: int) -> int:
    """The most sets that any placement reaches, by trying them all."""
    best = 0
    for wanted in range(1, bound + 1):
        pods = [shape for shape, replicas in components for _ in range(replicas * wanted)]
        if not _all_fit(nodes, pods):
            return best
        best = wanted
    return best


def _all_fit(nodes: list[NaiveNode], pods: list[PodShape]) -> bool:
    if not pods:
        return True
    shape, rest = pods[0], pods[1:]
    for node in nodes:
        if admits(node, shape) and has_room(node, shape):
            kept = dict(node.free), list(node.ports)
            put(node, shape)
            fits = _all_fit(nodes, rest)
            node.free, node.ports = kept
            if fits:
                return True
    return False
