"""`karpool plan`: which nodes should go, what that saves, whom it disturbs, and why the others stay."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from karpool.cli.cluster_source import LoadedCluster, load_cluster
from karpool.cli.inspect.plan_diff import diff
from karpool.cli.options.cluster import ClusterOptions, cluster_options, output_option
from karpool.cli.options.parameters import with_options
from karpool.cli.output import plan_html, plan_markdown, plan_text
from karpool.cli.output.progress_line import working
from karpool.cli.output.text import columns, emit, machine, note, pluralize, printable
from karpool.cluster.cluster import Cluster
from karpool.consolidation.bound.certificate import certified
from karpool.consolidation.execution.stop_switch import StopSwitch
from karpool.consolidation.methods.method import SearchProgress
from karpool.consolidation.planning.comparison import PlanAlternative, label_of, overrides
from karpool.consolidation.planning.device_freeing import DeviceFreeing, free_devices
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.plan_file import COMPARISON, KIND, SavedPlan, to_document
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.options import PlanOptions
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, ClusterView, view_of
from karpool.kube.clock import RealClock
from karpool.model.documents import document_of
from karpool.model.kubernetes.pod import Pod
from karpool.provisioning.market_file import market_of


@dataclass(frozen=True)
class PlannedCluster:
    """A cluster as it was at one moment, and what it is called."""

    view: ClusterView
    now: float
    loaded: LoadedCluster
    price_gaps: Sequence[str] = ()
    freeing: DeviceFreeing | None = None  # where it was asked for

    @property
    def cluster(self) -> str:
        return self.loaded.name


@click.group(
    invoke_without_command=True,
    epilog="Examples: karpool plan --context prod -o wide;  "
    "karpool plan --snapshot prod.json --threshold 1 --threshold 2 --threshold 3 -o html > plan.html",
)
@output_option("table", "wide", "json", "yaml", "html", "markdown")
@with_options(PlanOptions, "options")
@cluster_options
def plan(
    output: str,
    options: PlanOptions,
    cluster: ClusterOptions,
) -> None:
    """Show which nodes could be removed: each move with score, savings and pods, and why other nodes stay.

    Only reads. Save the plan with -o json and execute it with `karpool apply`.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    planned_cluster = asyncio.run(
        load_planned_cluster(
            cluster,
            options.region,
            options.catalogue,
            options.contract,
            options.contract_cluster,
            free=options.free_devices,
        )
    )
    if not planned_cluster.view.machines:
        note(f"there are no nodes in {planned_cluster.cluster}; is that the cluster you mean?")
    elif lacking := planned_cluster.loaded.lacking:
        note(
            f"{planned_cluster.cluster} contains no {', '.join(lacking)}: if the cluster has any, "
            "the plan ignores them; `karpool snapshot` saves all kinds"
        )
    alternatives = [
        PlanAlternative(
            label_of(override),
            override,
            planned(planned_cluster, options.settings(override, heed_budgets=options.heed_budgets)),
        )
        for override in overrides(options.policies, options.thresholds)
    ]
    emit(render(alternatives, options, planned_cluster.cluster, output, planned_cluster.freeing))
    for gap in planned_cluster.price_gaps:
        if output in ("table", "wide"):
            emit(f"no price: {gap}")
        else:
            note(f"no price: {gap}")  # beside the document, which stays one
    for problem in alternatives[0].plan.problems:
        note(f"skipped: {problem}")


plan.add_command(diff)


def planned(planned_cluster: PlannedCluster, settings: PlanSettings) -> ConsolidationPlan:
    """With its certificate."""
    clock = RealClock()
    start = clock.monotonic()

    def elapsed() -> float:
        return clock.monotonic() - start

    view, now = planned_cluster.view, planned_cluster.now
    progress = SearchProgress()
    with working("searching", looking=lambda: said(progress, len(view.machines), settings.deadline_seconds)):
        plan = plan_consolidation(view, settings, now, elapsed=elapsed, progress=progress)
        return certified(plan, view, settings, now, elapsed=elapsed)


def said(progress: SearchProgress, nodes: int, deadline_seconds: float | None) -> str:
    """How far a search is, the most telling first: a narrow terminal cuts the end."""
    most = f"; {deadline_seconds:g} s at most" if deadline_seconds is not None else ""
    if not progress.passes:
        return f"searching among {pluralize(nodes, 'node')}{most}"
    return (
        f"looked at {progress.looked_at:,} of {pluralize(progress.candidates, 'candidate')},"
        f" saves ${progress.savings_per_hour:,.2f} per hour so far; pass {progress.passes}{most}"
    )


async def load_planned_cluster(
    cluster: ClusterOptions,
    region: str,
    catalogue: Path | None = None,
    contract: Path | None = None,
    contract_cluster: str | None = "",
    *,
    free: bool = False,
) -> PlannedCluster:
    """`contract_cluster`: None for whoever acts and does not tell other clusters. `free`: also with what
    could be done so that devices are free."""
    market = market_of(catalogue, region, contract, contract_cluster=contract_cluster)
    picture = Cluster(ASPECTS, market=market, keeps=_has_node if free else None)
    switch = StopSwitch()
    loaded = await load_cluster(cluster, picture, (switch.watch,))
    now = RealClock().now() if loaded.as_of is None else loaded.as_of
    view = view_of(picture.snapshot(now), now, stop=switch.reason(), problems=loaded.problems)
    freeing = free_devices(picture, picture.kept_pods, now) if free else None
    return PlannedCluster(view, now, loaded, picture.market.gaps(), freeing)


def _has_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name)


def render(
    alternatives: Sequence[PlanAlternative],
    options: PlanOptions,
    cluster: str,
    output: str,
    freeing: DeviceFreeing | None = None,
) -> str:
    """`freeing` is of the cluster, whatever the policy."""
    text = _rendered(alternatives, options, cluster, output, freeing)
    if freeing is None or output not in ("table", "wide"):
        return text
    return f"{text}\n\n{plan_text.freed_devices(freeing, wide=output == 'wide')}"


def _rendered(
    alternatives: Sequence[PlanAlternative],
    options: PlanOptions,
    cluster: str,
    output: str,
    freeing: DeviceFreeing | None,
) -> str:
    if output == "html":
        return plan_html.report(alternatives, cluster, freeing)
    if output == "markdown":
        return plan_markdown.report(alternatives, cluster, freeing)
    if output in ("json", "yaml"):
        freed = {} if freeing is None else {"freedDevices": document_of(freeing)}
        documents = [
            to_document(SavedPlan(plan_alternative.plan, options.saved(plan_alternative.override), cluster))
            | freed
            for plan_alternative in alternatives
        ]
        if len(alternatives) == 1:
            return machine(KIND, documents[0], output)
        labelled = [
            {"label": alternative.label, **document}
            for alternative, document in zip(alternatives, documents, strict=True)
        ]
        return machine(COMPARISON, {"items": labelled}, output)
    if len(alternatives) == 1:
        return plan_text.render(alternatives[0].plan, wide=output == "wide", cluster=cluster)
    parts = [f"{columns(*plan_text.comparison_table(alternatives))}\n\nplans of {printable(cluster)}"]
    if output == "wide":
        parts += [
            f"== {alternative.label}\n{plan_text.render(alternative.plan, wide=True)}"
            for alternative in alternatives
        ]
    return "\n\n".join(parts)
