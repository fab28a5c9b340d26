"""The reasons why a node stays or a move is not made, and their names in events and metrics."""

from enum import StrEnum
from typing import Self

from karpool.model.infeasible import Reason


class DisruptionReason(StrEnum):
    """The names are those of budgets."""

    EMPTY = "Empty"
    UNDERUTILIZED = "Underutilized"


class MoveFailure(StrEnum):
    """The category of a failed move in events and metrics. The words are Karpenter's."""

    BUDGET = "budget"
    SCHEDULING = "scheduling"
    CHURN = "churn"  # the move or one of its nodes changed
    UNKNOWN = "unknown"


class ConsolidationReason(Reason):
    failure: MoveFailure

    def __new__(cls, code: str, failure: MoveFailure = MoveFailure.UNKNOWN) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.failure = failure
        return member

    @classmethod
    def _missing_(cls, value: object) -> "ConsolidationReason":
        """Accept a reason of another version in a record or plan."""
        return cls.UNKNOWN

    UNKNOWN = "", MoveFailure.UNKNOWN

    BUDGET = "budget", MoveFailure.BUDGET
    BUDGET_UNREADABLE = "budget_unreadable", MoveFailure.BUDGET
    RATE = "rate", MoveFailure.BUDGET
    WINDOW = "window", MoveFailure.BUDGET
    BUFFER_UNREADABLE = "buffer_unreadable", MoveFailure.CHURN
    STOPPED = "stopped", MoveFailure.BUDGET

    NO_ROOM = "no_room", MoveFailure.SCHEDULING
    TOPOLOGY = "topology", MoveFailure.SCHEDULING
    NO_TYPE = "no_type", MoveFailure.SCHEDULING
    NOT_CHEAPER = "not_cheaper", MoveFailure.SCHEDULING
    SPOT_TO_SPOT = "spot_to_spot", MoveFailure.SCHEDULING
    SAME_TYPE = "same_type", MoveFailure.SCHEDULING
    METHOD_DISABLED = "kind", MoveFailure.SCHEDULING
    STOCK_OUT = "stock_out", MoveFailure.SCHEDULING
    PLACEHOLDER_ENDED = "placeholder_ended", MoveFailure.SCHEDULING

    SCORE = "score", MoveFailure.UNKNOWN
    SMALL_SAVING = "small_saving", MoveFailure.UNKNOWN
    BILL_DOES_NOT_FALL = "bill_does_not_fall", MoveFailure.UNKNOWN
    TIMEOUT = "timeout", MoveFailure.UNKNOWN
    REFUSED = "refused", MoveFailure.UNKNOWN
    AGE = "age", MoveFailure.UNKNOWN

    GONE = "gone", MoveFailure.CHURN
    REPLACED = "replaced", MoveFailure.CHURN
    CHANGED = "changed", MoveFailure.CHURN
    NEW_POD = "new_pod", MoveFailure.CHURN
    NEW_NODE_LOST = "new_node_lost", MoveFailure.CHURN
    DELETING = "deleting", MoveFailure.CHURN
    IN_QUEUE = "in_queue", MoveFailure.CHURN
    NOMINATED = "nominated", MoveFailure.CHURN
    NOT_EMPTY = "not_empty", MoveFailure.CHURN
    RESERVED = "reserved", MoveFailure.CHURN
    POD_UNREADABLE = "pod_unreadable", MoveFailure.CHURN
    POD_STARTING = "pod_starting", MoveFailure.CHURN
    YOUNG = "young", MoveFailure.CHURN
    UNHEALTHY = "unhealthy", MoveFailure.CHURN
    NOT_CONSOLIDATABLE = "not_consolidatable", MoveFailure.CHURN
    PDB_BLOCKED = "pdb_blocked", MoveFailure.CHURN
    PDB_DEADLINE = "pdb_deadline", MoveFailure.CHURN
    POD_RESOURCE_CLAIMS = "pod_resource_claims", MoveFailure.CHURN
    MULTIPLE_PDBS = "multiple_pdbs", MoveFailure.CHURN
    POD_DO_NOT_DISRUPT = "pod_do_not_disrupt", MoveFailure.CHURN
    NODE_DO_NOT_DISRUPT = "node_do_not_disrupt", MoveFailure.CHURN
    NOT_INITIALIZED = "not_initialized", MoveFailure.CHURN
    NO_NODE = "no_node", MoveFailure.CHURN
    NODEPOOL_UNREADABLE = "nodepool_unreadable", MoveFailure.CHURN
    NODEPOOL_NOT_FOUND = "nodepool_not_found", MoveFailure.CHURN
    NO_NODEPOOL_LABEL = "no_nodepool_label", MoveFailure.CHURN
    NO_ZONE_LABEL = "no_zone_label", MoveFailure.CHURN
    NO_CAPACITY_TYPE_LABEL = "no_capacity_type_label", MoveFailure.CHURN
    INSTANCE_TYPE_UNKNOWN = "instance_type_unknown", MoveFailure.CHURN
    UNMANAGED = "unmanaged", MoveFailure.CHURN
    STATIC = "static", MoveFailure.CHURN
    CONSOLIDATION_DISABLED = "consolidation_disabled", MoveFailure.CHURN
    POLICY_WHEN_EMPTY = "policy_when_empty", MoveFailure.CHURN
    WELL_USED = "well_used", MoveFailure.CHURN

    # Reasons of kept nodes; churn if the last validation of a move meets one.
    NO_GAIN = "no_gain", MoveFailure.CHURN
    RECEIVES_PODS = "receives", MoveFailure.CHURN
    NOT_CONSIDERED = "not_looked_at", MoveFailure.CHURN
    EMPTY_HANDLED_BY_EMPTINESS = "empty_handled_by_emptiness", MoveFailure.CHURN
    BUFFER_PODS = "buffer_pods", MoveFailure.CHURN
    NOT_DRIFTED = "not_drifted", MoveFailure.CHURN
