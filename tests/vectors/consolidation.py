"""Vectors of consolidation: costs, prices, scores, orders and what may replace what.

Scores are compared without our tolerance, since the vectors hold Karpenter's own decisions.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from karpool.consolidation.execution import event_text
from karpool.consolidation.methods.replacement_rules import (
    cheaper_types,
    same_type_ceiling,
    spot_to_spot,
    without_same_types,
)
from karpool.consolidation.policy.policy import ConsolidationPolicy, PolicyName
from karpool.consolidation.policy.prices import worst_launch_price
from karpool.consolidation.policy.scoring import (
    MoveScore,
    PoolTotals,
    ScoredNode,
    can_pass,
    estimated_savings,
    interleaved,
    is_empty,
    node_cost,
    ratios,
    score_move,
    score_sources,
)
from karpool.consolidation.verification import properties
from karpool.model.catalogue.catalogue import Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, CompiledPool
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import eviction_cost, is_reschedulable, pod_cost
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.pack import in_order, pack_new_nodes
from karpool.packing.new_nodes.pack_order import placing_order
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool.packing.tables.room import snapshot_of
from karpool_fleet.karpenter.disruption.methods import multi_node
from karpool_fleet.karpenter.disruption.simulation import DisruptionCommand, NoMove
from tests.consolidation.prefix_search import largest_prefix
from tests.packing.pool_cases import catalogue, instance_type, pending
from tests.vectors.near import infinite_as_text, nearly
from tests.vectors.registry import Case, kind

Given = Mapping[str, Any]
_OWNERS = {
    "DaemonSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Job": "batch/v1",
    "Node": "v1",
}


def vector_pod(given: Given, name: str = "p") -> Pod:
    """A pod from the words of the vectors."""
    return decode(pod_object(given, name), Pod)


def pod_object(given: Given, name: str) -> dict[str, Any]:
    annotations = {
        key: given[field]
        for field, key in (
            ("pod_deletion_cost", "controller.kubernetes.io/pod-deletion-cost"),
            ("do_not_disrupt", "karpenter.sh/do-not-disrupt"),
        )
        if given.get(field) is not None
    }
    owner = given.get("owner")
    owners = (
        [{"apiVersion": _OWNERS.get(owner, "v1"), "kind": owner, "name": "o", "uid": "o"}] if owner else []
    )
    tolerations = [{"operator": "Exists"}] if given.get("tolerates_disrupted") else []
    ready = given.get("ready")
    conditions = [{"type": "Ready", "status": ready}] if ready is not None else []
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": annotations,
            "labels": dict.fromkeys(given.get("labels") or (), "yes"),
            "ownerReferences": owners,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if given.get("terminating") else {}),
        },
        "spec": {"priority": given.get("priority"), "tolerations": tolerations},
        "status": {"phase": given.get("phase", "Running"), "conditions": conditions},
    }


@kind("eviction_cost", same=nearly)
def answer_eviction_cost(case: Case) -> Given:
    pod = vector_pod(case["input"])
    return {"eviction_cost": eviction_cost(pod), "scoring_cost": pod_cost(pod)}


@kind("node_disruption_cost", same=nearly)
def answer_node_cost(case: Case) -> Given:
    pods = [vector_pod(each) for each in case["input"]["pods"]]
    cost = node_cost(pods)
    return {
        "disruption_cost": cost,
        "is_empty": is_empty(cost),
        "reschedulable_pods": sum(map(is_reschedulable, pods)),
    }


@kind("score_move", same=nearly)
def answer_score(case: Case) -> Given:
    given = case["input"]
    totals = PoolTotals(given["total_cost"], given["total_disruption_cost"])
    return shown(score_move(given["savings"], given["disruption_cost"], totals, given["k"], tolerance=0.0))


def shown(found: MoveScore) -> Given:
    return {
        "savings_fraction": found.savings_fraction,
        "disruption_fraction": found.disruption_fraction,
        "score": infinite_as_text(found.score),
        "threshold": found.threshold,
        "approved": found.approved,
    }


@kind("evaluate_move", same=nearly)
def answer_evaluate(case: Case) -> Given:
    given = case["input"]
    policies = {
        name: ConsolidationPolicy(PolicyName(pool["policy"]), given["k"])
        for name, pool in given["pools"].items()
    }
    totals = {name: totals_of(pool) for name, pool in given["pools"].items() if totals_of(pool) is not None}
    sources = [
        ScoredNode(each["pool"], number(each["price"]), each["disruption"]) for each in given["candidates"]
    ]
    found = score_sources(sources, given["replacement_price"], policies, totals, tolerance=0.0)
    return {
        "approved": found.approved,
        "per_pool": {each.pool: shown(each.score) for each in found.pools if each.score is not None},
    }


def totals_of(given: Given | None) -> PoolTotals | None:
    if given is None or given.get("total_cost") is None:
        return None
    return PoolTotals(given["total_cost"], given["total_disruption"])


def number(raw: Any) -> float | None:
    """A price as the vectors write it, NaN as text included."""
    if raw is None:
        return None
    found = float(raw)
    return None if math.isnan(found) else found


@kind("delete_ratio_prefilter")
def answer_prefilter(case: Case) -> Given:
    given = case["input"]
    policy = ConsolidationPolicy(PolicyName(given["policy"]), given.get("k", 2))
    totals = totals_of(given["totals"])
    found = can_pass(policy, number(given["price"]), given["disruption_cost"], totals, tolerance=0.0)
    return {"can_pass": found}


@kind("candidate_order", same=nearly)
def answer_order(case: Case) -> Given:
    given = case["input"]["candidates"]
    names = [each["name"] for each in given]
    prices = np.array([each["price"] for each in given], dtype=np.float64)
    costs = np.array([each["disruption_cost"] for each in given], dtype=np.float64)
    found = dict(zip(names, ratios(prices, costs).tolist(), strict=True))
    return {"order": sorted(names, key=lambda name: -found[name]), "ratios": found}


@kind("single_node_interleave")
def answer_interleave(case: Case) -> Given:
    given = case["input"]
    return {"order": interleaved(given["groups"], given.get("previously_unseen_first") or ())}


def offering(given: Given) -> Offering:
    return Offering(
        given["zone"], given["capacity_type"], number(given["price"]), given.get("available", True)
    )


def allowing(requirements: Given) -> Callable[[Offering], bool]:
    zones, kinds = requirements.get("zone"), requirements.get("capacity_type")
    return lambda each: (
        (zones is None or each.zone in zones) and (kinds is None or each.capacity_type in kinds)
    )


def replacement_price(given: Given) -> float | None:
    """What a new node of one type costs, in some zones and capacity types; None: nothing is sold."""
    required = {
        label: ValueSet(frozenset(given["requirements"][name]))
        for name, label in (("zone", ZONE), ("capacity_type", CAPACITY_TYPE))
        if name in given["requirements"]
    }
    sold = instance_type("t").sold_as(tuple(map(offering, given["cheapest_type_offerings"])))
    pool = CompiledPool("p", requirements=required)
    packed = pack_new_nodes(snapshot_of(()), [pending("pod")], [pool], catalogue(sold))
    return packed.nodes[0].chosen.price_per_hour if packed.nodes else None


@kind("estimated_savings", same=nearly)
def answer_savings(case: Case) -> Given:
    given = case["input"]
    destinations = map(replacement_price, given["replacements"])
    return {"savings": estimated_savings(map(number, given["source_prices"]), destinations)}


@kind("replacement_price_filter", same=nearly)
def answer_price_filter(case: Case) -> Given:
    given = case["input"]
    allows = allowing(given["requirements"])
    worst = {
        name: worst_launch_price(map(offering, sold), allows)
        for name, sold in given["instance_types"].items()
    }
    return {"worst_launch_price": worst, "kept": cheaper_types(worst, given["current_price"])}


@kind("spot_to_spot")
def answer_spot(case: Case) -> Given:
    given = case["input"]
    found = spot_to_spot(
        given["candidates"],
        given["cheaper_types"],
        enabled=given["feature_gate"],
        min_values_types=given.get("min_types_for_min_values"),
    )
    return {"allowed": found.allowed, "launch_types": found.launch_types}


@kind("multi_node_same_type_filter", same=nearly)
def answer_same_type(case: Case) -> Given:
    given = case["input"]
    sources = [(each["type"], each["price"]) for each in given["candidates"]]
    options = [(each["type"], each["price"]) for each in given["replacement_options"]]
    kept = [name for name, _ in without_same_types(sources, options)]
    return {"max_price": same_type_ceiling(sources, options), "kept": kept, "valid": bool(kept)}


@kind("multi_node_search")
def answer_search(case: Case) -> Given:
    """By the embedded Karpenter, which searches as upstream does. Our own planner looks further."""
    given = case["input"]
    is_valid = sizes(given["valid_batch_sizes"])
    probes: list[int] = []

    def consolidate(batch: Sequence[Any]) -> DisruptionCommand | NoMove:
        probes.append(len(batch))
        return DisruptionCommand(tuple(batch)) if is_valid(len(batch)) else NoMove("")

    candidate: Any = SimpleNamespace(pool=SimpleNamespace(name="p"))
    found = multi_node([candidate] * given["candidates"], {"p": given["candidates"]}, consolidate)
    answer = 0 if found is None else len(found.move.candidates)
    assert (answer, probes) == largest_prefix(given["candidates"], is_valid)
    return {"batch": answer, "probes": probes}


def sizes(text: str) -> Callable[[int], bool]:
    """`all`, `none`, or comparisons joined by `or` and `and`."""
    if text in ("all", "none"):
        return lambda size: text == "all"
    compare: dict[str, Callable[[int, int], bool]] = {
        "<=": lambda size, bound: size <= bound,
        ">=": lambda size, bound: size >= bound,
        "==": lambda size, bound: size == bound,
        "!=": lambda size, bound: size != bound,
        "<": lambda size, bound: size < bound,
        ">": lambda size, bound: size > bound,
    }
    ways = []
    for way in text.split(" or "):
        terms = re.findall(r"([<>=!]=|[<>])\s*(\d+)", way)
        if not terms:
            raise ValueError(f"cannot read batch sizes {text!r}")
        ways.append([(compare[sign], int(bound)) for sign, bound in terms])
    return lambda size: any(all(holds(size, bound) for holds, bound in way) for way in ways)


@kind("uniform_pool_properties")
def answer_uniform(case: Case) -> Given:
    given = case["input"]
    (row,) = properties.threshold_table((given["k"],), tuple(sorted(given["prices"])))
    return {"approved_replace_pairs": row.approved_pairs, "max_chain_single_node_pool": row.chain_length}


@kind("approved_event_message")
def answer_message(case: Case) -> Given:
    given = case["input"]
    return {
        "message": event_text.compared(
            given["score"], given["threshold"], given["k"], given["savings_pct"], given["disruption_pct"]
        )
    }


@kind("pod_order")
def answer_pod_order(case: Case) -> Given:
    pods = [
        PendingPod(
            each["name"],
            PodShape(requests=(("cpu", round(1000 * each["cpu"])), ("memory", int(each["memory"])))),
            created=f"{each['created']:020}",
            uid=each["uid"],
        )
        for each in case["input"]["pods"]
    ]
    return {"order": [pod.name for pod in sorted(pods, key=placing_order)]}


@kind("nodepool_order")
def answer_pool_order(case: Case) -> Given:
    pools = [CompiledPool(each["name"], weight=each["weight"] or 0) for each in case["input"]["nodepools"]]
    return {"order": [pool.name for pool in in_order(pools)]}
