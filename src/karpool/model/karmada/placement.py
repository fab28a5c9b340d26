"""Placements: where a policy allows a workload to run, and how its replicas are divided.

`read_placement` checks what Karmada's webhook checks, so that a placement that bypassed it is refused with
the bad field. Matchers are compiled once per distinct placement.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from karpool.model.errors import Invalid
from karpool.model.karmada.affinity import AffinitySubject, ClusterAffinity, Matcher, matcher
from karpool.model.kubernetes.meta import Int64, Wire, decode
from karpool.model.taints import Toleration


class ReplicaStrategy(StrEnum):
    DUPLICATED = "Duplicated"
    STATIC = "StaticWeight"
    DYNAMIC = "DynamicWeight"
    AGGREGATED = "Aggregated"
    UNSUPPORTED = "Unsupported"  # any other value

    @classmethod
    def _missing_(cls, value: object) -> "ReplicaStrategy":
        return cls.UNSUPPORTED


_BY_ROOM = (ReplicaStrategy.DYNAMIC, ReplicaStrategy.AGGREGATED)
# Limits of the lists of a placement; far above what a person writes.
ENTRIES_MAX = 10_000
WEIGHT_MAX = 2**31 - 1
TIER_NONE = 1000  # the tier of a cluster that no affinity of the group matches

FIELDS = ("cluster", "region", "zone", "provider")


class _Overflow(ClusterAffinity, frozen=True):
    affinity_name: str = ""


class _Term(ClusterAffinity, frozen=True):
    affinity_name: str = ""
    overflow_affinities: list[_Overflow] | None = None


class _Spread(Wire, frozen=True):
    spread_by_field: str = ""
    spread_by_label: str = ""
    min_groups: Int64 = 0
    max_groups: Int64 = 0


class _StaticWeight(Wire, frozen=True):
    target_cluster: ClusterAffinity = ClusterAffinity()
    weight: Int64 = 0


class _WeightPreference(Wire, frozen=True):
    static_weight_list: list[_StaticWeight] | None = None
    dynamic_weight: str = ""


class _ReplicaScheduling(Wire, frozen=True):
    replica_scheduling_type: str = "Divided"  # the default of the CRD
    replica_division_preference: str = ""
    weight_preference: _WeightPreference | None = None


class _Placement(Wire, frozen=True):
    cluster_affinity: ClusterAffinity | None = None
    cluster_affinities: list[_Term] | None = None
    cluster_tolerations: list[Toleration] | None = None
    spread_constraints: list[_Spread] | None = None
    replica_scheduling: _ReplicaScheduling | None = None


@dataclass(frozen=True, slots=True)
class AffinityGroup:
    """One affinity, and those it overflows into. The name is empty for a plain `clusterAffinity`."""

    name: str
    matches: Matcher
    overflow: tuple[Matcher, ...] = ()

    def tier(self, cluster: AffinitySubject) -> int:
        """Return 0 for the group itself, then one for each overflow, in order."""
        if self.matches(cluster):
            return 0
        for index, matches in enumerate(self.overflow):
            if matches(cluster):
                return index + 1
        return TIER_NONE


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    by_field: str
    by_label: str
    min_groups: int
    max_groups: int


@dataclass(frozen=True, slots=True)
class WeightRule:
    matches: Matcher
    weight: int


@dataclass(frozen=True, slots=True)
class KarmadaPlacement:
    """`groups` has one entry for `clusterAffinity` or no affinity at all."""

    groups: tuple[AffinityGroup, ...]
    has_named_groups: bool
    tolerations: tuple[Toleration, ...]
    spread: tuple[SpreadConstraint, ...]
    strategy: ReplicaStrategy
    scheduling_type: str  # as written; for messages
    division_preference: str
    has_replica_scheduling: bool
    weights: tuple[WeightRule, ...] | None  # None: no static list at all
    ignores_spread: bool  # of static weights

    @property
    def is_duplicated(self) -> bool:
        return not self.has_replica_scheduling or self.scheduling_type == "Duplicated"

    def spread_by(self, field: str) -> SpreadConstraint | None:
        return next((constraint for constraint in self.spread if constraint.by_field == field), None)

    @property
    def wants_one_cluster(self) -> bool:
        by_cluster = self.spread_by("cluster")
        return by_cluster is not None and by_cluster.min_groups == by_cluster.max_groups == 1

    def start_group(self, observing: str) -> int:
        """Return where to continue: at the group of the last success, if it still exists."""
        return next((i for i, group in enumerate(self.groups) if observing and group.name == observing), 0)


def read_placement(raw: Mapping[str, Any] | None) -> KarmadaPlacement:
    """Read a placement. Raises Invalid with the path inside it. Equal placements are compiled once."""
    try:
        text = msgspec.json.encode(raw or {}, order="deterministic")
    except (TypeError, RecursionError, OverflowError):
        raise Invalid("placement", raw, "is not a JSON object") from None
    return _compiled(text)


@lru_cache(maxsize=4096)
def _compiled(text: bytes) -> KarmadaPlacement:
    wire = decode(msgspec.json.decode(text), _Placement)
    _check(wire)
    scheduling = wire.replica_scheduling
    preference = scheduling.weight_preference if scheduling else None
    return KarmadaPlacement(
        groups=_groups(wire),
        has_named_groups=bool(wire.cluster_affinities),
        tolerations=tuple(wire.cluster_tolerations or ()),
        spread=tuple(_spread(constraint) for constraint in wire.spread_constraints or ()),
        strategy=_strategy(scheduling),
        scheduling_type=scheduling.replica_scheduling_type if scheduling else "Duplicated",
        division_preference=scheduling.replica_division_preference if scheduling else "",
        has_replica_scheduling=scheduling is not None,
        weights=_weights(preference),
        ignores_spread=_ignores_spread(scheduling),
    )


def _groups(wire: _Placement) -> tuple[AffinityGroup, ...]:
    if not wire.cluster_affinities:
        return (AffinityGroup("", matcher(wire.cluster_affinity)),)
    return tuple(
        AffinityGroup(term.affinity_name, matcher(term), tuple(map(matcher, term.overflow_affinities or ())))
        for term in wire.cluster_affinities
    )


def _spread(wire: _Spread) -> SpreadConstraint:
    field = wire.spread_by_field or ("" if wire.spread_by_label else "cluster")
    return SpreadConstraint(field, wire.spread_by_label, wire.min_groups, wire.max_groups)


def _strategy(scheduling: _ReplicaScheduling | None) -> ReplicaStrategy:
    if scheduling is None or scheduling.replica_scheduling_type == "Duplicated":
        return ReplicaStrategy.DUPLICATED
    if scheduling.replica_scheduling_type != "Divided":
        return ReplicaStrategy.UNSUPPORTED
    if scheduling.replica_division_preference == "Aggregated":
        return ReplicaStrategy.AGGREGATED
    if scheduling.replica_division_preference not in ("", "Weighted"):
        return ReplicaStrategy.UNSUPPORTED
    preference = scheduling.weight_preference
    return ReplicaStrategy.DYNAMIC if preference and preference.dynamic_weight else ReplicaStrategy.STATIC


def _weights(preference: _WeightPreference | None) -> tuple[WeightRule, ...] | None:
    if preference is None or preference.dynamic_weight or not preference.static_weight_list:
        return None
    return tuple(
        WeightRule(matcher(weight.target_cluster), weight.weight) for weight in preference.static_weight_list
    )


def _ignores_spread(scheduling: _ReplicaScheduling | None) -> bool:
    """Whether spread constraints are ignored; an empty preference divides statically and still obeys them."""
    if _strategy(scheduling) is not ReplicaStrategy.STATIC or scheduling is None:
        return False
    preference = scheduling.weight_preference
    return preference is None or bool(preference.static_weight_list)


# What the webhook checks


def _check(wire: _Placement) -> None:
    if wire.cluster_affinity is not None and wire.cluster_affinities:
        raise Invalid("clusterAffinities", "set", "clusterAffinity is set too; keep one of them")
    lists = {
        "clusterAffinities": wire.cluster_affinities,
        "clusterTolerations": wire.cluster_tolerations,
        "spreadConstraints": wire.spread_constraints,
    }
    for name, entries in lists.items():
        if len(entries or ()) > ENTRIES_MAX:
            raise Invalid(name, len(entries or ()), f"has more than {ENTRIES_MAX} entries")
    _check_affinities(wire)
    for index, toleration in enumerate(wire.cluster_tolerations or ()):
        if toleration.operator not in ("", "Equal", "Exists"):
            path = f"clusterTolerations[{index}].operator"
            raise Invalid(path, toleration.operator, "must be Equal or Exists")
    _check_spread(wire.spread_constraints or [])
    _check_weights(wire.replica_scheduling)


def _check_affinities(wire: _Placement) -> None:
    if wire.cluster_affinity is not None:
        wire.cluster_affinity.check("clusterAffinity")
    names: set[str] = set()
    for index, term in enumerate(wire.cluster_affinities or ()):
        path = f"clusterAffinities[{index}]"
        if not term.affinity_name or term.affinity_name in names:
            raise Invalid(f"{path}.affinityName", term.affinity_name, "must be there, and differ from others")
        names.add(term.affinity_name)
        term.check(path)
        if term.overflow_affinities and _strategy(wire.replica_scheduling) not in _BY_ROOM:
            strategy = _strategy(wire.replica_scheduling)
            reason = f"needs division by room (Aggregated or dynamic weight), and it is {strategy}"
            raise Invalid(f"{path}.overflowAffinities", len(term.overflow_affinities), reason)
        for number, overflow in enumerate(term.overflow_affinities or ()):
            overflow.check(f"{path}.overflowAffinities[{number}]")


def _check_spread(constraints: list[_Spread]) -> None:
    fields: set[str] = set()
    for index, constraint in enumerate(constraints):
        path = f"spreadConstraints[{index}]"
        if constraint.spread_by_field and constraint.spread_by_label:
            raise Invalid(
                f"{path}.spreadByLabel", constraint.spread_by_label, "spreadByField is set; keep one"
            )
        if constraint.spread_by_field and constraint.spread_by_field not in FIELDS:
            raise Invalid(
                f"{path}.spreadByField", constraint.spread_by_field, f"must be one of {', '.join(FIELDS)}"
            )
        for name, value in (("minGroups", constraint.min_groups), ("maxGroups", constraint.max_groups)):
            if value < 0:
                raise Invalid(f"{path}.{name}", value, "must not be negative")
        if 0 < constraint.max_groups < constraint.min_groups:
            raise Invalid(
                f"{path}.maxGroups", constraint.max_groups, f"is less than minGroups {constraint.min_groups}"
            )
        field = _spread(constraint).by_field
        if field and field in fields:
            raise Invalid(f"{path}.spreadByField", field, "has a constraint already")
        fields.add(field)


def _check_weights(scheduling: _ReplicaScheduling | None) -> None:
    preference = scheduling.weight_preference if scheduling else None
    if preference is None:
        return
    path = "replicaScheduling.weightPreference"
    if preference.dynamic_weight not in ("", "AvailableReplicas"):
        raise Invalid(f"{path}.dynamicWeight", preference.dynamic_weight, "must be AvailableReplicas")
    rules = preference.static_weight_list or []
    if len(rules) > ENTRIES_MAX:
        raise Invalid(f"{path}.staticWeightList", len(rules), f"has more than {ENTRIES_MAX} entries")
    for index, rule in enumerate(rules):
        if not 1 <= rule.weight <= WEIGHT_MAX:
            where = f"{path}.staticWeightList[{index}].weight"
            raise Invalid(where, rule.weight, f"must be from 1 to {WEIGHT_MAX}")
        rule.target_cluster.check(f"{path}.staticWeightList[{index}].targetCluster")
