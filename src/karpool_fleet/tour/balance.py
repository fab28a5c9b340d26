"""Chapter: a cluster that grew for a campaign is consolidated, where that is worth the disruption.

`grow` creates the excess while other chapters run; the stop switch holds consolidation until the chapter
begins.
"""

from karpool.consolidation.execution.options import STOP_NAME, STOP_NAMESPACE
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.planning.plan import ConsolidationPlan, Move, RejectedMove
from karpool.model.kubernetes.api_resources import CONFIGMAPS, DEPLOYMENTS, PODS, ListOptions
from karpool_fleet.tour.chapter import Chapter, Notes
from karpool_fleet.tour.manifests import budget, deployment, namespace
from karpool_fleet.tour.stage import TourStage

WHERE, POOL, SPACE = "ireland", "services", "services"
CAMPAIGN, CATALOG, PAYMENTS = 7, 6, 1
BUSY = 3  # pods of payments during the campaign
LEAST = 4  # pods of the catalog that its budget requires
SHOWN = 3  # refused moves that are shown
_COSTLY = {"controller.kubernetes.io/pod-deletion-cost": "2147483647"}
_STOP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": STOP_NAME, "namespace": STOP_NAMESPACE},
    "data": {"stop": "true"},
}


async def grow(stage: TourStage) -> None:
    """Grow the cluster for a campaign and for payments; then scale both down."""
    client = stage.members[WHERE]
    await stage.write(client, namespace(STOP_NAMESPACE), _STOP, namespace(SPACE))
    await stage.write(
        client,
        deployment(SPACE, "campaign", CAMPAIGN, cpu="3", team=SPACE),
        deployment(SPACE, "payments", BUSY, cpu="1200m", team=SPACE, annotations=_COSTLY),
        budget(SPACE, "catalog", LEAST),
    )
    await stage.until(lambda: _grown(stage), within=300)
    await client.scale(DEPLOYMENTS, "campaign", 0, namespace=SPACE)
    await client.scale(DEPLOYMENTS, "payments", PAYMENTS, namespace=SPACE)
    await stage.until(lambda: _over(stage), within=120)
    await stage.write(
        client, deployment(SPACE, "catalog", CATALOG, cpu="500m", team=SPACE, avoids="payments")
    )


async def play(stage: TourStage, notes: Notes) -> None:
    client = stage.members[WHERE]
    await stage.until(lambda: _all_run(stage), within=300)
    nodes, price = len(await stage.nodes(WHERE, POOL)), await stage.price_per_hour(WHERE, POOL)
    notes.tell(f"{WHERE}: {nodes} nodes of {POOL} cost ${price:.2f} an hour for {CATALOG + PAYMENTS} pods")
    at_least, refused = CATALOG, dict[str, RejectedMove]()

    async def finished() -> bool:
        nonlocal at_least
        at_least = min(at_least, await stage.ready(WHERE, SPACE, "catalog"))
        refused.update((move.move.id, move) for move in _refused(stage))
        return await _is_balanced(stage)

    await client.delete(CONFIGMAPS, STOP_NAME, namespace=STOP_NAMESPACE)
    notes.tell("the stop switch is off; Balanced decides with k = 2: a move needs a score of 0.50")
    balanced = await stage.until(finished, within=400)
    now, cost = len(await stage.nodes(WHERE, POOL)), await stage.price_per_hour(WHERE, POOL)
    await stage.until(lambda: _all_run(stage), within=120)
    _tell_moves(stage, notes)
    for rejected in list(refused.values())[:SHOWN]:
        notes.tell(
            f"refused: {_of(rejected.move)}; it would save ${rejected.move.savings_per_hour:.3f} an hour"
        )

    notes.figure(f"nodes of {POOL} in {WHERE}", nodes, now)
    notes.figure(f"price of {POOL} an hour", f"${price:.3f}", f"${cost:.3f}")
    done = [record for record in _records(stage) if record.phase is MovePhase.DONE]
    said = sum(record.move.savings_per_hour for record in done)
    came = sum(record.realised or 0.0 for record in done)
    notes.figure("saving an hour, said and measured", f"${said:.3f}", f"${came:.3f}")
    notes.figure("pods that were moved", 0, sum(move_record.disturbed for move_record in done))
    notes.promise(
        "nodes that are not worth their price go, and save what was said",
        balanced and now < nodes and abs(came - said) < 1e-6 and abs(price - cost - said) < 1e-6,
        f"{nodes - now} of {nodes} nodes gone, ${price - cost:.3f} an hour saved of ${price:.3f}",
    )
    running = await _running(stage)
    notes.promise(
        "no budget is broken and every pod has a place",
        at_least >= LEAST and running == CATALOG + PAYMENTS,
        f"never fewer than {at_least} of {CATALOG} pods of the catalog ran (its budget: {LEAST});"
        f" {running} of {CATALOG + PAYMENTS} pods run",
    )
    notes.promise(
        "moves that disturb more than they save are refused, with their score",
        bool(refused),
        "; ".join(_words(move) for move in list(refused.values())[:SHOWN]) or "nothing was refused",
    )


# Decisions of consolidation


def _plan(stage: TourStage) -> ConsolidationPlan | None:
    consolidator = stage.team.consolidators.get(WHERE)
    return consolidator.plan if consolidator is not None else None


def _records(stage: TourStage) -> list[MoveRecord]:
    consolidator = stage.team.consolidators.get(WHERE)
    return list(consolidator.ledger.values()) if consolidator is not None else []


def _refused(stage: TourStage) -> list[RejectedMove]:
    """Return moves that were possible and judged not worth the disruption."""
    plan = _plan(stage)
    if plan is None or plan.stopped:
        return []
    return [move for move in plan.rejected if not move.move.verdict.approved and move.move.score is not None]


def _words(refused: RejectedMove) -> str:
    move = refused.move
    return f"{', '.join(move.names)}: {refused.why[0]}" if refused.why else ", ".join(move.names)


def _of(move: Move) -> str:
    pods = f"{move.disturbed} pod{'' if move.disturbed == 1 else 's'}"
    return f"{move.kind} {', '.join(move.names)}, {pods} to move"


def _tell_moves(stage: TourStage, notes: Notes) -> None:
    for record in _records(stage):
        move = record.move
        score = "" if move.score is None else f", score {move.score:.2f}"
        notes.tell(
            f"{_of(move)}: saves ${move.savings_per_hour:.3f} an hour{score}: {str(record.phase).lower()}"
        )


# State


async def _running(stage: TourStage) -> int:
    ready = await stage.all_ready(WHERE, SPACE)
    return ready.get("catalog", 0) + ready.get("payments", 0)


async def _all_run(stage: TourStage) -> bool:
    return await _running(stage) == CATALOG + PAYMENTS


async def _grown(stage: TourStage) -> bool:
    ready = await stage.all_ready(WHERE, SPACE)
    return (ready.get("campaign"), ready.get("payments")) == (CAMPAIGN, BUSY)


async def _over(stage: TourStage) -> bool:
    """Whether the campaign has no pods left and payments are scaled down."""
    client, selected = stage.members[WHERE], ListOptions(namespace=SPACE)
    return len((await client.list(PODS, selected)).items) == PAYMENTS


async def _is_balanced(stage: TourStage) -> bool:
    """Whether something was moved, nothing is in progress, and a later plan has no move."""
    plan, records = _plan(stage), _records(stage)
    ended = [record.ended or 0.0 for record in records if record.phase.is_over]
    if plan is None or plan.stopped or not ended or len(ended) < len(records):
        return False
    return not plan.moves and plan.made_at > max(ended)


CHAPTER = Chapter(
    "balance",
    "A bloated cluster, balanced",
    "Nodes go when the saving is worth the pods it disturbs. Every move has a score, every refusal too.",
    play,
)
