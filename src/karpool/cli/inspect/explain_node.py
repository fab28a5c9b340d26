"""`karpool explain node NAME`: what holds a node, or where everything on it would go."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.inspect.plan import PlannedCluster, load_planned_cluster
from karpool.cli.options.cluster import ClusterOptions, cluster_options, output_option
from karpool.cli.options.parameters import with_options
from karpool.cli.output import plan_text
from karpool.cli.output.text import FOLD, NONE, columns, emit, machine, printable, terminal_width
from karpool.consolidation.execution import event_text
from karpool.consolidation.execution.validation import what_if
from karpool.consolidation.planning.comparison import overrides
from karpool.consolidation.planning.plan import ConsolidationPlan, Move, RejectedMove
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.eligibility import lifetime_remaining
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.options import ReplanOptions
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model import durations
from karpool.model.documents import document_of
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """`verdict`: it goes, it could go but is not taken, or it stays. `move` is what would take it.

    `what_if` is what happens if it goes whatever holds it: the fate of every pod, or what has no place.
    `lifetime_remaining` is the share of its expireAfter that is left; None where that cannot be told.
    """

    node: str
    verdict: str
    why: tuple[Infeasible[ConsolidationReason], ...]
    move: Move | None
    rejected: tuple[RejectedMove, ...]
    held: KeptNode | None
    what_if: Move | tuple[Infeasible[ConsolidationReason], ...]
    lifetime_remaining: float | None = None


def explained(node: str, planned_cluster: PlannedCluster, settings: PlanSettings) -> NodeExplanation:
    """Raises Failed when there is no such node."""
    if any(state_node.name == node for state_node in planned_cluster.view.claims_without_node):
        raise CommandFailed(
            f"{node} is a NodeClaim without a node; consolidation considers it when it has a node"
        )
    if node not in planned_cluster.view.snapshot.names:
        raise CommandFailed(
            f"node {node} is not in {planned_cluster.cluster or 'the cluster'}; see kubectl get nodes"
        )
    plan = plan_consolidation(planned_cluster.view, settings, planned_cluster.now)
    move = next((candidate_move for candidate_move in plan.moves if node in candidate_move.names), None)
    rejected = tuple(rejected_move for rejected_move in plan.rejected if node in rejected_move.move.names)
    held = next((kept_node for kept_node in plan.held if kept_node.node == node), None)
    return NodeExplanation(
        node,
        _verdict(move, rejected),
        _why(plan, node, rejected, held),
        move,
        rejected,
        held,
        what_if(planned_cluster.view, [node], settings, planned_cluster.now),
        _lifetime(node, planned_cluster),
    )


def _lifetime(node: str, seen: PlannedCluster) -> float | None:
    claim = next((machine.claim for machine in seen.view.machines if machine.name == node), None)
    if claim is None or claim.created is None or not claim.expire_after:
        return None
    try:
        expiry = durations.seconds_or_never(claim.expire_after)
    except Invalid:
        return None
    return lifetime_remaining(expiry, seen.now - claim.created)


def _verdict(move: Move | None, rejected: tuple[RejectedMove, ...]) -> str:
    if move is not None:
        return "goes"
    return "could go, and is not taken" if rejected else "stays"


def _why(
    plan: ConsolidationPlan, node: str, rejected: tuple[RejectedMove, ...], held: KeptNode | None
) -> tuple[Infeasible[ConsolidationReason], ...]:
    reasons = [why for move in rejected for why in move.why]
    reasons += held.why if held is not None else ()
    reasons += [
        Infeasible(ConsolidationReason.NOT_CONSIDERED, considered.why)
        for considered in plan.not_looked_at
        if node in considered.nodes
    ]
    return tuple(dict.fromkeys(reasons))


@click.command(epilog="Example: karpool explain node ip-10-0-1-7.ec2.internal --context prod")
@click.argument("name")
@output_option("table", "json", "yaml")
@with_options(ReplanOptions, "options")
@cluster_options
def node(
    name: str,
    output: str,
    options: ReplanOptions,
    cluster: ClusterOptions,
) -> None:
    """Show whether consolidation would remove a node, what keeps it, and where each of its pods would run.

    Only reads.
    """
    policies = [options.policy] if options.policy else []
    (override,) = overrides(policies, [options.threshold] if options.threshold else [])
    planned_cluster = asyncio.run(
        load_planned_cluster(
            cluster, options.region, options.catalogue, options.contract, options.contract_cluster
        )
    )
    settings = options.settings(override, heed_budgets=options.heed_budgets)
    emit(render(explained(name, planned_cluster, settings), output, planned_cluster.cluster))


def render(explanation: NodeExplanation, output: str, cluster: str) -> str:
    if output in ("json", "yaml"):
        content: dict[str, Any] = document_of(explanation, old_keys=True)
        return machine("NodeExplanation", {"cluster": cluster, **content}, output)
    return "\n".join(_lines(explanation, printable(cluster)))


def _lines(explanation: NodeExplanation, cluster: str) -> Iterator[str]:
    yield f"{explanation.node} {explanation.verdict} ({cluster})"
    yield from (f"  {why.detail}" for why in explanation.why)
    lifetime = explanation.lifetime_remaining
    if lifetime is not None and lifetime < 1:
        yield f"  {lifetime:.0%} of its life (expireAfter) is left; Karpenter ends it then"
    shown = explanation.move or (explanation.rejected[0].move if explanation.rejected else None)
    if shown is not None:
        yield ""
        yield f"move {shown.id}: {event_text.command(shown.kind, shown.names, len(shown.new_nodes))}"
        yield from scores(shown)
        yield from pods_of(shown)
    if isinstance(explanation.what_if, Move):
        if shown is None or shown.names != explanation.what_if.names:
            yield ""
            yield "if only this node were removed:"
            yield from scores(explanation.what_if)
            yield from pods_of(explanation.what_if)
    elif shown is None:
        yield ""
        yield "it could still not be removed:"
        yield from (f"  {why.detail}" for why in explanation.what_if)


def scores(move: Move) -> Iterator[str]:
    into = ", ".join(plan_text.new_node(replacement_node) for replacement_node in move.new_nodes)
    yield f"  saves ${plan_text.money(move.savings_per_hour)} per hour{f', buys {into}' if into else ''}"
    for pool in move.verdict.pools:
        if pool.score is not None:
            yield f"  nodepool {pool.pool}: {event_text.approved(pool.score, pool.policy.k)}"
        else:
            yield f"  nodepool {pool.pool or NONE}: {pool.policy} does not score"


def pods_of(move: Move) -> Iterator[str]:
    if not move.pods:
        yield "  no pods move"
        return
    _, rows = plan_text.pod_table([move])
    width = terminal_width()
    table = columns(
        ["POD", "COST", "FROM", "TO"],
        [row[1:] for row in rows],
        width=None if width is None else max(width - len(FOLD), 1),
    )
    yield FOLD + table.replace("\n", f"\n{FOLD}")
