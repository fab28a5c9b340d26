"""Every kind of document that `-o json` and `-o yaml` write: which command writes it, and its shape.

Shapes are types wherever the document is made from one; see `model.document_schemas`. Keys that were written
in snake_case until 0.2 stand beside those named here for one release more, and are not described.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from karpool.cli.inspect.explain_node import NodeExplanation
from karpool.cli.inspect.get_promises import PromiseLine
from karpool.cli.inspect.top import NodeUsage
from karpool.cli.output.text import API_VERSION
from karpool.consolidation.planning.device_freeing import DeviceFreeing
from karpool.consolidation.planning.plan import ConsolidationPlan, Move, RejectedMove
from karpool.consolidation.planning.plan_file import COMPARISON
from karpool.consolidation.planning.plan_file import KIND as PLAN
from karpool.consolidation.verification.properties import PolicyVerification, ThresholdRow
from karpool.consolidation.verification.ranking_experiment import RankingExperiment
from karpool.estimator.capacity import CapacityReport
from karpool.estimator.pod_explanation import PodExplanation, PodRemark
from karpool.gpu.agent.machine import Machine
from karpool.model.catalogue.catalogue import Offering, TypeGpu
from karpool.model.contracts.contract import ContractBill
from karpool.model.document_schemas import Schema, Shape, document_schema, extended

Amounts = dict[str, int]  # of resources, in the unit Kubernetes counts them in
_Moment = str | None  # RFC 3339
_PRICES = {"provider": str, "region": str, "asOf": str}

_MOVE_SUMS: Mapping[str, Shape] = {
    "savingsPerHour": float,
    "savingsPerMonth": float,
    "disruption": float,
    "score": float | None,
    "podsDisturbed": int,
}
_PLAN = {
    "cluster": str,
    "flags": dict[str, object],
    "savingsPerHour": float,
    "savingsPerMonth": float,
    "disruption": float,
    "podsDisturbed": int,
}
_PLAN_BODY = extended(
    ConsolidationPlan,
    **_PLAN,
    **{"freedDevices?": DeviceFreeing},
    moves=[extended(Move, **_MOVE_SUMS)],
    rejected=[extended(RejectedMove, move=extended(Move, **_MOVE_SUMS))],
)
_REPORT = extended(
    CapacityReport,
    refusals=[{"plugin": str, "reason": str, "nodes": int, "resolvable": bool}],
    pricePerHour=float | None,
    listPricePerHour=float | None,
    newNodes=int,
)
_CAPACITY = {
    "workload": str,
    "quotas": [str],
    "about?": str,
    "unreadablePods": int,
    "priceGaps": [str],
    "components?": dict[str, int],
}
_SCALE_UP: dict[str, Shape] = {
    "name": str,
    "namespace": str,
    "pool": str,
    "model": str,
    "demand": str,
    "state": str,
    "reason": str,
    "message": str,
    "stateSince": _Moment,
    "firstSeen": _Moment,
    "nextAttemptAt": _Moment,
    "waiting": int,
    "waitingPods": [str],
    "epoch": int,
    "round": int,
    "units": [
        {
            "index": int,
            "gpus": int,
            "stage": str,
            "since": _Moment,
            "candidate": str,
            "claim": str,
            "node": str,
            "held": [str],
            "ended": str,
            "says": str,
        }
    ],
    "failures": dict[str, dict[str, object]],
    "badNodes": [str],
}
_INSTANCE_TYPE = {
    "name": str,
    "labels": dict[str, str],
    "capacity": Amounts,
    "allocatable": Amounts,
    "offerings": [Offering],
    "gpu?": TypeGpu,
}
_SIDE = {
    "cluster": str,
    "fingerprint": str,
    "savingsPerHour": float,
    "podsDisturbed": int,
    "moves": int,
    "rejected": int,
}
_FIGURES = dict[str, float | None]


@dataclass(frozen=True)
class DocumentKind:
    command: str
    content: Mapping[str, Shape]

    def schema(self, kind: str) -> Schema:
        return document_schema(kind, API_VERSION, self.content, f"What `karpool {self.command}` answers.")


def _flat(shape: Shape, **more: Shape) -> Mapping[str, Shape]:
    """A document whose content is that of one shape, among others."""
    return {"": shape, **more}


DOCUMENTS: Mapping[str, DocumentKind] = {
    "NodeUsageList": DocumentKind(
        "top nodes", {"cluster": str, "priceGaps": [str], "bill?": ContractBill, "items": [NodeUsage]}
    ),
    "PoolUsageList": DocumentKind(
        "top pools", {"cluster": str, "priceGaps": [str], "bill?": ContractBill, "items": [NodeUsage]}
    ),
    "GpuUsageList": DocumentKind(
        "top gpus",
        {
            "cluster": str,
            "problems": [str],
            "items": [
                {
                    "node": str,
                    "device": str,
                    "model": str | None,
                    "memoryBytes": int | None,
                    "kind": str,
                    "profile": str | None,
                    "resource": str | None,
                    "shareable": bool,
                    "handedOutBy": str,
                    "unstable": bool,
                    "holders": [{"pod": str, "units?": int, "memoryBytes?": int, "tflops?": str}],
                    "free": {"units": int | None, "memoryBytes": int | None},
                }
            ],
        },
    ),
    "PromiseList": DocumentKind(
        "get promises",
        {"context?": str, "items": [PromiseLine]},
    ),
    "ScaleUpList": DocumentKind("get scale-ups", {"cluster?": str, "items": [_SCALE_UP]}),
    "ScaleUpExplanation": DocumentKind("explain scale-up", _SCALE_UP),
    "MoveList": DocumentKind(
        "get moves",
        {
            "cluster?": str,
            "savedDollars": float | None,
            "items": [
                {
                    "name": str,
                    "phase": str,
                    "kind": str,
                    "reason": str,
                    "attempt": int,
                    "nodes": [str],
                    "kept": [str],
                    "newNodes": [str],
                    "extraNodes": [str],
                    "score": float | None,
                    "predictedSavingsPerHour": float,
                    "realisedSavingsPerHour": float | None,
                    "costDollars": float | None,
                    "savedDollars": float | None,
                    "podsDisturbed": int,
                    "podsRedisturbed": int,
                    "began": str,
                    "phaseSince": str,
                    "planCertificate?": {
                        "plannedSavingsPerHour": float,
                        "possibleSavingsPerHour": float,
                        "at": str,
                    },
                    "ended": _Moment,
                    "why": {"code": str, "message": str},
                }
            ],
        },
    ),
    "Capacity": DocumentKind("capacity", _flat(_REPORT, cluster=str, **_CAPACITY)),
    "CapacityList": DocumentKind(
        "capacity",
        {"cluster": str, "items": [extended(CapacityReport, **{**_REPORT.keys, **_CAPACITY})]},
    ),
    "PodExplanation": DocumentKind(
        "explain pod",
        _flat(
            extended(
                PodExplanation,
                cluster=str,
                report=_REPORT,
                waitsSince=_Moment,
                remarks=[extended(PodRemark, at=_Moment)],
                scaleUps=[{"name": str, "state": str}],
                priceGaps=[str],
                **{"promises?": [{"binding": str, "replicas": int}]},
            )
        ),
    ),
    "NodeExplanation": DocumentKind("explain node", _flat(NodeExplanation, cluster=str)),
    "BindingExplanation": DocumentKind(
        "explain binding",
        {
            "binding": {"kind": str, "name": str},
            "mode": str,
            "reason": str,
            "message": str,
            "clusters": list[dict[str, object]] | None,
            "affinityName?": str,
            "missing?": int,
            "attempts": [
                {
                    "affinityName": str,
                    "clusters": int,
                    "refused": [{"cluster": str, "plugin": str, "reason": str}],
                    "candidates": list[dict[str, object]],
                    "selected": list[str] | None,
                    "divisions": list[dict[str, object]],
                    "failure": str | None,
                }
            ],
            "schedulerName": str,
            "due": bool,
            "why": str,
            "inFlight": int,
        },
    ),
    PLAN: DocumentKind("plan", _flat(_PLAN_BODY)),
    COMPARISON: DocumentKind(
        "plan --threshold A --threshold B",
        {"items": [extended(ConsolidationPlan, **{**_PLAN_BODY.keys, "label": str})]},
    ),
    "ConsolidationPlanDiff": DocumentKind(
        "plan diff",
        {
            "before": _SIDE,
            "after": _SIDE,
            "savingsPerHour": float,
            "moves": [
                {
                    "change": str,
                    "kind": str,
                    "nodes": [str],
                    "before": dict[str, float] | None,
                    "after": dict[str, float] | None,
                    "why": str,
                }
            ],
        },
    ),
    "PolicyVerification": DocumentKind(
        "verify-policy",
        _flat(
            extended(
                PolicyVerification,
                thresholds=[extended(ThresholdRow, chainLength=int | float)],
                holds=bool,
                **{"ranking?": extended(RankingExperiment, shares=list[float])},
            )
        ),
    ),
    "RegionList": DocumentKind(
        "catalogue regions",
        {"items": [{"region": str, "provider": str, "zones": [str], "onDemandAsOf": str, "spotAsOf": str}]},
    ),
    "InstanceTypeList": DocumentKind("catalogue list", {**_PRICES, "items": [_INSTANCE_TYPE]}),
    "InstanceType": DocumentKind("catalogue show TYPE --region REGION", {**_PRICES, **_INSTANCE_TYPE}),
    "InstanceTypePrices": DocumentKind(
        "catalogue show TYPE",
        {
            "name": str,
            "items": [
                {
                    "region": str,
                    "provider": str,
                    "onDemandPerHour": float | None,
                    "spotPerHour": float | None,
                    "asOf": str,
                }
            ],
        },
    ),
    "PriceChangeList": DocumentKind(
        "catalogue refresh",
        {
            **_PRICES,
            "items": [{"type": str, "capacityType": str, "before": float | None, "after": float | None}],
        },
    ),
    "ContractCheck": DocumentKind(
        "contract check",
        {
            "committedPerHour": float,
            "items": [{"name": str, "kind": str, "amount": object, "holds": bool, "start": str, "end": str}],
        },
    ),
    "ScenarioList": DocumentKind("simulate --list", {"items": [{"name": str, "title": str}]}),
    "SimulationReport": DocumentKind(
        "simulate",
        {
            "title": str,
            "items": [
                {
                    "variant": str,
                    "seed": int,
                    "simulatedSeconds": float,
                    "figures": _FIGURES,
                    "clusters": dict[str, _FIGURES],
                    "times": list[float],
                    "series": dict[str, dict[str, object]],
                    "decisionLogSha256": str,
                }
            ],
            "spread?": [{"variant": str, "seeds": list[int], "figures": dict[str, dict[str, float] | None]}],
            "unmet": [str],
        },
    ),
    "Tour": DocumentKind(
        "up",
        {
            "kept": bool,
            "realSeconds": float,
            "chapters": [
                {
                    "chapter": str,
                    "title": str,
                    "kept": bool,
                    "seconds": float,
                    "error?": str,
                    "promises": [{"claim": str, "kept": bool, "seen": str}],
                    "figures": list[dict[str, object]],
                }
            ],
        },
    ),
    "MachineGpuList": DocumentKind("gpu-agent --once", _flat(Machine)),
    "SchemaList": DocumentKind("schema", {"items": [{"kind": str, "command": str}]}),
    "Version": DocumentKind("version", {"version": str, "python": str, "platform": str}),
}
