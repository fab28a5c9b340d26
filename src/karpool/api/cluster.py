"""A cluster that is read once, from a file or through its API, and answers questions about that moment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from karpool.api.answers import Answer, CommandAnswer, KarpoolError, Row
from karpool.api.waiting import own_errors, wait_for
from karpool.cli.cluster_source import LoadedCluster
from karpool.cli.inspect import capacity as capacity_command
from karpool.cli.inspect import explain_node, top
from karpool.cli.inspect import plan as plan_command
from karpool.cli.inspect.workload_source import Workload, workloads_of_file, workloads_of_objects
from karpool.cli.options.cluster import ClusterOptions
from karpool.cli.output.listing import ListingForm, render_listing
from karpool.cluster.cluster import Cluster
from karpool.consolidation.execution.stop_switch import StopSwitch
from karpool.consolidation.execution.validation import what_if
from karpool.consolidation.planning.comparison import PlanAlternative, label_of, overrides
from karpool.consolidation.planning.plan import ConsolidationPlan, Move, MovedPod
from karpool.consolidation.policy.kept_node import KeptNode
from karpool.consolidation.policy.options import PlanOptions
from karpool.consolidation.policy.policy import PolicyName
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, view_of
from karpool.estimator.capacity import CapacityPlace, CapacityReport, CapacityVerdict
from karpool.estimator.plugins.interface import EXISTING_NODES
from karpool.manager.options import read_fields, read_options
from karpool.model.infeasible import Infeasible

_OF_THE_CLUSTER = ("region", "catalogue", "contract", "contract_cluster")  # set when the cluster is opened
WorkloadSource = str | PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class CountAnswer(Answer):
    """How many replicas fit: `now` on existing nodes, and at most with new nodes."""

    now: int
    most: int

    @property
    def rows(self) -> Sequence[Row]:
        return ({"now": self.now, "most": self.most},)

    def to_dict(self) -> dict[str, Any]:
        return {"now": self.now, "most": self.most}

    def __int__(self) -> int:
        return self.now

    def __str__(self) -> str:
        return f"{self.now} now, {self.most} at most"


@dataclass(frozen=True, repr=False)
class FitAnswer(CommandAnswer):
    """Whether the replicas fit: now, after scale-up, or not."""

    report: CapacityReport

    @property
    def fits(self) -> bool:
        """Whether the replicas fit now or after a scale-up."""
        return self.report.verdict in (CapacityVerdict.NOW, CapacityVerdict.AFTER_SCALE_UP)

    @property
    def verdict(self) -> CapacityVerdict:
        return self.report.verdict

    @property
    def most(self) -> int:
        return self.report.most

    @property
    def places(self) -> tuple[CapacityPlace, ...]:
        return self.report.places

    @property
    def new_nodes(self) -> int:
        return self.report.new_nodes

    @property
    def price_per_hour(self) -> float | None:
        """Price of the new nodes in $; None without new nodes, or if a price is not known."""
        return self.report.price_per_hour


@dataclass(frozen=True, repr=False)
class PlanAnswer(CommandAnswer):
    """The nodes to remove. Its rows are the moves."""

    plan: ConsolidationPlan

    @property
    def moves(self) -> tuple[Move, ...]:
        return self.plan.moves

    @property
    def held(self) -> tuple[KeptNode, ...]:
        return self.plan.held

    @property
    def savings_per_hour(self) -> float:
        return sum(move.savings_per_hour for move in self.plan.moves)


@dataclass(frozen=True, repr=False)
class WhatIfAnswer(CommandAnswer):
    """The effect of removing nodes, whatever keeps them. Its rows are the pods and their destinations."""

    nodes: tuple[str, ...]
    move: Move | None
    why_not: tuple[Infeasible[ConsolidationReason], ...] = ()

    @property
    def possible(self) -> bool:
        return self.move is not None


@dataclass(frozen=True, repr=False)
class ExplainAnswer(CommandAnswer):
    """Why a node is removed or stays."""

    explanation: explain_node.NodeExplanation

    @property
    def verdict(self) -> str:
        return self.explanation.verdict


@dataclass(frozen=True, repr=False)
class UsageAnswer(CommandAnswer):
    """The usage of nodes or pools."""

    entries: tuple[top.NodeUsage, ...]


class OpenCluster:
    """One cluster at one moment. `refresh` reads it again."""

    def __init__(self, options: ClusterOptions, market: capacity_command.MarketOptions) -> None:
        self._options, self._market = options, market
        self.refresh()

    def refresh(self) -> None:
        """Read the file, or list the live cluster, again."""
        switch = StopSwitch()
        with own_errors():
            aspects = capacity_command.ASPECTS | ASPECTS
            picture = capacity_command.capacity_picture(self._market, aspects=aspects)
            loaded = wait_for(picture.load(self._options, (switch.watch,)))
        self._capacity = picture
        self._picture: Cluster = picture.cluster
        self._loaded: LoadedCluster = loaded
        self._now = picture.clock.now()
        self._stop = switch.reason()

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what could not be read."""
        return (*self._loaded.problems, *map(str, self._picture.snapshot(self._now).problems))

    def __repr__(self) -> str:
        nodes = len(self._picture.snapshot(self._now).nodes)
        return f"<karpool cluster {self.name}: {nodes} nodes>"

    def nodes(self) -> UsageAnswer:
        """Return requests, free capacity and price of every node, as `karpool top nodes`."""
        return self._usage("nodes")

    def pools(self) -> UsageAnswer:
        """The same by NodePool, as `karpool top pools`."""
        return self._usage("pools")

    def count(self, workload: WorkloadSource, *, namespace: str = "") -> CountAnswer:
        """Return how many replicas of a workload fit."""
        report = self.capacity(workload, namespace=namespace).report
        now = sum(place.room for place in report.places if place.name == EXISTING_NODES)
        return CountAnswer(now, report.most)

    def capacity(
        self, workload: WorkloadSource, replicas: int | None = None, *, namespace: str = ""
    ) -> FitAnswer:
        """Return whether a workload fits, as `karpool capacity`. The workload is a file or an object."""
        with own_errors():
            flags: dict[str, Any] = {"namespace": namespace}
            if replicas is not None:
                flags["replicas"] = replicas
            replicas = read_options(capacity_command.CapacityOptions, flags).replicas
            workloads = _workloads_of(workload, namespace)
            (answer,) = capacity_command.answer_in_order(
                workloads, replicas, self._capacity, self._loaded.closed
            )
        cluster = self._capacity.cluster
        text, document = (
            capacity_command.render(
                [answer], form, cluster.snapshot(self._now), self.name, cluster.market.gaps()
            )
            for form in ("wide", "json")
        )
        report = answer.report
        return FitAnswer(text, document, tuple(map(_row_of, report.places)), report)

    def plan(self, policy: str | None = None, threshold: int | None = None, **settings: Any) -> PlanAnswer:
        """Return the nodes to remove, as `karpool plan`.

        Settings are its flags: `min_savings_per_hour=0.5`.
        """
        with own_errors():
            options = _plan_options(policy, threshold, settings)
            (override,) = overrides(options.policies, options.thresholds)
            planned = plan_command.planned(
                self._planned(), options.settings(override, heed_budgets=options.heed_budgets)
            )
        alternatives = [PlanAlternative(label_of(override), override, planned)]
        text, document = (
            plan_command.render(alternatives, options, self.name, form) for form in ("wide", "json")
        )
        return PlanAnswer(text, document, tuple(map(_row_of_move, planned.moves)), planned)

    def what_if(self, *nodes: str) -> WhatIfAnswer:
        """Return the effect of removing exactly these nodes, whatever keeps them; scores do not decide."""
        if not nodes:
            raise KarpoolError("what_if needs the name of at least one node")
        nodes = tuple(dict.fromkeys(map(str, nodes)))  # a node that is named twice goes once
        with own_errors():
            outcome = what_if(self._planned().view, nodes, PlanSettings(), self._now)
        move = outcome if isinstance(outcome, Move) else None
        why_not = () if isinstance(outcome, Move) else outcome
        rows = tuple(map(_row_of_pod, move.pods)) if move else ()
        if move is not None:
            lines = [f"without {', '.join(nodes)}:", *explain_node.scores(move), *explain_node.pods_of(move)]
        else:
            lines = [f"{', '.join(nodes)} cannot go:", *(f"  {why.detail}" for why in why_not)]
        content = {"nodes": nodes, "move": move, "why_not": [why.detail for why in why_not]}
        document = msgspec.json.encode(content).decode()
        return WhatIfAnswer("\n".join(lines), document, rows, nodes, move, why_not)

    def explain(self, node: str) -> ExplainAnswer:
        """Return whether consolidation would remove a node and what keeps it, as `karpool explain node`."""
        with own_errors():
            explanation = explain_node.explained(node, self._planned(), PlanSettings())
        text, document = (explain_node.render(explanation, form, self.name) for form in ("table", "json"))
        rows = tuple({"node": node, "why": why.detail} for why in explanation.why)
        return ExplainAnswer(text, document, rows, explanation)

    def _planned(self) -> plan_command.PlannedCluster:
        view = view_of(
            self._picture.snapshot(self._now), self._now, stop=self._stop, problems=self._loaded.problems
        )
        return plan_command.PlannedCluster(view, self._now, self._loaded, self._picture.market.gaps())

    def _usage(self, what: str) -> UsageAnswer:
        snapshot = self._picture.snapshot(self._now)
        entries = top.usage_of(snapshot)
        if what == "pools":
            entries = top.by_pool(entries, snapshot.pool_objects)
        listing = top.usage_listing(snapshot, self.name, pools=what == "pools")
        text, document = (render_listing(listing, ListingForm(form)) for form in ("wide", "json"))
        return UsageAnswer(text, document, tuple(map(_row_of_usage, entries)), tuple(entries))


def open_cluster(
    snapshot: str | PathLike[str] | None = None,
    *,
    context: str = "",
    kubeconfig: str | PathLike[str] | None = None,
    region: str = "",
    catalogue: str | PathLike[str] | None = None,
    contract: str | PathLike[str] | None = None,
    contract_cluster: str = "",
) -> OpenCluster:
    """Open a snapshot file (or YAML or JSON of objects); without one, the live cluster of a context."""
    with own_errors():
        options = ClusterOptions(
            snapshot=Path(snapshot) if snapshot is not None else None,
            kubeconfig=Path(kubeconfig) if kubeconfig is not None else None,
            context=context,
        )
        market = capacity_command.MarketOptions(
            region=region,
            catalogue=Path(catalogue) if catalogue is not None else None,
            contract=Path(contract) if contract is not None else None,
            contract_cluster=contract_cluster,
        )
    return OpenCluster(options, market)


def _workloads_of(workload: WorkloadSource, namespace: str) -> list[Workload]:
    if isinstance(workload, Mapping):
        workloads = workloads_of_objects([dict(workload)], namespace, (), "the given object")
    else:
        workloads = workloads_of_file(Path(workload), namespace, ())
    if len(workloads) > 1:
        raise KarpoolError(f"{workload}: has {len(workloads)} objects with pods; ask about one at a time")
    return workloads


def _plan_options(policy: str | None, threshold: int | None, settings: Mapping[str, Any]) -> PlanOptions:
    named = {"policies": [policy] if policy else [], "thresholds": [threshold] if threshold else []}
    names = [name for name in PlanOptions.__struct_fields__ if name not in (*named, *_OF_THE_CLUSTER)]
    if unknown := settings.keys() - set(names):
        raise KarpoolError(
            f"plan has no {', '.join(sorted(unknown))}; it has policy, threshold, {', '.join(names)}"
        )
    if policy is not None and policy not in set(PolicyName):
        raise KarpoolError(f"policy: {policy!r} is not one of {', '.join(PolicyName)}")
    return read_fields(PlanOptions, {**settings, **named})


def _row_of(place: CapacityPlace) -> Row:
    return {
        "where": place.name,
        "fits": str(place.outlook),
        "replicas": place.replicas,
        "room": place.room,
        "new_nodes": place.nodes,
        "types": ", ".join(place.instance_types),
        "price_per_hour": place.price_per_hour,
        "why_not_more": "; ".join(place.reasons),
    }


def _row_of_move(move: Move) -> Row:
    return {
        "move": move.id,
        "kind": str(move.kind),
        "nodes": ", ".join(move.names),
        "pods": len(move.pods),
        "new_nodes": len(move.new_nodes),
        "savings_per_hour": move.savings_per_hour,
        "disruption": move.disruption,
        "score": move.score,
    }


def _row_of_pod(pod: MovedPod) -> Row:
    elsewhere = "nowhere" if pod.new_node is None else f"new node {pod.new_node}"
    return {"pod": pod.pod, "from": pod.source, "to": pod.node or elsewhere, "cost": pod.cost}


def _row_of_usage(entry: top.NodeUsage) -> Row:
    fields = asdict(entry)
    requested, allocatable = fields.pop("requested"), fields.pop("allocatable")
    shares = {
        f"{resource}_{what}": amounts.get(resource, 0)
        for resource in allocatable
        for what, amounts in (("requested", requested), ("allocatable", allocatable))
    }
    return {**fields, **shares}
