"""`karpool apply PLAN`: carry out a saved plan, if it still holds."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import click

from karpool.cli.cluster_source import connect
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.inspect.plan import PlannedCluster, load_planned_cluster
from karpool.cli.options.cluster import ClusterOptions, connection_options
from karpool.cli.options.parameters import with_options
from karpool.cli.output import plan_text
from karpool.cli.output.text import columns, emit, note, pluralize
from karpool.consolidation.execution.controller import ConsolidatorSettings
from karpool.consolidation.execution.plan_application import apply as apply_moves
from karpool.consolidation.execution.record import MovePhase, MoveRecord, PlanBound, bound_of
from karpool.consolidation.execution.validation import PlanCheck, check_plan
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.planning.plan_file import SavedPlan, read_plan
from karpool.consolidation.policy.options import saved_options
from karpool.consolidation.policy.settings import PlanSettings
from karpool.manager.options import Catalogue, ContractFile, Duration, Options, option

Execute = Callable[[ClusterOptions, Sequence[Move], PlanSettings, PlannedCluster], Awaitable[None]]


class ApplyOptions(Options, frozen=True):
    dry_run: Annotated[bool, option("Only check whether the plan is still valid.")] = False
    partial: Annotated[bool, option("Execute the moves that are still valid and skip the others.")] = False
    strict: Annotated[bool, option("Refuse the plan if anything that it depended on has changed.")] = False
    max_age_seconds: Annotated[
        Duration, option("Refuse a plan older than this; 0 accepts any age.", flag="max-age")
    ] = 3600.0
    # Never those that the plan names: plans come from others.
    catalogue: Catalogue = None
    contract: ContractFile = None


@click.command(epilog="Example: karpool plan -o json > plan.json; karpool apply plan.json --dry-run")
@click.argument("plan", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@with_options(ApplyOptions, "options")
@connection_options
def apply(plan: Path, options: ApplyOptions, cluster: ClusterOptions) -> None:
    """Execute a plan that `karpool plan -o json` saved. A stale plan is refused.

    Every move is validated again on the current cluster, including budgets.
    """
    saved = read_plan(plan)
    execute = partial(carry_out, bound=bound_of(saved.plan))
    asyncio.run(applied(saved, cluster, options, execute=execute))


async def applied(
    saved: SavedPlan, cluster: ClusterOptions, options: ApplyOptions, *, execute: Execute | None = None
) -> PlanCheck:
    """Raises Failed for a stale plan, and Invalid for flags that cannot be read."""
    made_with = saved_options(saved.flags)
    seen = await load_planned_cluster(cluster, made_with.region, options.catalogue, options.contract, None)
    settings = made_with.settings(made_with.override, heed_budgets=made_with.heed_budgets)
    check = check_plan(
        saved.plan, seen.view, settings, seen.now, max_age_seconds=options.max_age_seconds or None
    )
    emit(render(check))
    if reason := objection(check, partial=options.partial, strict=options.strict):
        raise CommandFailed(reason)
    if saved.cluster and seen.cluster != saved.cluster:
        note(f"the plan is for {saved.cluster}, this is {seen.cluster}; the nodes are the same")
    if not options.dry_run and check.good:
        if execute is None:
            raise CommandFailed("nothing here can execute moves; use --dry-run")
        await execute(cluster, check.good, settings, seen)
    return check


async def carry_out(
    cluster: ClusterOptions,
    moves: Sequence[Move],
    settings: PlanSettings,
    seen: PlannedCluster,
    *,
    bound: PlanBound | None = None,
) -> None:
    """Write the moves down, and wait until they are over. Raises Failed when one did not come about."""
    options = ConsolidatorSettings(plan=replace(settings, heed_budgets=True, deadline_seconds=None))
    async with connect(cluster) as client:
        records = await apply_moves(
            client, moves, seen.view, options, bound=bound, told=lambda record: note(_line(record))
        )
    failed = [record for record in records if record.phase is not MovePhase.DONE]
    if failed:
        raise CommandFailed(
            f"{len(failed)} of {pluralize(len(records), 'move')} were not executed; see karpool get moves"
        )


def _line(record: MoveRecord) -> str:
    why = f": {record.message}" if record.message else ""
    return f"{record.phase}: {', '.join(record.nodes)}{why}"


def objection(check: PlanCheck, *, partial: bool, strict: bool) -> str:
    """Why nothing is done; empty when something is."""
    if check.too_old is not None:
        return check.too_old.detail
    if strict and not check.unchanged:
        return "the cluster has changed since the plan was made; make a new plan, or leave out --strict"
    if check.refused and not partial:
        number = f"{len(check.refused)} of {pluralize(len(check.moves), 'move')}"
        return f"the plan is stale: {number} are no longer valid; make a new plan, or use --partial"
    return ""


def render(check: PlanCheck) -> str:
    if not check.moves:
        return "the plan has no moves"
    rows = []
    for move in check.moves:
        why = check.refused.get(move.id, ())
        verdict = "; ".join(reason.detail for reason in why) or "holds"
        rows.append([*plan_text.move_row(move, wide=False), verdict])
    return columns([*plan_text.move_table((), wide=False)[0], "NOW"], rows)
