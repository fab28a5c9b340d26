"""Reads and writes plan documents: `karpool plan -o json` prints them and `karpool apply` reads them.

A document is untrusted input: its size is bounded, every field is checked against the types of `plan`, and an
error raises Invalid with its path. Its statements about the cluster are not trusted; see `validation`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.policy.prices import HOURS_PER_MONTH
from karpool.kube.bounded_input import read_bounded
from karpool.model import safe_yaml
from karpool.model.documents import camel_case, check_old_keys, document_of
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode

KIND = "ConsolidationPlan"
COMPARISON = "ConsolidationComparison"
SIZE_LIMIT = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """`flags` are those that the plan was made with; `cluster` is the cluster's name, if known."""

    plan: ConsolidationPlan
    flags: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = ""


def to_document(saved: SavedPlan) -> dict[str, Any]:
    """Plain data, without `apiVersion` and `kind`. Sums are for readers and are not read back."""
    plan = saved.plan
    content: dict[str, Any] = finite(document_of(plan, old_keys=True))
    for shown, move in zip(content["moves"], plan.moves, strict=True):
        shown.update(_sums(move))
    for shown, rejected in zip(content["rejected"], plan.rejected, strict=True):
        shown["move"].update(_sums(rejected.move))
    sums = {
        "savings_per_hour": plan.savings_per_hour,
        "savings_per_month": plan.savings_per_hour * HOURS_PER_MONTH,
        "disruption": plan.disruption,
        "pods_disturbed": plan.disturbed,
    }
    return {
        "cluster": saved.cluster,
        "flags": dict(saved.flags),
        **camel_case(sums, old_keys=True),
        **content,
    }


def _sums(move: Move) -> dict[str, Any]:
    sums = {
        "savings_per_hour": move.savings_per_hour,
        "savings_per_month": move.savings_per_hour * HOURS_PER_MONTH,
        "disruption": move.disruption,
        "score": finite(move.score),
        "pods_disturbed": move.disturbed,
    }
    return camel_case(sums, old_keys=True)


def finite(value: Any) -> Any:
    """Replace an infinite score by the largest number, because JSON has no infinity."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(1.7976931348623157e308, value)
    return value


def read_plan(path: Path) -> SavedPlan:
    """Raises Invalid."""
    try:
        content = read_bounded(path, SIZE_LIMIT)
    except OSError as error:
        raise Invalid("plan", str(path), f"{error.strerror}; save one with karpool plan -o json") from None
    return parse_plan(content, str(path))


def parse_plan(data: bytes, name: str = "plan") -> SavedPlan:
    """From JSON or YAML. Raises Invalid."""
    document = _decoded(data, name)
    if not isinstance(document, dict):
        raise Invalid(name, type(document).__name__, f"is not a {KIND}; save one with karpool plan -o json")
    kind = document.get("kind")
    if kind == COMPARISON:
        raise Invalid(f"{name}.kind", kind, "compares several policies; save a plan with one --policy")
    if kind != KIND:
        raise Invalid(f"{name}.kind", kind, f"is not a {KIND}; save one with karpool plan -o json")
    check_old_keys(document, name)
    flags = document.get("flags", {})
    if not isinstance(flags, dict):
        raise Invalid(f"{name}.flags", flags, "must be an object")
    try:
        return SavedPlan(decode(document, ConsolidationPlan), flags, str(document.get("cluster", "")))
    except Invalid as error:
        raise error.at(name) from None


def _decoded(data: bytes, name: str) -> Any:
    try:
        return safe_yaml.json_or_yaml(data, size_limit=SIZE_LIMIT)
    except safe_yaml.UnusableYaml as error:
        raise Invalid(name, "", str(error)) from None
