"""kube-scheduler's topology filters in plain loops: one pod, one node, every other pod looked at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape, TopologySpread
from karpool.model.labels import LabelMatcher
from karpool.model.taints import untolerated
from karpool.packing.tables.node_table import NodeRow


def label_selector_matches(selector: LabelMatcher, labels: Mapping[str, str]) -> bool:
    """As the API defines the operators, and not by asking the selector."""
    return all(
        {
            "In": labels.get(each.key) in each.values,
            "NotIn": labels.get(each.key) not in each.values,
            "Exists": each.key in labels,
            "DoesNotExist": each.key not in labels,
        }[each.operator]
        for each in selector.requirements
    )


@dataclass
class NaiveCluster:
    nodes: list[NodeRow]
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: list[tuple[PodShape, int]] = field(default_factory=list)

    def allows(self, shape: PodShape, row: int) -> bool:
        return (
            all(self.spread_allows(shape, spread, row) for spread in shape.spreads if spread.required)
            and self.affinity_allows(shape, row)
            and self.anti_affinity_allows(shape, row)
            and self.others_allow(shape, row)
        )

    def spread_allows(self, shape: PodShape, spread: TopologySpread, row: int) -> bool:
        key = spread.topology_key
        if key not in self.nodes[row].labels:
            return False
        counts = self.spread_counts(shape, spread)
        least = min(counts.values(), default=0)
        if len(counts) < spread.min_domains:
            least = 0
        itself = 1 if label_selector_matches(spread.selector, dict(shape.labels)) else 0
        return counts.get(self.nodes[row].labels[key], 0) + itself - least <= spread.max_skew

    def spread_counts(self, shape: PodShape, spread: TopologySpread) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row, node in enumerate(self.nodes):
            if not self.is_eligible(shape, spread, node):
                continue
            value = node.labels[spread.topology_key]
            counts.setdefault(value, 0)
            for other, place in self.pods:
                if place == row and other.namespace == shape.namespace and spread.selector.requirements:
                    counts[value] += label_selector_matches(spread.selector, dict(other.labels))
        return counts

    def is_eligible(self, shape: PodShape, spread: TopologySpread, node: NodeRow) -> bool:
        if any(each.topology_key not in node.labels for each in shape.spreads if each.required):
            return False
        if spread.honour_node_affinity and not node_matches(shape, node):
            return False
        return not (spread.honour_taints and untolerated(node.taints, shape.tolerations))

    def affinity_allows(self, shape: PodShape, row: int) -> bool:
        terms, node = shape.affinity, self.nodes[row]
        if any(term.topology_key not in node.labels for term in terms):
            return False
        friends = [
            place for other, place in self.pods if all(self.selects(term, shape, other) for term in terms)
        ]
        near = all(
            any(
                self.nodes[place].labels.get(term.topology_key) == node.labels[term.topology_key]
                for place in friends
            )
            for term in terms
        )
        if near:
            return True
        anywhere = any(term.topology_key in self.nodes[place].labels for term in terms for place in friends)
        return not anywhere and all(self.selects(term, shape, shape) for term in terms)

    def anti_affinity_allows(self, shape: PodShape, row: int) -> bool:
        return not any(
            self.selects(term, shape, other) and self.same_domain(term.topology_key, row, place)
            for term in shape.anti_affinity
            for other, place in self.pods
        )

    def others_allow(self, shape: PodShape, row: int) -> bool:
        return not any(
            self.selects(term, other, shape) and self.same_domain(term.topology_key, row, place)
            for other, place in self.pods
            for term in other.anti_affinity
        )

    def same_domain(self, key: str, row: int, other: int) -> bool:
        here, there = self.nodes[row].labels.get(key), self.nodes[other].labels.get(key)
        return here is not None and here == there

    def selects(self, term: AffinityTerm, owner: PodShape, other: PodShape) -> bool:
        names = term.namespaces
        if not names and term.namespace_selector is None:
            names = frozenset((owner.namespace,))
        labels = self.namespaces.get(other.namespace, {"kubernetes.io/metadata.name": other.namespace})
        in_scope = other.namespace in names or (
            term.namespace_selector is not None and label_selector_matches(term.namespace_selector, labels)
        )
        return in_scope and label_selector_matches(term.selector, dict(other.labels))


def node_matches(shape: PodShape, node: NodeRow) -> bool:
    if any(node.labels.get(key) != value for key, value in shape.node_selector):
        return False
    if shape.node_terms is None:
        return True
    return any(
        all(wanted.admits(node.labels.get(key)) for key, wanted in term.labels) for term in shape.node_terms
    )


def one_by_one(
    cluster: NaiveCluster, shape: PodShape, room: list[int], order: list[int], limit: int | None = None
) -> list[int]:
    """Place pods of a shape, each on the first node in order that takes it, until none does."""
    taken = [0] * len(room)
    while limit is None or sum(taken) < limit:
        for row in order:
            if taken[row] < room[row] and cluster.allows(shape, row):
                break
        else:
            return taken
        cluster.pods.append((shape, row))
        taken[row] += 1
    return taken
