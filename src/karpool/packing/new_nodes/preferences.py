"""Preferences of a pod as Karpenter reads them: hard, until they cannot be met.

`ladder` gives the pod as it is tried, strictest first. Each step drops one
preference, in Karpenter's order: the heaviest preferred pod affinity, preferred
anti-affinity, preferred node affinity, one `ScheduleAnyway` spread, and last the
avoidance of `PreferNoSchedule`. (karpenter pkg/controllers/provisioning/scheduling/preferences.go)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm


@dataclass(frozen=True, slots=True)
class RelaxedPod:
    """A pod with some of its preferences made requirements."""

    shape: PodShape
    node_term: NodeTerm | None = None
    avoids_soft_taints: bool = False


def ladder(shape: PodShape, *, respect: bool, soft_taints: bool) -> Iterator[RelaxedPod]:
    """`soft_taints`: whether any pool has a `PreferNoSchedule` taint. The last attempt has no preference."""
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
