"""Vectors of consolidation: budgets, admission of pools, windows and wishes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from karpool.model.errors import Invalid
from karpool.model.karpenter.budgets import grant_of, is_active
from karpool.model.karpenter.objects import Budget
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod_disruption import is_protected, protected_seconds
from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.apiserver.kinds import crds
from karpool_fleet.apiserver.kinds.bundled_crds import bundled_crds
from tests.vectors.consolidation import vector_pod
from tests.vectors.registry import Case, kind

Given = Mapping[str, Any]
_IN_DISRUPTION = ("consolidationPolicy", "consolidateAfter", "budgets")
_IN_TEMPLATE = ("expireAfter", "terminationGracePeriod", "requirements", "taints", "startupTaints")


def budgets(given: Given) -> list[Budget]:
    return decode(given["budgets"], list[Budget])


@kind("budget_allowed")
def answer_allowed(case: Case) -> Given:
    given = case["input"]
    now, nodes = parse_rfc3339(given["now"]), given["nodes"]
    grant = grant_of(budgets(given), nodes, given["reason"], now)
    return {"allowed": grant.allowed, "error": grant.problem is not None, "effective": grant.effective}


@kind("budget_active")
def answer_active(case: Case) -> Given:
    given = case["input"]
    try:
        return {
            "active": is_active(decode(given["budget"], Budget), parse_rfc3339(given["now"])),
            "error": False,
        }
    except Invalid:
        return {"active": False, "error": True}


@kind("budget_admission")
def answer_budget_admission(case: Case) -> Given:
    return {"accepted": is_admitted({"disruption": {"budgets": case["input"]["budgets"]}})}


@kind("nodepool_admission")
def answer_pool_admission(case: Case) -> Given:
    field, value = case["input"]["field"], case["input"]["value"]
    if field in _IN_DISRUPTION:
        return {"accepted": is_admitted({"disruption": {field: value}})}
    if field in _IN_TEMPLATE:
        return {"accepted": is_admitted({}, {field: value})}
    return {"accepted": is_admitted({field: value})}


def is_admitted(spec: Given, template: Given = {}) -> bool:  # noqa: B006 - never written to
    """By the schema that Karpenter ships, as the embedded API server reads it."""
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    whole = {"template": {"spec": {"nodeClassRef": reference, "requirements": [], **template}}, **spec}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"}, "spec": whole}
    schema = pool_schema()
    schema.default(pool)
    return not schema.validate(pool)


@cache
def pool_schema() -> Any:
    (found,) = crds.resource_types(bundled_crds(["nodepools.karpenter.sh"])[0])
    assert found.schema is not None
    return found.schema


@kind("do_not_disrupt")
def answer_do_not_disrupt(case: Case) -> Given:
    given = case["input"]
    pod = vector_pod({"do_not_disrupt": given["do_not_disrupt"]})
    try:
        protected_seconds(pod)
        ignored = False
    except Invalid:
        ignored = True
    return {"active": is_protected(pod, given["age_seconds"]), "invalid_annotation_event": ignored}
