"""Vectors of consolidation: who is a candidate, and for how many there is a budget."""

from collections.abc import Mapping
from typing import Any

from karpool.cluster.nodes.node_facts import claim_facts
from karpool.cluster.nodes.node_facts import node_facts as facts_of_node
from karpool.cluster.nodes.state_node import StateNode
from karpool.consolidation.execution.validation import command_timeout, same_outcome
from karpool.consolidation.policy.budgets import BudgetUse, remaining, use_of
from karpool.consolidation.policy.eligibility import (
    DisruptionMethod,
    EligibilityFacts,
    is_consolidatable,
    is_under_window,
    lifetime_remaining,
    why_not_candidate,
    why_not_method,
)
from karpool.consolidation.policy.policy import ConsolidationPolicy, PolicyName
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.scoring import is_empty, node_cost
from karpool.model import durations
from karpool.model.karpenter.budgets import allowed_disruptions
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, NodeClaim
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    CompiledPdb,
    PodDisruptionBudget,
    blocking_budget,
    budget_of,
    is_active,
    is_evictable,
    is_protected,
)
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from tests.consolidation.built import NOW as BUILT_AT
from tests.vectors import eligibility_cluster
from tests.vectors.consolidation import pod_object, vector_pod
from tests.vectors.consolidation_limits import budgets
from tests.vectors.near import nearly
from tests.vectors.registry import Case, kind

Given = Mapping[str, Any]
_METHODS = {
    "emptiness": DisruptionMethod.EMPTINESS,
    "single": DisruptionMethod.CONSOLIDATION,
    "multi": DisruptionMethod.CONSOLIDATION,
    "drift": DisruptionMethod.DRIFT,
}
NOW = 1_767_225_600.0


@kind("candidate_eligibility")
def answer_eligibility(case: Case) -> Given:
    method = _METHODS[case["input"]["method"]]
    facts = node_facts(case["input"])
    why = why_not_candidate(facts, method)
    refusal = why or why_not_method(facts, method)
    if is_planned_for(method, facts):
        in_cluster = planned_reason(case["input"])
        assert in_cluster == (refusal and refusal.reason), f"in a cluster the planner says {in_cluster}"
    if why is not None:
        return {"candidate": False, "should_disrupt": None, "reason": str(why.reason)}
    return {
        "candidate": True,
        "should_disrupt": refusal is None,
        "reason": None if refusal is None else str(refusal.reason),
    }


def is_planned_for(method: DisruptionMethod, facts: EligibilityFacts) -> bool:
    """Empty nodes are asked about emptiness and others about consolidation; drift is Karpenter's alone. What
    a pool sells is learnt from its nodes, too, and who is nominated or kept as a buffer from pods: a cluster
    with such a node holds more than the vector says."""
    planned = DisruptionMethod.EMPTINESS if facts.empty else DisruptionMethod.CONSOLIDATION
    return method is planned and facts.pool_sells and not facts.buffer_pods and not facts.nominated


def planned_reason(given: Given) -> ConsolidationReason | None:
    pods = [pod_object(each, f"p{index}") for index, each in enumerate(given.get("pods") or ())]
    for pod, asked in zip(pods, given.get("pods") or (), strict=True):
        if (age := asked.get("age_seconds")) is not None:
            pod["status"]["startTime"] = rfc3339(BUILT_AT - age)
        pod["spec"] |= {"nodeName": eligibility_cluster.NODE, "containers": [{"name": "c"}]}
    lacking = [
        label
        for name, label in (
            ("nodepool_label", NODEPOOL),
            ("instance_type", INSTANCE_TYPE),
            ("capacity_type", CAPACITY_TYPE),
            ("zone", ZONE),
        )
        if lacks(given["node"], name)
    ]
    return eligibility_cluster.reason_in_cluster(
        given,
        pods,
        [budget_object(each) for each in given.get("pdbs") or ()],
        lacking=lacking,
    )


def node_facts(given: Given) -> EligibilityFacts:
    node, pool = given["node"], given["nodepool"]
    pods = [
        (vector_pod(each, f"p{index}"), each.get("age_seconds"))
        for index, each in enumerate(given.get("pods") or ())
    ]
    protecting = next((pod.name for pod, age in pods if is_active(pod) and is_protected(pod, age)), "")
    held_pod, held_by = held(pods, [disruption_budget(each) for each in given.get("pdbs") or ()])
    policy = ConsolidationPolicy(PolicyName(pool.get("policy", "WhenEmptyOrUnderutilized")))
    return EligibilityFacts(
        pool="" if lacks(node, "nodepool_label") else "p",
        in_queue=node.get("in_queue", False),
        managed=node.get("managed", True),
        has_node=node.get("has_node", True),
        initialized=node.get("initialized", True),
        deleting=any(node.get(key) for key in ("deleting", "marked_for_deletion", "instance_terminating")),
        nominated=node.get("nominated", False),
        do_not_disrupt=node.get("do_not_disrupt") == "true",
        pool_exists=pool.get("exists", True) and pool.get("managed", True),
        pool_sells=sells(pool),
        protecting_pod=protecting,
        held_pod=held_pod,
        held_by=held_by,
        is_static=pool.get("replicas") is not None,
        type_known=not (lacks(node, "instance_type") or node.get("instance_type_unknown")),
        capacity_type="" if lacks(node, "capacity_type") else "on-demand",
        zone="" if lacks(node, "zone") else "z",
        consolidation_disabled=durations.seconds_or_never(pool.get("consolidateAfter", "0s")) is None,
        buffer_pods=node.get("buffer_pods", False),
        empty=is_empty(node_cost(pod for pod, _ in pods)),
        moves_pods=policy.moves_pods,
        consolidatable=node.get("consolidatable", True),
        drifted=node.get("drifted", False),
        has_grace_period=node.get("termination_grace_period") is not None,
    )


def sells(pool: Given) -> bool:
    """However a vector says how many instance types a pool has."""
    types = pool.get("instance_types", pool.get("instance_type_count", True))
    return bool(types) and not pool.get("no_instance_types") and pool.get("has_instance_types", True)


def lacks(node: Given, name: str) -> bool:
    """However a vector says that a label, or what it names, is not there."""
    stem = name.removesuffix("_label")
    for key, absent in (
        (name, (False, None, "")),
        (f"{stem}_label", (False, None, "")),
        (f"has_{stem}_label", (False,)),
        (f"{stem}_known", (False,)),
        (f"no_{stem}_label", (True,)),
        (f"missing_{stem}_label", (True,)),
    ):
        if key in node and node[key] in absent:
            return True
    return False


def disruption_budget(given: Given) -> CompiledPdb:
    return budget_of(decode(budget_object(given), PodDisruptionBudget))


def budget_object(given: Given) -> dict[str, Any]:
    wanted = given["matches"]
    labels = dict.fromkeys([wanted] if isinstance(wanted, str) else wanted, "yes")
    policy = given.get("unhealthy_pod_eviction_policy", "IfHealthyBudget")
    return {
        "metadata": {"name": "-".join(labels) or "all", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": policy},
        "status": {"disruptionsAllowed": given["disruptions_allowed"]},
    }


def held(pods: list[tuple[Pod, float | None]], found: list[CompiledPdb]) -> tuple[str, str]:
    """The first pod that budgets hold, and their names."""
    for pod, age in pods:
        if is_evictable(pod, protected=is_protected(pod, age)) and blocking_budget(pod, found):
            return pod.name, ", ".join(each.name for each in found if each.selects(pod))
    return "", ""


@kind("consolidate_after")
def answer_consolidate_after(case: Case) -> Given:
    given = case["input"]
    initialized = moment(given["seconds_since_initialized"])
    last = moment(given["seconds_since_last_pod_event"])
    wait = given["consolidateAfter"]
    return {
        "under_window": is_under_window(wait, initialized, last, NOW),
        "consolidatable": is_consolidatable(wait, initialized, last, NOW),
    }


def moment(seconds_ago: float | None) -> float | None:
    return None if seconds_ago is None else NOW - seconds_ago


@kind("lifetime_remaining", same=nearly)
def answer_lifetime(case: Case) -> Given:
    given = case["input"]
    expiry = durations.seconds_or_never(given["expireAfter"] or durations.NEVER)
    return {"remaining": lifetime_remaining(expiry, given["age_seconds"])}


@kind("budget_remaining")
def answer_remaining(case: Case) -> Given:
    given = case["input"]
    now = parse_rfc3339(given["now"])
    machines = [machine(each, f"n{number}") for number, each in enumerate(given["nodes"])]
    marked = [f"n{number}" for number, each in enumerate(given["nodes"]) if each.get("marked_for_deletion")]
    uses = use_of(machines, marked)
    use = uses.get("p", BudgetUse())
    return {
        "pool_nodes": use.counted,
        "consuming": use.consuming,
        "allowed": allowed_disruptions(budgets(given), use.counted, given["reason"], now),
        "remaining": remaining(budgets(given), use, given["reason"], now),
    }


def machine(given: Given, name: str) -> StateNode:
    labels = {"karpenter.sh/nodepool": "p"}
    initialized = {"karpenter.sh/initialized": "true"} if given.get("initialized", True) else {}
    ready = {"type": "Ready", "status": "True" if given.get("ready", True) else "False"}
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if given.get("deleting") else {}
    terminating = {"type": "InstanceTerminating", "status": "True"}
    node = {
        "metadata": {"name": name, "labels": {**labels, **initialized}},
        "status": {"conditions": [ready]},
    }
    claim = {
        "metadata": {"name": name, "labels": labels, **leaving},
        "status": {"conditions": [terminating] if given.get("instance_terminating") else []},
    }
    node_shown = facts_of_node(decode(node, Node)) if given.get("has_node", True) else None
    claim_shown = claim_facts(decode(claim, NodeClaim)) if given.get("managed", True) else None
    return StateNode(node_shown, claim_shown)


@kind("command_revalidation")
def answer_revalidation(case: Case) -> Given:
    planned, found = case["input"]["expected_replacement_types"], case["input"]["simulation"]
    return {
        "valid": same_outcome(
            planned, found["new_nodeclaims"], found["types"], unplaced=found["unscheduled_non_pending"]
        )
    }


# What upstream calls the ways in which validation fails, and what we call them.
_FAILURES = {
    "budget": "budget",
    "nominated": "budget",
    "simulation": "no_room",
    "scheduling": "no_room",
    "schedul": "no_room",
    "churn": "new_pod",
    "candidate": "new_pod",
}


@kind("validation_failure_reason")
def answer_failure(case: Case) -> Given:
    text = case["input"]["failure"].lower()
    code = next((code for word, code in _FAILURES.items() if word in text), "")
    return {"reason": str(ConsolidationReason(code).failure)}


@kind("queue_retry_limit", same=nearly)
def answer_timeout(case: Case) -> Given:
    return {"seconds": command_timeout(case["input"]["queued_candidates"])}
