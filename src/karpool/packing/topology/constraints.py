"""Topology constraints as tallies: which pods each one counts, and which domains it leaves open.

A `TopologyGroup` counts pods per domain; groups are shared by all shapes that ask
the same question. A rule is one shape's view of a group, and answers with a mask
over the codes of an axis. The words, and every corner, are kube-scheduler's
filters (plugins podtopologyspread and interpodaffinity); the places where a new
node differs are Karpenter's, and marked so.
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
    """Which nodes a spread constraint looks at. None: that policy ignores the matter."""

    topology_keys: tuple[str, ...]
    node_selector: Pairs = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class PlannedDomains(Protocol):
    """Nodes that do not exist yet, as far as spreading over existing ones has to know of them."""

    def joined(self, group: "TopologyGroup") -> Int64s:
        """The codes of planned nodes that a spread looks at and whose domain is settled; may repeat."""
        ...


_NONE: Int64s = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class TopologyGroup:
    """Pods counted together. `present` are the domains that eligible existing nodes form."""

    tallies: tuple[DomainCounts, ...]
    selects: Callable[["TopologySubject"], bool]
    eligible: EligibleNodes | None = None
    nodes: Bools | None = None  # eligible existing nodes; None: all
    present: Int64s = field(default_factory=lambda: _NONE)
    possible: Int64s = field(default_factory=lambda: _NONE)  # what new nodes could add
    planned: PlannedDomains | None = None

    @property
    def joined(self) -> Int64s:
        """The domains that planned nodes form."""
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
    """What other pods' constraints see of a pod, and the groups that it matters to."""

    namespace: str
    labels: Labels
    namespace_labels: Labels
    counted_by: list[TopologyGroup] = field(default_factory=list)
    kept_away_by: list[TopologyGroup] = field(default_factory=list)


def namespace_labels(namespaces: Mapping[str, Labels], name: str) -> Labels:
    """An unknown namespace still has the label that the API server gives to each."""
    labels = namespaces.get(name)
    return {_NAME_LABEL: name} if labels is None else labels


def resolved(term: AffinityTerm, owner: PodShape) -> AffinityTerm:
    """The term without its silent reference to the owner's namespace."""
    if term.namespaces or term.namespace_selector is not None:
        return term
    return replace(term, namespaces=frozenset((owner.namespace,)))


def term_selects(term: AffinityTerm, facet: TopologySubject) -> bool:
    in_scope = facet.namespace in term.namespaces or (
        term.namespace_selector is not None and term.namespace_selector.matches(facet.namespace_labels)
    )
    return in_scope and term.selector.matches(facet.labels)


def spread_selects(selector: LabelMatcher, namespace: str, facet: TopologySubject) -> bool:
    """kube-scheduler counts no pods at all for an empty selector."""
    return bool(selector.requirements) and facet.namespace == namespace and selector.matches(facet.labels)


Open = tuple[TopologyAxis, Bools]


@dataclass(frozen=True, slots=True, eq=False)
class SpreadRule:
    group: TopologyGroup
    max_skew: int
    min_domains: int
    matches_itself: bool
    counts_itself: bool  # the same, but for an empty selector, which counts no pod
    reason = SPREAD

    @property
    def axis(self) -> TopologyAxis:
        return self.group.tally.axis

    def open_to_nodes(self) -> list[Open]:
        """Domains of existing nodes that may take one more pod."""
        group = self.group
        return [(self.axis, self._within(self._least(group.present, group.joined)))]

    def open_to_new(self) -> list[Open]:
        """Domains that a new node may take one more pod in.

        Domains that new nodes could open count too. A new host can always be had, so
        the least is 0 for host names (karpenter pkg/controllers/provisioning/scheduling/topologygroup.go).
        """
        group = self.group
        if self.axis.key == HOSTNAME:
            return [(self.axis, self._within(0))]
        # Where planned nodes are is among what new ones could form.
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
    """All terms of a pod affinity at once: only pods that match every term count for any."""

    group: TopologyGroup
    counts_itself: bool
    reason = AFFINITY

    @property
    def may_start(self) -> bool:
        """A pod that matches its own terms may be the first, as long as there is no other."""
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
