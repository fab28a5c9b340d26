"""Bindings as a flow from workloads to clusters, with the scheduler's message for each.

Pure: the caller passes the what-if result to `detail`.
"""

from collections.abc import Iterable

from karpool.dashboard.api.views import (
    ClusterShare,
    DecisionStep,
    PlacementDetail,
    PlacementList,
    PlacementRow,
)
from karpool.model.karmada.binding import Binding
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.times import moment
from karpool.scheduler.cycle import explanation
from karpool.scheduler.cycle.binding_store import BindingVersion
from karpool.scheduler.cycle.components import desired_of
from karpool.scheduler.cycle.what_if import WhatIf
from karpool.scheduler.promises.landed_replicas import landing_of
from karpool.scheduler.promises.ledger import PromiseLedger

SHOWN_MAX = 1000
_LINES_MAX = 200
_FIRST_OF_A_STEP = ("filter:", "candidates,", "select:", "divide", "failed:", "affinity group")


def placements(versions: Iterable[BindingVersion], ledger: PromiseLedger | None, now: float) -> PlacementList:
    """Return the bindings, unplaced ones first, then by name."""
    rows = sorted(versions, key=lambda version: version.head.key)
    items = sorted((placement(version, ledger) for version in rows), key=lambda row: row.state == "placed")
    return PlacementList(at=now, items=items[:SHOWN_MAX], left_out=max(0, len(items) - SHOWN_MAX))


def placement(version: BindingVersion, ledger: PromiseLedger | None) -> PlacementRow:
    key, binding = version.head.key, version.binding
    if binding is None:
        return PlacementRow(
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            template="",
            replicas=0,
            shares=[],
            state="unreadable",
            reason="Invalid",
            message=str(version.problem),
            scheduler=version.head.scheduler_name,
            strategy="",
        )
    state, reason, message = _state(binding)
    template = binding.template
    return PlacementRow(
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        template=f"{template.kind} {template.namespace}/{template.name}".replace(" /", " "),
        replicas=binding.replicas or sum(component.replicas for component in binding.components),
        shares=_shares(binding, ledger),
        state=state,
        reason=reason,
        message=message,
        scheduler=binding.scheduler_name,
        strategy=str(binding.placement.strategy),
        since=moment(binding.last_scheduled_time),
    )


def _shares(binding: Binding, ledger: PromiseLedger | None) -> list[ClusterShare]:
    desired = desired_of(binding, binding.targets)
    told = {status.cluster: status for status in binding.aggregated}
    promised = ledger.promises_of(binding.key) if ledger is not None else {}
    return [
        ClusterShare(
            cluster=target.name,
            replicas=sum(desired.get(target.name, (target.replicas,))),
            ready=landing_of(binding.template, told.get(target.name)).ready,
            promised=promised[target.name].replicas if target.name in promised else 0,
        )
        for target in binding.targets
    ]


def _state(binding: Binding) -> tuple[str, str, str]:
    scheduled = condition(list(binding.conditions), "Scheduled")
    if binding.is_suspended:
        return "suspended", "Suspended", "scheduling is suspended in its policy"
    if scheduled is None:
        return "waiting", "", f"{binding.scheduler_name} has not scheduled it yet"
    reason, message = scheduled.reason or "", scheduled.message or ""
    if scheduled.status != "True":
        return "failed", reason, message
    if binding.generation != binding.observed_generation:
        return "waiting", reason, "it changed since it was scheduled"
    return "placed", reason, message


def detail(
    version: BindingVersion, what_if: WhatIf, ledger: PromiseLedger | None, *, asked_estimators: bool
) -> PlacementDetail:
    return PlacementDetail(
        placement=placement(version, ledger),
        verdict=f"{what_if.decision.reason}: {what_if.decision.message}",
        due=what_if.is_due,
        why=what_if.trigger.why,
        steps=steps(explanation.text(what_if.decision)),
        asked_estimators=asked_estimators,
    )


def steps(text: str) -> list[DecisionStep]:
    """Split the explanation of a decision into its steps."""
    what_if: list[tuple[str, list[str]]] = []
    lines = [line for line in text.splitlines()[1:] if line.strip()]
    for line in lines[:_LINES_MAX]:
        starts = not line.startswith(" ") and line.startswith(_FIRST_OF_A_STEP)
        if starts or not what_if:
            title, _, rest = line.partition(":")
            what_if.append((title, [rest.strip()] if rest.strip() else []))
        else:
            what_if[-1][1].append(line)
    if len(lines) > _LINES_MAX:
        what_if.append((f"{len(lines) - _LINES_MAX} more lines", []))
    return [DecisionStep(title=title, lines=held) for title, held in what_if]
