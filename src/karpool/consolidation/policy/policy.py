"""Reads the consolidation policy of a pool, and how much disruption it accepts for a saving.

The first source that sets it decides: the caller (flags), annotations of the NodePool (for Karpenter versions
whose schema lacks `Balanced`), then the NodePool's own fields (for the threshold: `consolidationThreshold` of
the original proposal). An invalid value raises Invalid; nothing is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import Disruption, NodePool

POLICY_ANNOTATION = "karpool.dev/consolidation-policy"
THRESHOLD_ANNOTATION = "karpool.dev/consolidation-threshold"
DEFAULT_K = 2
LARGEST_K = 3


class PolicyName(StrEnum):
    WHEN_EMPTY = "WhenEmpty"
    WHEN_EMPTY_OR_UNDERUTILIZED = "WhenEmptyOrUnderutilized"
    BALANCED = "Balanced"

    @property
    def is_scored(self) -> bool:
        """Whether moves are approved by their score, against a threshold."""
        return self is PolicyName.BALANCED


@dataclass(frozen=True, slots=True)
class ConsolidationPolicy:
    """`k` is for Balanced only: a share of the pool's cost is worth k times that share of disruption."""

    name: PolicyName
    k: int = DEFAULT_K
    origin: str = ""  # the source: "flag", "annotation", or "field"

    @property
    def threshold(self) -> float:
        """The minimum score of an approved move."""
        return 1.0 / self.k

    @property
    def is_scored(self) -> bool:
        return self.name.is_scored

    @property
    def moves_pods(self) -> bool:
        """Whether nodes that are not empty may be removed."""
        return self.name is not PolicyName.WHEN_EMPTY

    def __str__(self) -> str:
        return f"{self.name} (k={self.k})" if self.is_scored else str(self.name)


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """The flags that apply to every pool; None leaves it to the pool."""

    name: PolicyName | None = None
    k: int | None = None


NO_OVERRIDE = PolicyOverride()


def policy_of(pool: NodePool, override: PolicyOverride = NO_OVERRIDE) -> ConsolidationPolicy:
    """Raises Invalid with the path of the field or annotation."""
    return policy_from(pool.spec.disruption or Disruption(), pool.annotations, override)


def policy_from(
    disruption: Disruption, annotations: Mapping[str, str], override: PolicyOverride = NO_OVERRIDE
) -> ConsolidationPolicy:
    """Raises Invalid. A value that an override replaces is not read, so an error there is harmless."""
    name, origin = override.name, "flag"
    if name is None and POLICY_ANNOTATION in annotations:
        path = f"metadata.annotations.{POLICY_ANNOTATION}"
        name, origin = parse_policy(annotations[POLICY_ANNOTATION], path), "annotation"
    elif name is None:
        path = "spec.disruption.consolidationPolicy"
        name, origin = parse_policy(disruption.consolidation_policy, path), "field"
    k = override.k
    if k is None and THRESHOLD_ANNOTATION in annotations:
        k = parse_threshold(annotations[THRESHOLD_ANNOTATION], f"metadata.annotations.{THRESHOLD_ANNOTATION}")
    elif k is None and disruption.consolidation_threshold is not None:
        k = parse_threshold(disruption.consolidation_threshold, "spec.disruption.consolidationThreshold")
    return ConsolidationPolicy(name, DEFAULT_K if k is None else k, origin)


def parse_policy(text: str, path: str) -> PolicyName:
    try:
        return PolicyName(text)
    except ValueError:
        raise Invalid(path, text, f"must be one of {', '.join(PolicyName)}") from None


def parse_threshold(value: object, path: str) -> int:
    """Parse a number, or the text of one."""
    if isinstance(value, bool) or str(value) not in ("1", "2", "3"):
        raise Invalid(path, value, f"must be a whole number from 1 to {LARGEST_K}")
    return int(str(value))
