"""Chooses the topology domain of a planned node, as far as a pod on it requires.

A pod may rule out some of the domains that a planned node could still be in. If a constraint counts the pod
there, the node must be settled in one domain: the one with the fewest counted pods, then the cheapest, then
the first by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.launchable import Amounts, LaunchablePool
from karpool.packing.new_nodes.narrowing import UNREACHABLE, NarrowedNode, Narrowing
from karpool.packing.new_nodes.pod_ask import PodAsk
from karpool.packing.tables.columns import Bools
from karpool.packing.topology.constraints import AffinityRule, SpreadRule
from karpool.packing.topology.domains import NOWHERE, TopologyAxis

Opens = dict[TopologyAxis, Bools]
Fit = tuple[NarrowedNode, Bools]


def open_domains(ask: PodAsk) -> Opens:
    """Return by axis the domains that topology leaves open to a pod on a new node."""
    opens: Opens = {}
    for rule in ask.rules.all:
        for axis, ok in rule.open_to_new():
            opens[axis] = opens[axis] & ok if axis in opens else ok
    return opens


def may_be_alone(ask: PodAsk) -> bool:
    """Whether the pod may go to a host without other pods."""
    return not any(
        isinstance(rule, AffinityRule)
        and not rule.may_start
        and any(tally.axis.key == HOSTNAME for tally in rule.group.tallies)
        for rule in ask.rules.own
    )


@dataclass(frozen=True, slots=True)
class NodeTrial:
    """One pod on one node: all requests that the node must hold, and the types still allowed."""

    ask: PodAsk
    opens: Opens
    need: Amounts
    within: Bools | None


class DomainChooser:
    def __init__(self, narrowing: Narrowing, launch: Sequence[LaunchablePool]) -> None:
        self.narrowing = narrowing
        self._launch = launch

    def settle(self, state: NarrowedNode, trial: NodeTrial) -> Fit | None:
        """Return the state with its domains settled as needed, and the types that fit; None if none fits."""
        return self._settle(state, trial, trial.ask.axes_asked())

    def _settle(self, state: NarrowedNode, trial: NodeTrial, axes: list[TopologyAxis]) -> Fit | None:
        for position, axis in enumerate(axes):
            ok = trial.opens.get(axis)
            settled = int(self.narrowing.settled(axis)[state.number])
            if settled >= 0:
                if ok is not None and not (settled < len(ok) and ok[settled]):
                    return None
                continue
            domains = self.narrowing.domains(axis)[state.number]
            codes = np.flatnonzero(domains if ok is None else domains[: len(ok)] & ok).tolist()
            if axis in trial.ask.must_settle():
                options = [[code] for code in self._by_preference(state, axis, codes, trial)]
            elif len(codes) < int(domains.sum()):
                options = [codes]
            else:
                continue
            return self._first(state, axis, options, trial, axes[position + 1 :])
        types = self._launch[state.pool].fitting(state, trial.need, trial.within)
        return None if types is None else (state, types)

    def _first(
        self,
        state: NarrowedNode,
        axis: TopologyAxis,
        options: list[list[int]],
        trial: NodeTrial,
        rest: list[TopologyAxis],
    ) -> Fit | None:
        for codes in options:
            if not codes:
                continue
            want = {axis.key: ValueSet(frozenset(axis.values[code] for code in codes if code != NOWHERE))}
            number = self.narrowing.step(state.number, self.narrowing.want(want))
            if number == UNREACHABLE:
                continue
            settled = self._settle(self.narrowing.states[number], trial, rest)
            if settled is not None:
                return settled
        return None

    def _by_preference(
        self, state: NarrowedNode, axis: TopologyAxis, codes: list[int], trial: NodeTrial
    ) -> list[int]:
        if len(codes) < 2:
            return codes
        types = self._launch[state.pool].fitting(state, trial.need, trial.within)
        if types is None:
            return []
        tallies = [
            rule.group.tally.counts
            for rule in trial.ask.rules.own
            if isinstance(rule, SpreadRule) and rule.axis is axis
        ]
        price = _prices(state, axis, types)
        return sorted(
            codes,
            key=lambda code: (
                *(int(counts[code]) for counts in tallies),
                price.get(axis.values[code], 0.0),
                axis.values[code],
            ),
        )


def _prices(state: NarrowedNode, axis: TopologyAxis, types: Bools) -> dict[str, float]:
    """Return the cheapest known price by zone or capacity type; empty for other axes."""
    offer = state.offer
    if axis.key == ZONE:
        return dict(zip(offer.zones, state.prices()[types].min(axis=(0, 2)).tolist(), strict=True))
    if axis.key == CAPACITY_TYPE:
        return dict(zip(offer.capacity_types, state.prices()[types].min(axis=(0, 1)).tolist(), strict=True))
    return {}
