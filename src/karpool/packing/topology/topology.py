"""Topology spread and inter-pod affinity over the nodes of one snapshot.

`allowed` answers as kube-scheduler's filters would, for the snapshot plus the pods placed through `place`
since. Everything is computed on demand: a shape without constraints that no anti-affinity selects costs a
lookup.

Cost of `allowed`: a few vector operations over nodes and domains per constraint, independent of the number of
pods. Many replicas at once are in `counting.spread_replicas`; planned nodes use `place_planned` and the
rules' `open_to_new`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.pod_shape import AffinityTerm, Pairs, PodShape, TopologySpread
from karpool.packing.feasibility import matches_selector, matches_terms, tolerates
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import (
    EXISTING_ANTI_AFFINITY,
    SPREAD,
    SPREAD_LABEL,
    AffinityRule,
    AntiAffinityRule,
    EligibleNodes,
    Open,
    PlannedDomains,
    Rule,
    SpreadRule,
    TopologyGroup,
    TopologySubject,
    namespace_labels,
    resolved,
    spread_selects,
    term_selects,
)
from karpool.packing.topology.domains import NOWHERE, DomainCounts, TopologyAxis
from karpool.packing.topology.shape_index import Hints, LabelIndex, Pair, ShapeIndex, hints, index_of

# After this many constraints, bound pods are sorted by shape, which takes as long as ten scans.
_FEW = 10


@dataclass(slots=True, eq=False)
class ShapeRules:
    """The compiled constraints of one shape: what restricts it, and which pods it restricts."""

    shape: PodShape
    facet: TopologySubject
    own: tuple[Rule, ...]
    repels: tuple[TopologyGroup, ...]  # its own anti-affinity, as it applies to other pods

    @property
    def all(self) -> Iterable[Rule]:
        yield from self.own
        for group in self.facet.kept_away_by:
            yield AntiAffinityRule(group, group in self.repels, EXISTING_ANTI_AFFINITY)


@dataclass(frozen=True, slots=True, eq=False)
class TopologyMark:
    """The pod counts by domain of every group, and the number of placed pods."""

    counts: list[Int64s]
    placed: int


class Topology:
    def __init__(self, snapshot: Room, planned: PlannedDomains | None = None) -> None:
        self.snapshot = snapshot
        self.planned = planned
        self.axes: dict[str, TopologyAxis] = {}
        self._groups: dict[Hashable, TopologyGroup] = {}  # count the selected pods
        self._repelling: dict[AffinityTerm, TopologyGroup] = {}  # count the pods that own the term
        self._counting: LabelIndex[TopologyGroup] = LabelIndex()
        self._keeping_away: LabelIndex[tuple[AffinityTerm, TopologyGroup]] = LabelIndex()
        self._facets: dict[Hashable, TopologySubject] = {}
        self._facets_by_pair: dict[Pair, list[TopologySubject]] = {}
        self._rules: dict[PodShape, ShapeRules] = {}
        self._by_identity: dict[int, ShapeRules] = {}
        self._placed: list[tuple[ShapeRules, int, int]] = []
        self._by_shape: tuple[Int64s, Int64s] | None = None

    def allowed(self, shape: PodShape) -> Bools | None:
        """Return the nodes that topology leaves open to one more pod of this shape; None: all nodes."""
        mask: Bools | None = None
        for axis, ok in self.open_to_nodes(shape):
            here: Bools = ok[axis.codes]
            mask = here if mask is None else np.logical_and(mask, here, out=mask)
        return mask

    def open_to_nodes(self, shape: PodShape) -> list[Open]:
        return [axis for rule in self.rules(shape).all for axis in rule.open_to_nodes()]

    def refusals(self, shape: PodShape) -> list[tuple[str, Bools]]:
        """Return the reason of each constraint, worded as in kube-scheduler, and the nodes it rules out."""
        refusals: list[tuple[str, Bools]] = []
        for rule in self.rules(shape).all:
            for axis, ok in rule.open_to_nodes():
                closed = ~ok[axis.codes]
                if rule.reason == SPREAD:
                    lacking = axis.codes == NOWHERE
                    refusals += [(SPREAD_LABEL, lacking), (SPREAD, closed & ~lacking)]
                else:
                    refusals.append((rule.reason, closed))
        return [(reason, nodes) for reason, nodes in refusals if nodes.any()]

    def place(self, shape: PodShape, row: int, pods: int = 1) -> None:
        """Count pods of this shape on a node from now on; a negative number removes them."""
        rules = self.rules(shape)
        self.shift(rules, row, pods)
        self._placed.append((rules, row, pods))

    def shift(self, rules: ShapeRules, row: int, pods: int) -> None:
        """Like `place`, but without a record: every later shape must have been compiled before."""
        for group in (*rules.facet.counted_by, *rules.repels):
            group.add_on_node(row, pods)

    def place_planned(
        self,
        rules: ShapeRules,
        code: Callable[[TopologyAxis], int],
        counts: Callable[[TopologyGroup], bool],
        pods: int = 1,
    ) -> None:
        """Count pods on a planned node. Every later shape must have been compiled before."""
        for group in (*rules.facet.counted_by, *rules.repels):
            if group.eligible is None or counts(group):
                for tally in group.tallies:
                    tally.add(code(tally.axis), pods)

    def save(self) -> "TopologyMark":
        """Return the current counts, for `restore`. Every later shape must have been compiled before."""
        tallies = [tally for group in self._all_groups() for tally in group.tallies]
        return TopologyMark([tally.counts.copy() for tally in tallies], len(self._placed))

    def restore(self, mark: "TopologyMark") -> None:
        tallies = [tally for group in self._all_groups() for tally in group.tallies]
        for tally, counts in zip(tallies, mark.counts, strict=True):
            tally.put(counts)
        del self._placed[mark.placed :]

    def _all_groups(self) -> Iterable[TopologyGroup]:
        return (*self._groups.values(), *self._repelling.values())

    def rules(self, shape: PodShape) -> ShapeRules:
        rules = self._by_identity.get(id(shape))
        if rules is None or rules.shape is not shape:
            rules = self._rules.get(shape)
            if rules is None:
                rules = self._rules[shape] = self._compile(shape)
            else:
                # Equal shapes are not always the same object, so cache this one too.
                rules = ShapeRules(shape, rules.facet, rules.own, rules.repels)
            self._by_identity[id(shape)] = rules
        return rules

    def spread_groups(self) -> Iterable[TopologyGroup]:
        return (group for group in self._groups.values() if group.eligible is not None)

    def axis(self, key: str) -> TopologyAxis:
        axis = self.axes.get(key)
        if axis is None:
            label = self.snapshot.label(key)
            axis = self.axes[key] = TopologyAxis(key, label.codes.astype(np.int64), label.values)
        return axis

    def _compile(self, shape: PodShape) -> ShapeRules:
        facet = self._facet(shape.namespace, shape.labels)
        required = [spread for spread in shape.spreads if spread.required]
        keys = tuple(sorted({spread.topology_key for spread in required}))
        own: list[Rule] = [self._spread(spread, shape, keys, facet) for spread in required]
        if shape.affinity:
            own.append(self._affinity(shape, facet))
        for term in shape.anti_affinity:
            whole = resolved(term, shape)
            own.append(AntiAffinityRule(self._selected_by(whole), term_selects(whole, facet)))
        repels = tuple(self._owned(resolved(term, shape)) for term in dict.fromkeys(shape.anti_affinity))
        return ShapeRules(shape, facet, tuple(own), repels)

    def _facet(self, namespace: str, labels: Pairs) -> TopologySubject:
        subject = self._facets.get((namespace, labels))
        if subject is None:
            in_namespace = namespace_labels(self.snapshot.namespaces, namespace)
            subject = self._facets[namespace, labels] = TopologySubject(namespace, dict(labels), in_namespace)
            for pair in labels:
                self._facets_by_pair.setdefault(pair, []).append(subject)
            for group in self._counting.concerning(subject.labels):
                if group.selects(subject):
                    subject.counted_by.append(group)
            for term, group in self._keeping_away.concerning(subject.labels):
                if term_selects(term, subject):
                    subject.kept_away_by.append(group)
            for term in self._index().repelling(subject.labels):
                if term_selects(term, subject):
                    self._owned(term)
        return subject

    def _concerned(self, where: Hints) -> Iterable[TopologySubject]:
        if where is None:
            return self._facets.values()
        return [facet for pair in where for facet in self._facets_by_pair.get(pair, ())]

    def _spread(
        self, spread: TopologySpread, shape: PodShape, keys: tuple[str, ...], facet: TopologySubject
    ) -> SpreadRule:
        eligible = EligibleNodes(
            keys,
            shape.node_selector if spread.honour_node_affinity else (),
            shape.node_terms if spread.honour_node_affinity else None,
            shape.tolerations if spread.honour_taints else None,
        )
        key = ("spread", shape.namespace, spread.selector, spread.topology_key, eligible)
        group = self._groups.get(key)
        if group is None:
            selector, namespace = spread.selector, shape.namespace
            group = TopologyGroup(
                (DomainCounts(self.axis(spread.topology_key)),),
                lambda other: spread_selects(selector, namespace, other),
                eligible,
                self._eligible_nodes(eligible),
                planned=self.planned,
            )
            codes = group.tally.axis.codes if group.nodes is None else group.tally.axis.codes[group.nodes]
            group.present = np.unique(codes[codes != NOWHERE])
            self._add(key, group, hints((selector,)))
        return SpreadRule(
            group,
            spread.max_skew,
            spread.min_domains,
            matches_itself=spread.selector.matches(facet.labels),
            counts_itself=group.selects(facet),
        )

    def _eligible_nodes(self, eligible: EligibleNodes) -> Bools | None:
        """Return the eligible nodes; None if all are."""
        mask = np.ones(self.snapshot.n, dtype=np.bool_)
        for key in eligible.topology_keys:
            mask &= self.axis(key).codes != NOWHERE
        nodes = self.snapshot.nodes
        mask &= matches_selector(nodes, eligible.node_selector)
        if eligible.node_terms is not None:
            mask &= matches_terms(nodes, eligible.node_terms)
        if eligible.tolerations is not None:
            mask &= tolerates(nodes, eligible.tolerations)
        return None if mask.all() else mask

    def _affinity(self, shape: PodShape, facet: TopologySubject) -> AffinityRule:
        terms = tuple(resolved(term, shape) for term in shape.affinity)
        key = ("affinity", frozenset(terms))
        group = self._groups.get(key)
        if group is None:
            axes = dict.fromkeys(self.axis(term.topology_key) for term in terms)
            group = TopologyGroup(
                tuple(DomainCounts(axis) for axis in axes),
                lambda other: all(term_selects(term, other) for term in terms),
            )
            self._add(key, group, hints(term.selector for term in terms))
        return AffinityRule(group, group.selects(facet))

    def _selected_by(self, term: AffinityTerm) -> TopologyGroup:
        """Return the group of pods that an anti-affinity term selects."""
        key = ("anti-affinity", term)
        group = self._groups.get(key)
        if group is None:
            tally = DomainCounts(self.axis(term.topology_key))
            group = TopologyGroup((tally,), lambda other: term_selects(term, other))
            self._add(key, group, hints((term.selector,)))
        return group

    def _owned(self, term: AffinityTerm) -> TopologyGroup:
        """Return the group of pods that have this term as their anti-affinity."""
        group = self._repelling.get(term)
        if group is None:
            group = TopologyGroup((DomainCounts(self.axis(term.topology_key)),), lambda other: False)
            self._count_bound(group, self._index().owners(term))
            for rules, row, pods in self._placed:
                if any(
                    resolved(affinity_term, rules.shape) == term
                    for affinity_term in rules.shape.anti_affinity
                ):
                    group.add_on_node(row, pods)
            self._repelling[term] = group
            where = hints((term.selector,))
            self._keeping_away.add(where, (term, group))
            for facet in self._concerned(where):
                if term_selects(term, facet):
                    facet.kept_away_by.append(group)
        return group

    def _add(self, key: Hashable, group: TopologyGroup, where: Hints) -> None:
        """Add a group: count the bound pods and those placed so far, and register it for later pods."""
        shapes, namespaces = self.snapshot.shapes, self.snapshot.namespaces
        candidates = self._index().candidates(where)
        chosen = [number for number in candidates if group.selects(_outside(shapes[number], namespaces))]
        self._count_bound(group, chosen)
        for rules, row, pods in self._placed:
            if group.selects(rules.facet):
                group.add_on_node(row, pods)
        self._groups[key] = group
        self._counting.add(where, group)
        for facet in self._concerned(where):
            if group.selects(facet):
                facet.counted_by.append(group)

    def _index(self) -> ShapeIndex:
        """Return the index of all shapes. Reading the bound pods first gives promised pods their numbers."""
        _ = self.snapshot.bound
        return index_of(self.snapshot.shapes)

    def _count_bound(self, group: TopologyGroup, shapes: Sequence[int]) -> None:
        if not shapes:
            return
        bound, entries = self.snapshot.bound, self._bound_as(shapes)
        rows, pods = bound.node[entries], bound.count[entries]
        if group.nodes is not None:
            counted = group.nodes[rows]
            rows, pods = rows[counted], pods[counted]
        for tally in group.tallies:
            axis = tally.axis
            counts = np.bincount(axis.codes[rows], weights=pods, minlength=axis.size)
            counts[NOWHERE] = 0
            tally.counts[:] += counts.astype(np.int64)

    def _bound_as(self, shapes: Sequence[int]) -> Int64s:
        """Return the entries of the bound pods with one of these shapes."""
        bound = self.snapshot.bound
        if len(self._groups) + len(self._repelling) < _FEW:
            chosen = np.zeros(len(self.snapshot.shapes), dtype=np.bool_)
            chosen[shapes] = True
            return np.flatnonzero(chosen[bound.shape])
        if self._by_shape is None:
            order = np.argsort(bound.shape, kind="stable")
            edges = np.arange(len(self.snapshot.shapes) + 1)
            self._by_shape = order, np.searchsorted(bound.shape[order], edges)
        order, starts = self._by_shape
        return np.concatenate([order[starts[number] : starts[number + 1]] for number in shapes])


def _outside(shape: PodShape, namespaces: Mapping[str, Labels]) -> TopologySubject:
    """Return a shape as the constraints of other pods see it."""
    return TopologySubject(shape.namespace, dict(shape.labels), namespace_labels(namespaces, shape.namespace))
