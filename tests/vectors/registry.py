"""Which kinds of vectors there are, and what answers them.

A capability adds a module here and registers one function per kind: it takes the
case and returns the actual values under the names that `expected` uses. Kinds that
are known but have no function yet belong to a capability that is not built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Case = Mapping[str, Any]
Answer = Callable[[Case], Any]
Compare = Callable[[Any, Any], bool]

CAPABILITIES = {
    "estimator": """framework_components framework_replicas karpenter_limits_model match_node
        node_autoscaler_sum node_resource_components options_validation pod_unschedulable quantity
        resource_max_divided resource_quota_components resource_quota_replicas rpc_max_available_replicas
        service_resolution simulate_components unschedulable_replicas wire_decode wire_encode""",
    "scheduler": """assign components deschedule dispense first_fit general_replicas general_sets
        group_score merge_available select_by_cluster select_by_region select_groups""",
    "consolidation": """approved_event_message budget_active budget_admission budget_allowed budget_remaining
        candidate_eligibility candidate_order command_revalidation consolidate_after delete_ratio_prefilter
        do_not_disrupt estimated_savings evaluate_move eviction_cost lifetime_remaining
        multi_node_same_type_filter multi_node_search node_disruption_cost nodepool_admission nodepool_order
        pod_order queue_retry_limit replacement_price_filter score_move single_node_interleave spot_to_spot
        uniform_pool_properties validation_failure_reason""",
    "dra": "dra_allocate dra_count dra_feasible",
    "gpu": """adjust_allocation admit_rejected_pod allocate apply_twice ascend_group available_percent
        build_requirements capacity_type_label capacity_update clamp_available cleanup_inflight
        clone_claim_metadata compose_request dynamic_lock filter filter_with_preempt gang_config
        gang_permit gang_strict_reject hard_sm_percent isolation_compatible max_inflight mig_create
        node_capacity node_score partition_check partition_match partition_usage prefilter_nodes
        prepare_node queue_hint quota_alert quota_check quota_usage quota_validate rebuild_from_pods
        recompute_available recover_modes reserve_for_nominated reserve_inflight scenario score
        select sweep_assumed template_identifier virtual_capacity""",
}
KNOWN = {kind: capability for capability, kinds in CAPABILITIES.items() for kind in kinds.split()}


@dataclass(frozen=True)
class Handler:
    answer: Answer
    same: Compare


HANDLERS: dict[str, Handler] = {}


def includes(expected: Any, actual: Any) -> bool:
    """Every expected key is there with the expected value; the answer may say more."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and includes(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list | tuple)
            and len(expected) == len(actual)
            and all(map(includes, expected, actual))
        )
    return isinstance(expected, bool) == isinstance(actual, bool) and bool(expected == actual)


def kind(name: str, *, same: Compare = includes) -> Callable[[Answer], Answer]:
    """Register the function that answers a kind. `same(expected, actual)` decides."""
    if name not in KNOWN:
        raise ValueError(f"{name} is not a kind of any capability; add it to CAPABILITIES")

    def register(answer: Answer) -> Answer:
        HANDLERS[name] = Handler(answer, same)
        return answer

    return register
