"""Metrics of consolidation, under Karpenter's names where Karpenter has one.

`karpenter_...` metrics have Karpenter's meaning and count Karpool's decisions; labels that Karpenter gets
wrong are right here. `karpool_...` metrics follow a move from approval to its realised saving.
"""

from collections import Counter as Count
from collections.abc import Collection, Iterable, Mapping
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from karpool.consolidation.execution.move_history import cost_of, saved_by_all
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import ConsolidationPlan, Move, MoveKind
from karpool.consolidation.policy.budgets import BudgetUse
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.manager.metrics import describe_process

_SCORES = (0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_PREFIX = "karpenter_voluntary_disruption"
_DISRUPTED = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")
_GRACEFUL = "graceful"  # the only mode used
_EXECUTING = (
    MovePhase.WAITING,
    MovePhase.ASKING,
    MovePhase.CORDONING,
    MovePhase.DELETING,
    MovePhase.SETTLING,
    MovePhase.ROLLING_BACK,
)


class ConsolidationMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        describe_process(registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._score = Histogram(
            "karpenter_consolidation_score",
            "Scores of moves of Balanced pools.",
            ("decision", "nodepool", "policy"),
            buckets=_SCORES,
            registry=registry,
        )
        self._moves = counter(
            "karpenter_consolidation_moves", "Moves that were decided.", "decision", "nodepool", "policy"
        )
        self._decisions = counter(
            f"{_PREFIX}_decisions", "Started moves.", "decision", "reason", "consolidation_type"
        )
        self._decisions_by_pool = counter(
            f"{_PREFIX}_decisions_by_nodepool",
            "Started moves, by pool.",
            "decision",
            "reason",
            "consolidation_type",
            "nodepool",
        )
        self._evaluation = Histogram(
            f"{_PREFIX}_decision_evaluation_duration_seconds",
            "Time to make one plan.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._eligible = gauge(f"{_PREFIX}_eligible_nodes", "Nodes in moves of the plan.", "reason")
        self._timeouts = counter(f"{_PREFIX}_consolidation_timeouts", "Plans that reached their deadline.")
        self._failed = counter(
            f"{_PREFIX}_failed_validations",
            "Moves that failed validation.",
            "consolidation_type",
            "reason",
        )
        self._queue_failures = counter(
            f"{_PREFIX}_queue_failures",
            "Moves that were rolled back.",
            "decision",
            "reason",
            "consolidation_type",
        )
        self._allowed = gauge(
            "karpenter_nodepools_allowed_disruptions",
            "Nodes that may be disrupted now.",
            "nodepool",
            "reason",
        )
        self._cost = gauge("karpenter_nodepools_cost_total", "Price of all nodes per hour.", "nodepool")
        self._claims = counter("karpenter_nodeclaims_disrupted", "NodeClaims that were deleted.", *_DISRUPTED)
        self._pods = counter(
            "karpenter_pods_disruption_initiated", "Pods on nodes that were deleted by a move.", *_DISRUPTED
        )
        self._consuming = gauge(
            "karpenter_nodepools_nodes_consuming_budgets",
            "Nodes that are not ready or being removed.",
            "nodepool",
        )
        self._closed = gauge(
            "karpool_consolidation_nodepool_closed", "Pools from which no node is removed.", "nodepool"
        )
        self._stopped = gauge("karpool_consolidation_stopped", "Whether the stop switch is set.")
        self._in_flight = gauge("karpool_consolidation_moves_in_flight", "Active moves, by phase.", "phase")
        self._outcomes = counter(
            "karpool_consolidation_move_outcomes",
            "Finished moves, by outcome.",
            "outcome",
            "decision",
            "reason",
        )
        self._predicted = counter(
            "karpool_consolidation_predicted_savings_dollars_per_hour",
            "Predicted savings per hour of finished moves.",
        )
        self._realised = counter(
            "karpool_consolidation_realised_savings_dollars_per_hour",
            "Realised savings per hour of finished moves, without losses.",
        )
        self._losses = counter(
            "karpool_consolidation_realised_losses_dollars_per_hour",
            "Realised losses per hour of finished moves.",
        )
        self._costs = counter(
            "karpool_consolidation_move_cost_dollars",
            "Cost of new nodes of moves before they saved anything.",
            "outcome",
        )
        self._saved = gauge(
            "karpool_consolidation_saved_dollars",
            "Dollars saved by the recorded moves until now.",
        )
        self._possible = gauge(
            "karpool_consolidation_possible_savings_dollars_per_hour",
            "Upper bound of the possible savings, from the last certificate; NaN if unknown.",
        )
        self._possible.set(nan)
        self._unmeasured = counter(
            "karpool_consolidation_unmeasured_moves",
            "Finished moves whose saving is unknown because a price is missing.",
        )
        self._disturbed = counter("karpool_consolidation_pods_disturbed", "Pods evicted by moves.")
        self._again = counter(
            "karpool_consolidation_pods_redisturbed",
            "Pods evicted by moves that were already evicted within the last 10 minutes.",
        )
        for phase in _EXECUTING:
            self._in_flight.labels(str(phase)).set(0)

    def planned(self, plan: ConsolidationPlan, seconds: float) -> None:
        self._evaluation.observe(seconds)
        nodes = Count(str(move.reason) for move in plan.moves for _ in move.nodes)
        for reason in ("Empty", "Underutilized"):
            self._eligible.labels(reason.lower()).set(nodes[reason])
        if plan.not_looked_at:
            self._timeouts.inc()
        if (certificate := plan.certificate) is not None:
            possible = certificate.possible_per_hour
            self._possible.set(nan if possible is None else possible)
        self._cost.clear()
        self._allowed.clear()
        self._closed.clear()
        for pool in plan.pools:
            self._cost.labels(pool.name).set(pool.cost_per_hour)
            self._closed.labels(pool.name).set(bool(pool.why) or not any(pool.allowed.values()))
            for reason, number in pool.allowed.items():
                self._allowed.labels(pool.name, reason).set(number)
        for rejected in plan.rejected:
            self._scored(rejected.move, "rejected")

    def consuming(self, uses: Mapping[str, BudgetUse]) -> None:
        self._consuming.clear()
        for pool, use in uses.items():
            self._consuming.labels(pool).set(use.consuming)

    def approved(self, move: Move) -> None:
        """Count a move that was begun."""
        self._scored(move, "approved")
        words = decision_of(move), str(move.reason).lower(), type_of(move)
        self._decisions.labels(*words).inc()
        for pool in move.pools:
            self._decisions_by_pool.labels(*words, pool).inc()

    def _scored(self, move: Move, decision: str) -> None:
        if move.kind is MoveKind.EMPTY:
            return
        for pool in move.verdict.pools:
            labels = decision, pool.pool, str(pool.policy.name)
            self._moves.labels(*labels).inc()
            if pool.score is not None:
                self._score.labels(*labels).observe(pool.score.score)

    def moved(self, before: MoveRecord | None, after: MoveRecord) -> None:
        """Count a record that changed its phase."""
        move = after.move
        words = decision_of(move), str(move.reason).lower(), type_of(move)
        failure = str(ConsolidationReason(after.reason).failure)
        match after.phase:
            case MovePhase.DELETING:
                self._disturbed.inc(after.disturbed)
                self._again.inc(after.redisturbed)
                self._disrupted(move)
            case MovePhase.ROLLED_BACK:
                self._queue_failures.labels(*words).inc()
            case MovePhase.REJECTED:
                self._failed.labels(type_of(move), failure).inc()
            case MovePhase.DONE:
                self._done(after)
            case _:
                return
        if after.phase.is_over:
            self._costs.labels(str(after.phase)).inc(cost_of(after, (), after.ended or after.since) or 0.0)
            self._outcomes.labels(str(after.phase), words[0], after.reason).inc()

    def _disrupted(self, move: Move) -> None:
        policies = {verdict.pool: str(verdict.policy.name) for verdict in move.verdict.pools}
        pods = Count(pod.source for pod in move.pods if pod.cost > 0)
        for source in move.nodes:
            kind = source.pool, source.capacity_type, policies.get(source.pool, ""), _GRACEFUL
            self._claims.labels(str(move.reason).lower(), *kind).inc()
            self._pods.labels(str(move.reason).lower(), *kind).inc(pods[source.name])

    def _done(self, record: MoveRecord) -> None:
        self._predicted.inc(max(0.0, record.move.savings_per_hour))
        if record.realised is None:
            self._unmeasured.inc()
        elif record.realised >= 0:
            self._realised.inc(record.realised)
        else:
            self._losses.inc(-record.realised)

    def saved(self, records: Collection[MoveRecord], now: float) -> None:
        self._saved.set(saved_by_all(records, now))

    def in_flight(self, records: Iterable[MoveRecord], *, stopped: bool) -> None:
        self._stopped.set(stopped)
        phases = Count(record.phase for record in records)
        for phase in _EXECUTING:
            self._in_flight.labels(str(phase)).set(phases[phase])


def decision_of(move: Move) -> str:
    return "replace" if move.new_nodes else "delete"


def type_of(move: Move) -> str:
    if move.kind is MoveKind.EMPTY:
        return "empty"
    return "single" if len(move.nodes) == 1 else "multi"
