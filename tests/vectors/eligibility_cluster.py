"""The node of a vector in a whole cluster, so that the planner gathers the facts about it by itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool.cluster import kinds
from karpool.consolidation.policy.candidates import find_candidates
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model.karpenter.objects import DO_NOT_DISRUPT, NODEPOOL
from karpool.model.kubernetes.node import INSTANCE_TYPE
from tests.consolidation.built import BuiltCluster

Object = dict[str, Any]
NODE, POOL = "n0", "p"


def reason_in_cluster(
    case: Mapping[str, Any],
    pods: Sequence[Object],
    budgets: Sequence[Object],
    *,
    lacking: Sequence[str],
) -> ConsolidationReason | None:
    """Why the planner keeps the node; None when it may go. `lacking` are labels that the node has not."""
    node, pool = case["node"], case["nodepool"]
    built = BuiltCluster()
    if pool.get("exists", True) and pool.get("managed", True):
        disruption = {
            "consolidateAfter": pool.get("consolidateAfter", "0s"),
            "consolidationPolicy": pool.get("policy", "WhenEmptyOrUnderutilized"),
        }
        built.pool(POOL, disruption=disruption, spec={"replicas": pool.get("replicas")})
    conditions = {
        "Consolidatable": "True" if node.get("consolidatable", True) else "False",
        "Drifted": "True" if node.get("drifted") else "False",
        "InstanceTerminating": "True" if node.get("instance_terminating") else "False",
    }
    labels = dict.fromkeys(lacking)
    if node.get("instance_type_unknown"):
        labels[INSTANCE_TYPE] = "unheard-of"
    claim = {
        "initialized": node.get("initialized", True),
        "deleting": node.get("deleting") or node.get("marked_for_deletion"),
        "conditions": conditions,
    }
    if node.get("has_node", True):
        annotations = {DO_NOT_DISRUPT: node["do_not_disrupt"]} if "do_not_disrupt" in node else {}
        managed = node.get("managed", True)
        built.node(NODE, pool=POOL, labels=labels, annotations=annotations, managed=managed, **claim)
    else:
        built.claim(NODE, labels={NODEPOOL: POOL}, **claim)
    for pod in pods:
        built.tell(kinds.PODS, "default", pod["metadata"]["name"], pod)
    for budget in budgets:
        built.tell(kinds.BUDGETS, "default", budget["metadata"]["name"], budget)
    judged = find_candidates(
        built.view(in_flight=[NODE] if node.get("in_queue") else []), PlanSettings(), built.now
    )
    reasons = [why for whys in judged.held.values() for why in whys]
    reasons += [why for kept in judged.stray for why in kept.why]
    return reasons[0].reason if reasons else None
