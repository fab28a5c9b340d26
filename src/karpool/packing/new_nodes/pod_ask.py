"""What a pending pod requires of a new node, compiled once per shape.

Preferences are treated as Karpenter treats them: as requirements, until they cannot be met. `relaxations`
yields the pod as it is tried, strictest first. Each step drops one preference, in Karpenter's order: the
heaviest preferred pod affinity, preferred anti-affinity, preferred node affinity, one `ScheduleAnyway`
spread, and last the avoidance of `PreferNoSchedule`. (karpenter
pkg/controllers/provisioning/scheduling/preferences.go)
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np

from karpool.model.devices.request import DeviceDemand
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.resources import CPU, MEMORY, PODS
from karpool.model.taints import PREFER_NO_SCHEDULE, Taint, untolerated
from karpool.packing.new_nodes.claim_templates import ClaimDemand, claim_demand
from karpool.packing.new_nodes.narrowing import Narrowing, Wants, alternatives, merged, term_requirements
from karpool.packing.new_nodes.offerings import TOO_MUCH
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.topology.constraints import SpreadRule
from karpool.packing.topology.domains import TopologyAxis
from karpool.packing.topology.topology import ShapeRules, Topology


@dataclass(frozen=True, slots=True)
class RelaxedPod:
    """A pod with some of its preferences made requirements."""

    shape: PodShape
    node_term: NodeTerm | None = None
    avoids_soft_taints: bool = False


def relaxations(shape: PodShape, *, respect: bool, soft_taints: bool) -> Iterator[RelaxedPod]:
    """Yield the pod with fewer preferences at each step; the last attempt has none.

    `soft_taints`: whether any pool has a `PreferNoSchedule` taint.
    """
    required = tuple(spread for spread in shape.spreads if spread.required)
    if respect:
        together = [
            weighted_term.term
            for weighted_term in sorted(shape.preferred_affinity, key=lambda preference: -preference.weight)
        ]
        apart = [
            term.term
            for term in sorted(shape.preferred_anti_affinity, key=lambda preference: -preference.weight)
        ]
        nodes = [
            node.term for node in sorted(shape.preferred_nodes, key=lambda preference: -preference.weight)
        ]
        soft = [replace(spread, required=True) for spread in shape.spreads if not spread.required]
        steps: list[list[Any]] = [together, apart, nodes, soft]
        while any(steps):
            yield RelaxedPod(
                replace(
                    shape,
                    affinity=shape.affinity + tuple(together),
                    anti_affinity=shape.anti_affinity + tuple(apart),
                    spreads=required + tuple(soft),
                ),
                nodes[0] if nodes else None,
                soft_taints,
            )
            next(step for step in steps if step).pop(0)
    plain = shape if len(required) == len(shape.spreads) else replace(shape, spreads=required)
    if respect and soft_taints:
        yield RelaxedPod(plain, avoids_soft_taints=True)
    yield RelaxedPod(plain)


# Limits the combinations of volumes with a choice of zones; real pods have one or two such volumes.
_VOLUME_COMBINATIONS = 64


@dataclass(slots=True, eq=False)
class PodAsk:
    """One attempt at placing a pod.

    `choices` are tried in order, each on all nodes before the next; within one choice, each node takes the
    first want that it can meet.
    """

    shape: PodShape  # the shape with some preferences made requirements
    whole: PodShape  # the shape as it will run
    attempt: RelaxedPod
    requests: Int64s
    amounts: tuple[tuple[int, int], ...]  # the same as `requests`, sparse: resource number and units
    choices: tuple[Wants, ...]
    tolerated: Bools  # by pool
    tolerates_all: bool
    rules: ShapeRules
    ports: frozenset[HostPort]
    demands: tuple[DeviceDemand | ClaimDemand, ...] = ()
    settles: frozenset[TopologyAxis] | None = None
    axes: list[TopologyAxis] | None = None

    def must_settle(self) -> frozenset[TopologyAxis]:
        """Return the axes on which a planned node must be settled before this pod can be counted there.

        Only complete once every pending shape has been compiled.
        """
        if self.settles is None:
            groups = (*self.rules.facet.counted_by, *self.rules.repels)
            axes = {tally.axis for group in groups for tally in group.tallies}
            axes |= {rule.axis for rule in self.rules.own if isinstance(rule, SpreadRule)}
            self.settles = frozenset(axes)
        return self.settles

    def axes_asked(self) -> list[TopologyAxis]:
        """Return by key the axes that the pod restricts, host names aside; complete as `must_settle` is."""
        if self.axes is None:
            axes = {axis for rule in self.rules.all for axis, _ in rule.open_to_new()} | self.must_settle()
            self.axes = sorted((axis for axis in axes if axis.key != HOSTNAME), key=lambda axis: axis.key)
        return self.axes


class PodAskCompiler:
    """Compiles shapes. `resources` numbers the columns; `offered` are resources of device classes."""

    def __init__(
        self,
        narrowing: Narrowing,
        topology: Topology,
        resources: Sequence[str],
        *,
        respect: bool,
        offered: Collection[str] = (),
    ) -> None:
        self._narrowing = narrowing
        self._topology = topology
        self._number = {name: index for index, name in enumerate(resources)}
        self._respect = respect
        self._offered = offered
        self._taints = [offer.pool.taints for offer in narrowing.pools]
        self._soft = any(taint.effect == PREFER_NO_SCHEDULE for taints in self._taints for taint in taints)
        self._known: dict[PodShape, tuple[PodAsk, ...]] = {}

    def asks(self, shape: PodShape) -> tuple[PodAsk, ...]:
        """Return the attempts, strictest first; the last is the pod without preferences."""
        asks = self._known.get(shape)
        if asks is None:
            attempts = relaxations(shape, respect=self._respect, soft_taints=self._soft)
            asks = self._known[shape] = tuple(self._ask(shape, attempt) for attempt in attempts)
        return asks

    def _ask(self, whole: PodShape, attempt: RelaxedPod) -> PodAsk:
        shape = attempt.shape
        tolerated = [refusing_taint(taints, attempt) is None for taints in self._taints]
        requests = np.zeros(len(self._number), dtype=np.int64)
        requests[self._number[PODS]] = 1
        for name, units in shape.requests:
            requests[self._number[name]] = min(units, TOO_MUCH)
        # A preference restricts only its own pod; only requirements keep other pods away.
        rules = self._topology.rules(shape)
        rules = replace(rules, repels=self._topology.rules(whole).repels)
        claims = claim_demand(shape, self._offered)
        demands = (shape.devices, claims)
        return PodAsk(
            shape,
            whole,
            attempt,
            requests,
            tuple((index, units) for index, units in enumerate(requests.tolist()) if units),
            tuple(self._choices(attempt)),
            np.array(tolerated, dtype=np.bool_),
            all(tolerated),
            rules,
            shape.host_ports,
            tuple(demand for demand in demands if demand is not None),
        )

    def _choices(self, attempt: RelaxedPod) -> Iterable[Wants]:
        shape = attempt.shape
        places = list(volume_places(shape))
        for asked in alternatives(dict(shape.node_selector), shape.node_terms):
            preferred = term_requirements(attempt.node_term) if attempt.node_term is not None else {}
            if preferred is None:
                continue
            combined = (merged((asked, preferred, place)) for place in places)
            wants = tuple(
                self._narrowing.want(requirements) for requirements in combined if requirements is not None
            )
            if wants:
                yield wants


def refusing_taint(taints: Iterable[Taint], attempt: RelaxedPod) -> Taint | None:
    taints = tuple(taints)
    refusing = untolerated(taints, attempt.shape.tolerations)
    if refusing is None and attempt.avoids_soft_taints:
        for taint in taints:
            if not any(toleration.tolerates(taint) for toleration in attempt.shape.tolerations):
                return taint
    return refusing


def volume_places(shape: PodShape) -> Iterable[dict[str, ValueSet]]:
    """Return every combination of places from which all volumes of the pod can be reached."""
    for combination in islice(product(*shape.volume_terms), _VOLUME_COMBINATIONS):
        asked = [term_requirements(term) for term in combination]
        whole = (
            None
            if None in asked
            else merged(requirements for requirements in asked if requirements is not None)
        )
        if whole is not None:
            yield whole


def resource_names(shapes: Iterable[PodShape]) -> list[str]:
    """Return the columns for all requested resources, the common ones first."""
    asked = {name for shape in shapes for name, _ in shape.requests}
    usual = (CPU, MEMORY, PODS)
    return [*usual, *sorted(asked - set(usual))]
