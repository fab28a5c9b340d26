"""Whether topology allows pods on one new node, without packing the whole cluster.

A new node is a host of its own, so rules about hosts concern only the pods that share it. Rules about zones
count the pods of each zone and leave some zones open. Other rules (affinity between pods of one host, other
keys) are not evaluated here: the result is None, and the caller uses the full packer. The result is
conservative: it opens no zone that kube-scheduler would close.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.packing.topology.constraints import AffinityRule, AntiAffinityRule, SpreadRule, TopologyGroup
from karpool.packing.topology.domains import NOWHERE
from karpool.packing.topology.topology import ShapeRules


@dataclass(frozen=True, slots=True)
class OpenZones:
    """The zones that topology leaves open; None: all zones."""

    zones: frozenset[str] | None

    def both(self, other: "OpenZones") -> "OpenZones":
        if self.zones is None or other.zones is None:
            return other if self.zones is None else self
        return OpenZones(self.zones & other.zones)


def host_takes(pods: Mapping[ShapeRules, int]) -> bool | None:
    """Whether these pods may share a new host; None: not evaluated here."""
    counted, owned = _counts(pods)
    for rules in pods:
        for rule in rules.all:
            if isinstance(rule, AffinityRule):
                if any(tally.axis.key != ZONE for tally in rule.group.tallies):
                    return None
                continue
            if rule.axis.key == ZONE:
                continue
            if rule.axis.key != HOSTNAME:
                return None
            number = (
                owned[id(rule.group)] if rule.group in rules.facet.kept_away_by else counted[id(rule.group)]
            )
            most = rule.max_skew if isinstance(rule, SpreadRule) else int(rule.counts_itself)
            if number > most:
                return False
    return True


def open_zones(pods: Mapping[ShapeRules, int]) -> OpenZones:
    """Return the zones in which new nodes may take all of these pods, by the current counts."""
    counted, owned = _counts(pods)
    zones = OpenZones(None)
    for rules in pods:
        for rule in rules.all:
            if isinstance(rule, AffinityRule):
                for tally in rule.group.tallies:
                    zones = zones.both(_named(rule.group, np.flatnonzero(tally.counts > 0).tolist()))
            elif rule.axis.key == ZONE:
                is_owned = rule.group in rules.facet.kept_away_by
                number = owned[id(rule.group)] if is_owned else counted[id(rule.group)]
                zones = zones.both(_named(rule.group, _codes(rule, number)))
    return zones


def _codes(rule: SpreadRule | AntiAffinityRule, number: int) -> Iterable[int]:
    """Return the domains that this many more pods may go to."""
    counts, group = rule.group.tally.counts, rule.group
    if isinstance(rule, AntiAffinityRule):
        if number > int(rule.counts_itself):
            return ()
        codes: list[int] = np.flatnonzero(counts <= 0).tolist()
        return codes
    present = group.present
    if not len(present):
        return ()
    least = int(counts[present].min()) if len(present) >= rule.min_domains else 0
    open_codes: list[int] = present[counts[present] + number <= rule.max_skew + least].tolist()
    return open_codes


def _named(group: TopologyGroup, codes: Iterable[int]) -> OpenZones:
    values = group.tally.axis.values
    return OpenZones(frozenset(values[code] for code in codes if code != NOWHERE))


def _counts(pods: Mapping[ShapeRules, int]) -> tuple[Counter[int], Counter[int]]:
    """Return by group how many of these pods it counts, and how many have it as their own anti-affinity."""
    counted: Counter[int] = Counter()
    owned: Counter[int] = Counter()
    for rules, number in pods.items():
        for group in rules.facet.counted_by:
            counted[id(group)] += number
        for group in rules.repels:
            owned[id(group)] += number
    return counted, owned
