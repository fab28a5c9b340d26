"""Topology constraints as counts: which pods each one counts, and which domains it leaves open.

A `TopologyGroup` counts pods per domain; all shapes with the same constraint share a group. A rule is one
shape's view of a group and returns a mask over the codes of an axis. The semantics are those of
kube-scheduler's filters (plugins podtopologyspread and interpodaffinity); where a new node differs, they are
Karpenter's and marked so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod_shape import AffinityTerm, Pairs, PodShape
from karpool.model.labels import LabelMatcher
from karpool.model.requirements import NodeTerm
from karpool.model.taints import Toleration
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.topology.domains import NOWHERE, DomainCounts, TopologyAxis

SPREAD = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

_NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class EligibleNodes:
    """The nodes that a spread constraint includes. None: the policy ignores affinity or taints."""

    topology_keys: tuple[str, ...]
    node_selector: Pairs = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class PlannedDomains(Protocol):
    """The domains of planned nodes, as spread constraints on existing nodes see them."""

    def joined(self, group: "TopologyGroup") -> Int64s:
        """Return the settled domains of planned nodes that a spread includes; may repeat."""
        ...


_NONE: Int64s = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class TopologyGroup:
    """Pods that are counted together. `present` are the domains of eligible existing nodes."""

    tallies: tuple[DomainCounts, ...]
    selects: Callable[["TopologySubject"], bool]
    eligible: EligibleNodes | None = None
    nodes: Bools | None = None  # eligible existing nodes; None: all
    present: Int64s = field(default_factory=lambda: _NONE)
    possible: Int64s = field(default_factory=lambda: _NONE)  # domains that new nodes could add
    planned: PlannedDomains | None = None

    @property
    def joined(self) -> Int64s:
        """The domains of planned nodes."""
        return _NONE if self.planned is None else self.planned.joined(self)

    def add_on_node(self, row: int, pods: int) -> None:
        if self.nodes is None or self.nodes[row]:
            for tally in self.tallies:
                tally.add(int(tally.axis.codes[row]), pods)

    @property
    def tally(self) -> DomainCounts:
        return self.tallies[0]


@dataclass(slots=True, eq=False)
class TopologySubject:
    """The parts of a pod that other pods' constraints select by, and the groups that count it."""

    namespace: str
    labels: Labels
    namespace_labels: Labels
    counted_by: list[TopologyGroup] = field(default_factory=list)
    kept_away_by: list[TopologyGroup] = field(default_factory=list)


def namespace_labels(namespaces: Mapping[str, Labels], name: str) -> Labels:
    """Return the labels of a namespace; an unknown one still has the label that the API server sets."""
    labels = namespaces.get(name)
    return {_NAME_LABEL: name} if labels is None else labels


def resolved(term: AffinityTerm, owner: PodShape) -> AffinityTerm:
    """Return the term with its implicit namespace, that of its owner, made explicit."""
    if term.namespaces or term.namespace_selector is not None:
        return term
    return replace(term, namespaces=frozenset((owner.namespace,)))


def term_selects(term: AffinityTerm, facet: TopologySubject) -> bool:
    in_scope = facet.namespace in term.namespaces or (
        term.namespace_selector is not None and term.namespace_selector.matches(facet.namespace_labels)
    )
    return in_scope and term.selector.matches(facet.labels)


def spread_selects(selector: LabelMatcher, namespace: str, facet: TopologySubject) -> bool:
    """Whether the selector selects the pod; kube-scheduler counts no pods for an empty selector."""
    return bool(selector.requirements) and facet.namespace == namespace and selector.matches(facet.labels)


Open = tuple[TopologyAxis, Bools]


@dataclass(frozen=True, slots=True, eq=False)
class SpreadRule:
    group: TopologyGroup
    max_skew: int
    min_domains: int
    matches_itself: bool
    counts_itself: bool  # the same unless the selector is empty, which counts no pod
    reason = SPREAD

    @property
    def axis(self) -> TopologyAxis:
        return self.group.tally.axis

    def open_to_nodes(self) -> list[Open]:
        """Return the domains of existing nodes that may take one more pod."""
        group = self.group
        return [(self.axis, self._within(self._least(group.present, group.joined)))]

    def open_to_new(self) -> list[Open]:
        """Return the domains in which a new node may take one more pod.

        Domains that new nodes could open count too. A new host is always possible, so the minimum is 0 for
        host names (karpenter pkg/controllers/provisioning/scheduling/topologygroup.go).
        """
        group = self.group
        if self.axis.key == HOSTNAME:
            return [(self.axis, self._within(0))]
        # The possible domains of new nodes include those of planned nodes.
        return [(self.axis, self._within(self._least(group.present, group.possible)))]

    def _least(self, *domains: Int64s) -> int:
        filled = [codes for codes in domains if len(codes)]
        if not filled:
            return 0
        counts = self.group.tally.counts
        if self.min_domains > 1:
            number = len(filled[0]) if len(filled) == 1 else len(np.unique(np.concatenate(filled)))
            if number < self.min_domains:
                return 0
        return min(int(counts[codes].min()) for codes in filled)

    def _within(self, least: int) -> Bools:
        ok: Bools = self.group.tally.counts <= self.max_skew + least - self.matches_itself
        ok[NOWHERE] = False
        return ok


@dataclass(frozen=True, slots=True, eq=False)
class AffinityRule:
    """All terms of a pod affinity together: only pods that match every term are counted."""

    group: TopologyGroup
    counts_itself: bool
    reason = AFFINITY

    @property
    def may_start(self) -> bool:
        """Whether the pod may be the first: it matches its own terms and there is no other matching pod."""
        return self.counts_itself and not any(tally.counts.any() for tally in self.group.tallies)

    def open_to_nodes(self) -> list[Open]:
        start = self.may_start
        axes: list[Open] = []
        for tally in self.group.tallies:
            ok: Bools = np.ones(tally.axis.size, dtype=np.bool_) if start else tally.counts > 0
            ok[NOWHERE] = False
            axes.append((tally.axis, ok))
        return axes

    open_to_new = open_to_nodes


@dataclass(frozen=True, slots=True, eq=False)
class AntiAffinityRule:
    """Domains without a counted pod are open, and so are nodes without the label."""

    group: TopologyGroup
    counts_itself: bool
    reason: str = ANTI_AFFINITY

    @property
    def axis(self) -> TopologyAxis:
        return self.group.tally.axis

    def open_to_nodes(self) -> list[Open]:
        return [(self.axis, self.group.tally.counts <= 0)]

    open_to_new = open_to_nodes


Rule = SpreadRule | AffinityRule | AntiAffinityRule
