"""Compares policies: which to try, and the plan of each for the same cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.policy.policy import DEFAULT_K, NO_OVERRIDE, PolicyName, PolicyOverride


@dataclass(frozen=True, slots=True)
class PlanAlternative:
    """`label` is shown to people; `plan` is the plan of the policy."""

    label: str
    override: PolicyOverride
    plan: ConsolidationPlan


def overrides(policies: Sequence[PolicyName], thresholds: Sequence[int]) -> list[PolicyOverride]:
    """The policies to try. Thresholds are for Balanced, and imply it if it is not named. Empty: the pools'
    own policies.
    """
    if not policies and not thresholds:
        return [NO_OVERRIDE]
    variants: list[PolicyOverride] = []
    is_named = any(policy.is_scored for policy in policies)
    for policy in (*policies, *((PolicyName.BALANCED,) if thresholds and not is_named else ())):
        if policy.is_scored:
            variants += [PolicyOverride(policy, k) for k in thresholds] or [PolicyOverride(policy)]
        else:
            variants.append(PolicyOverride(policy))
    return list(dict.fromkeys(variants))


def label_of(override: PolicyOverride) -> str:
    if override.name is None:
        return "as the pools say"
    if override.name.is_scored:
        return (
            f"{override.name} k={override.k if override.k is not None else f'annotation, else {DEFAULT_K}'}"
        )
    return str(override.name)
