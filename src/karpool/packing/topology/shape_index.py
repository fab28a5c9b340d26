"""Finds the few shapes and constraints, among thousands, that can select each other.

Nearly every selector names a label value that its pods must have. Shapes and anti-affinity terms are
therefore indexed by label, and only candidates are tested. The index of a shape table lives as long as the
table and grows with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.pod_shape import AffinityTerm
from karpool.model.labels import LabelMatcher
from karpool.packing.tables.shape_table import ShapeTable
from karpool.packing.topology.constraints import resolved

Pair = tuple[str, str]
Hints = tuple[Pair, ...] | None
T = TypeVar("T")


def hints(selectors: Iterable[LabelMatcher]) -> Hints:
    """Return label pairs of which every selected pod has one; None if any pod may be selected."""
    best: Hints = None
    for selector in selectors:
        for requirement in selector.requirements:
            if requirement.operator == "In" and (best is None or len(requirement.values) < len(best)):
                best = tuple((requirement.key, value) for value in sorted(requirement.values))
    return best


class LabelIndex(Generic[T]):
    """Items that concern pods with certain labels."""

    def __init__(self) -> None:
        self._by_pair: dict[Pair, list[T]] = defaultdict(list)
        self._rest: list[T] = []

    def add(self, where: Hints, item: T) -> None:
        if where is None:
            self._rest.append(item)
        else:
            for pair in where:
                self._by_pair[pair].append(item)

    def concerning(self, labels: Labels) -> Iterator[T]:
        yield from self._rest
        for pair in labels.items():
            yield from self._by_pair.get(pair, ())


class ShapeIndex:
    def __init__(self) -> None:
        self._size = 0
        self._by_pair: dict[Pair, list[int]] = defaultdict(list)
        self._owners: dict[AffinityTerm, list[int]] = {}
        self._terms: LabelIndex[AffinityTerm] = LabelIndex()
        self._lock = Lock()

    def catch_up(self, shapes: ShapeTable) -> None:
        with self._lock:
            for number in range(self._size, len(shapes)):
                self._add(number, shapes)
            self._size = len(shapes)

    def _add(self, number: int, shapes: ShapeTable) -> None:
        shape = shapes[number]
        for pair in shape.labels:
            self._by_pair[pair].append(number)
        for term in dict.fromkeys(resolved(affinity_term, shape) for affinity_term in shape.anti_affinity):
            if term not in self._owners:
                self._owners[term] = []
                self._terms.add(hints((term.selector,)), term)
            self._owners[term].append(number)

    def candidates(self, where: Hints) -> Iterable[int]:
        """Return the shapes that a selector with these hints may select."""
        if where is None:
            return range(self._size)
        return [number for pair in where for number in self._by_pair.get(pair, ())]

    def owners(self, term: AffinityTerm) -> list[int]:
        """Return the shapes that have this term as a required anti-affinity."""
        return self._owners.get(term, [])

    def repelling(self, labels: Labels) -> Iterator[AffinityTerm]:
        """Return the anti-affinity terms that may select a pod with these labels."""
        return self._terms.concerning(labels)


_INDEXES: "WeakKeyDictionary[ShapeTable, ShapeIndex]" = WeakKeyDictionary()


def index_of(shapes: ShapeTable) -> ShapeIndex:
    index = _INDEXES.get(shapes)
    if index is None:
        index = _INDEXES.setdefault(shapes, ShapeIndex())
    index.catch_up(shapes)
    return index
