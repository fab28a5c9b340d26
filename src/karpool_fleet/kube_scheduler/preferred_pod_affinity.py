"""Preferred pod affinity: scores of nodes from the pods on them, in both directions.

A pod's own preferred terms count the pods they select; the preferred terms of running pods, and their
required affinity with weight 1, count for a pod that they select. Totals are kept per topology domain and
updated with each placement.
"""

from collections.abc import Iterator

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.columns import Int32s, Int64s
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import TopologySubject, namespace_labels, resolved, term_selects

_REQUIRED_WEIGHT = 1  # upstream's hardPodAffinityWeight


def attracts(shape: PodShape) -> bool:
    """Whether pods of this shape may change the score of another pod."""
    return bool(shape.preferred_affinity or shape.preferred_anti_affinity or shape.affinity)


class PreferredPodAffinity:
    """The score of all pods for one shape."""

    def __init__(self, snapshot: Room, shape: PodShape) -> None:
        self._snapshot = snapshot
        self._shape = shape
        self._facet = self._facet_of(shape)
        # By identity; keeps a reference to the shape.
        self._pulls: dict[int, tuple[PodShape, dict[str, int]]] = {}
        self._domains: dict[str, tuple[Int32s, Int64s]] = {}  # key: domain of each node, score of each domain
        self._count_bound()

    def add(self, other: PodShape, row: int) -> None:
        for key, weight in self._pull_of(other).items():
            codes, totals = self._domain(key)
            if codes[row] >= 0:
                totals[codes[row]] += weight

    def raw(self) -> Int64s | None:
        """Return the score of each node; None if no pod affects it."""
        total: Int64s | None = None
        for codes, totals in self._domains.values():
            here = np.where(codes >= 0, totals[codes], 0)
            total = here if total is None else total + here
        return total

    def _count_bound(self) -> None:
        bound, shapes = self._snapshot.bound, self._snapshot.shapes
        weights: dict[str, Int64s] = {}
        for number in np.unique(bound.shape).tolist():
            for key, weight in self._pull_of(shapes[number]).items():
                weights.setdefault(key, np.zeros(len(shapes), dtype=np.int64))[number] = weight
        for key, by_shape in weights.items():
            codes, totals = self._domain(key)
            pulls = by_shape[bound.shape] * bound.count
            placed = codes[bound.node]
            pulling = (placed >= 0) & (pulls != 0)
            np.add.at(totals, placed[pulling], pulls[pulling])

    def _domain(self, key: str) -> tuple[Int32s, Int64s]:
        domains = self._domains.get(key)
        if domains is None:
            label = self._snapshot.label(key)
            domains = self._domains[key] = (label.codes, np.zeros(len(label.values) + 1, dtype=np.int64))
        return domains

    def _pull_of(self, other: PodShape) -> dict[str, int]:
        remembered = self._pulls.get(id(other))
        if remembered is None:
            pulls: dict[str, int] = {}
            for key, weight in self._terms_between(other):
                pulls[key] = pulls.get(key, 0) + weight
            remembered = self._pulls[id(other)] = (other, pulls)
        return remembered[1]

    def _terms_between(self, other: PodShape) -> Iterator[tuple[str, int]]:
        theirs = self._facet_of(other)
        for owner, seen in ((self._shape, theirs), (other, self._facet)):
            for weighted in owner.preferred_affinity:
                if term_selects(resolved(weighted.term, owner), seen):
                    yield weighted.term.topology_key, weighted.weight
            for weighted in owner.preferred_anti_affinity:
                if term_selects(resolved(weighted.term, owner), seen):
                    yield weighted.term.topology_key, -weighted.weight
        for term in other.affinity:
            if term_selects(resolved(term, other), self._facet):
                yield term.topology_key, _REQUIRED_WEIGHT

    def _facet_of(self, shape: PodShape) -> TopologySubject:
        return TopologySubject(
            shape.namespace,
            dict(shape.labels),
            namespace_labels(self._snapshot.namespaces, shape.namespace),
        )
