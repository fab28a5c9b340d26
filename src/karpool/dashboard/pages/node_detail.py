"""One node: its pods, its conditions, and why a plan removes or keeps it."""

from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.view import ClusterView
from karpool.dashboard.api.views import NodeDetail, PodRow
from karpool.dashboard.pages.fleet_map import node_row, resources_of
from karpool.dashboard.pages.move_sentences import move_line, scores

PODS_MAX = 300
LABELS_MAX = 100


def node_detail(
    cluster: str, view: ClusterView, name: str, plan: ConsolidationPlan | None
) -> NodeDetail | None:
    """Return the detail of a node; None if it does not exist."""
    row = view.snapshot.find(name)
    if row is None:
        return None
    names = resources_of(view)
    whole = {resource: int(view.snapshot.allocatable(resource)[row]) for resource in names}
    used = {resource: whole[resource] - int(view.snapshot.free(resource)[row]) for resource in names}
    machine = view.machines[row]
    node = machine.node
    pods = _pods(view, row)
    verdict, why = verdict_of(name, plan)
    conditions = node.conditions if node is not None else ()
    return NodeDetail(
        cluster=cluster,
        node=node_row(machine, used, whole, len(view.snapshot.pods_on(row))),
        verdict=verdict,
        why=why,
        pods=pods[:PODS_MAX],
        pods_left_out=max(0, len(pods) - PODS_MAX),
        labels=dict(sorted(machine.labels.items())[:LABELS_MAX]),
        taints=[str(taint) for taint in (node.taints if node is not None else ())],
        conditions=[
            f"{condition.type}={condition.status} {condition.message}".strip() for condition in conditions
        ],
        claim=machine.claim.name if machine.claim is not None else "",
    )


def verdict_of(node: str, plan: ConsolidationPlan | None) -> tuple[str, list[str]]:
    if plan is None:
        return "not known yet", ["the first plan of this cluster is still being made"]
    for move in plan.moves:
        if node in move.names:
            return "goes", _of_move(move)
    refused = [rejected for rejected in plan.rejected if node in rejected.move.names]
    if refused:
        why = [
            text
            for rejected_move in refused
            for text in (
                *(infeasible.sentence() for infeasible in rejected_move.why),
                *_of_move(rejected_move.move),
            )
        ]
        return "could go", list(dict.fromkeys(why))
    held = next((kept_node for kept_node in plan.held if kept_node.node == node), None)
    if held is not None:
        return "stays", [infeasible.sentence() for infeasible in held.why]
    skipped = [considered.why for considered in plan.not_looked_at if node in considered.nodes]
    return "not known yet", skipped or ["it was added after the plan was made"]


def _of_move(move: Move) -> list[str]:
    return [move_line(move), *scores(move.verdict)]


def _pods(view: ClusterView, row: int) -> list[PodRow]:
    """Return the pods, the most expensive to move first."""
    costs = {view.pods.keys[pod]: float(view.pods.costs[pod]) for pod in view.pods.on(row)}
    shapes = view.snapshot.shapes
    rows = [
        PodRow(name=name, requested=dict(shapes[shape].requests), cost=costs.get(name, 0.0))
        for name, shape in view.snapshot.pods_on(row).items()
    ]
    return sorted(rows, key=lambda pod: (-pod.cost, pod.name))
