"""Writes the Grafana dashboards of deploy/grafana: python tools/build_dashboards.py

A board is rows of panels; a panel is a title, a unit and its queries. The layout, the data source
variable and everything else that Grafana wants is the same for all of them and made here.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    title: str
    queries: dict[str, str]  # legend to expression
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""


@dataclass(frozen=True)
class Board:
    name: str
    title: str
    rows: dict[str, tuple[Panel, ...]]
    variables: dict[str, str]  # name to a metric that has it as label


def rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}[$__rate_interval]))" if by else summed(metric)


def summed(metric: str) -> str:
    return f"sum(rate({metric}[$__rate_interval]))"


def quantile(q: float, metric: str, *by: str) -> str:
    labels = ", ".join((*by, "le"))
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def hours(metric: str, *by: str) -> str:
    total = f"increase({metric}[1h])"
    return f"sum by ({', '.join(by)}) ({total})" if by else f"sum({total})"


_CLUSTER = '{cluster=~"$cluster"}'
_POOL = '{nodepool=~"$nodepool"}'
_GPU = '{pool=~"$pool"}'
_ESTIMATING = "karmada_scheduler_estimator_estimating"
_SCHEDULING = "karmada_scheduler"
_CONSOLIDATING = "karpool_consolidation"
_DISRUPTION = "karpenter_voluntary_disruption"

BOARDS = (
    Board(
        "estimator",
        "Karpool / Fleet capacity",
        {
            "Clusters": (
                Panel(
                    "Counted clusters",
                    {"counted": f"sum(karpool_estimator_cluster_synced{_CLUSTER})"},
                    kind="stat",
                    about="Clusters of which every node and pod is known.",
                ),
                Panel("Nodes", {"{{cluster}}": f"karpool_estimator_cluster_nodes{_CLUSTER}"}),
                Panel(
                    "Pods without a node",
                    {"{{cluster}}": f"karpool_estimator_cluster_unschedulable_pods{_CLUSTER}"},
                ),
                Panel(
                    "Time since last heard of",
                    {"{{cluster}}": f"karpool_estimator_cluster_staleness_seconds{_CLUSTER}"},
                    "s",
                ),
            ),
            "What does not count at present": (
                Panel(
                    "Failed pools",
                    {
                        "{{cluster}} {{pool}} {{cause}}": "max by (cluster, provider, pool, cause) "
                        f"(karpool_estimator_failed_pools{_CLUSTER})"
                    },
                    about="Pools and node groups that launch nothing; they are tried again later.",
                ),
                Panel(
                    "Offerings out of stock",
                    {"{{cluster}}": f"sum by (cluster) (karpool_estimator_failed_offerings{_CLUSTER})"},
                ),
                Panel(
                    "Objects that could not be understood",
                    {"{{cluster}}": f"karpool_estimator_cluster_skipped_objects{_CLUSTER}"},
                ),
            ),
            "Requests": (
                Panel(
                    "Requests",
                    {"{{type}} {{result}}": rate(f"{_ESTIMATING}_request_total", "type", "result")},
                    "reqps",
                ),
                Panel(
                    "Time of an estimate",
                    {
                        "p50": quantile(0.5, f"{_ESTIMATING}_algorithm_duration_seconds"),
                        "p99": quantile(0.99, f"{_ESTIMATING}_algorithm_duration_seconds"),
                    },
                    "s",
                ),
                Panel(
                    "Time of plugins, p99",
                    {
                        "{{estimating_plugin}}": quantile(
                            0.99, f"{_ESTIMATING}_plugin_execution_duration_seconds", "estimating_plugin"
                        )
                    },
                    "s",
                ),
                Panel(
                    "Answers by kind",
                    {"{{type}} {{answer}}": rate("karpool_estimator_answers_total", "type", "answer")},
                    "reqps",
                ),
                Panel(
                    "Refused requests",
                    {"{{reason}}": rate("karpool_estimator_rejected_requests_total", "reason")},
                    "reqps",
                ),
            ),
        },
        {"cluster": "karpool_estimator_cluster_synced"},
    ),
    Board(
        "scheduling",
        "Karpool / Scheduling",
        {
            "Decisions": (
                Panel(
                    "Attempts",
                    {"{{result}}": rate(f"{_SCHEDULING}_schedule_attempts_total", "result")},
                    "ops",
                ),
                Panel(
                    "Time to a written result",
                    {
                        "p50": quantile(0.5, f"{_SCHEDULING}_e2e_scheduling_duration_seconds"),
                        "p99": quantile(0.99, f"{_SCHEDULING}_e2e_scheduling_duration_seconds"),
                    },
                    "s",
                ),
                Panel(
                    "Time of steps, p99",
                    {
                        "{{schedule_step}}": quantile(
                            0.99, f"{_SCHEDULING}_scheduling_algorithm_duration_seconds", "schedule_step"
                        )
                    },
                    "s",
                ),
                Panel(
                    "Without a place, by reason",
                    {"{{reason}}": rate("karpool_scheduler_failures_total", "reason")},
                    "ops",
                ),
            ),
            "Queue": (
                Panel("Bindings that wait", {"{{queue}}": "sum by (queue) (scheduler_pending_bindings)"}),
                Panel(
                    "Queued, by cause",
                    {"{{event}}": rate(f"{_SCHEDULING}_queue_incoming_bindings_total", "event")},
                    "ops",
                ),
                Panel(
                    "Woken because of room", {"bindings": summed("karpool_scheduler_woken_bindings_total")}
                ),
                Panel(
                    "Writes",
                    {"{{what}} {{result}}": rate("karpool_scheduler_writes_total", "what", "result")},
                ),
                Panel(
                    "Leaders", {"leading": "sum(karpool_scheduler_leading)"}, kind="stat", about="Must be 1."
                ),
            ),
            "Promises": (
                Panel(
                    "Promised replicas",
                    {"{{cluster}}": f"sum by (cluster) (karpool_scheduler_promised_replicas{_CLUSTER})"},
                    about="Placed, and not known to have landed.",
                ),
                Panel(
                    "Bindings with promises",
                    {"{{cluster}}": f"sum by (cluster) (karpool_scheduler_promises{_CLUSTER})"},
                ),
                Panel("Oldest promise", {"age": "max(karpool_scheduler_oldest_promise_seconds)"}, "s"),
                Panel(
                    "Released, by reason",
                    {"{{reason}}": rate("karpool_scheduler_promises_released_total", "reason")},
                    "ops",
                ),
                Panel(
                    "Estimators that cannot be reached",
                    {"clusters": "max(karpool_scheduler_unreachable_estimators)"},
                ),
            ),
            "Descheduler": (
                Panel("Replicas taken back", {"replicas": hours("karpool_descheduler_replicas_total")}),
                Panel(
                    "Bindings looked at", {"{{result}}": rate("karpool_descheduler_bindings_total", "result")}
                ),
            ),
        },
        {"cluster": "karpool_scheduler_promised_replicas"},
    ),
    Board(
        "consolidation",
        "Karpool / Consolidation",
        {
            "Cost": (
                Panel(
                    "Price of nodes per hour",
                    {"{{nodepool}}": f"sum by (nodepool) (karpenter_nodepools_cost_total{_POOL})"},
                    "currencyUSD",
                ),
                Panel(
                    "Saved per hour, since the start",
                    {
                        "predicted": f"sum({_CONSOLIDATING}_predicted_savings_dollars_per_hour_total)",
                        "realised": f"sum({_CONSOLIDATING}_realised_savings_dollars_per_hour_total)",
                        "lost": f"sum({_CONSOLIDATING}_realised_losses_dollars_per_hour_total)",
                        "paid for nothing, $": f"sum({_CONSOLIDATING}_move_cost_dollars_total)",
                    },
                    "currencyUSD",
                ),
                Panel(
                    "Saved by the moves on record",
                    {"bill without them less bill with them": f"sum({_CONSOLIDATING}_saved_dollars)"},
                    "currencyUSD",
                ),
                Panel(
                    "Moves whose saving is not known",
                    {"moves": hours(f"{_CONSOLIDATING}_unmeasured_moves_total")},
                    about="A price is missing.",
                ),
            ),
            "Churn": (
                Panel(
                    "Pods disturbed in an hour",
                    {
                        "disturbed": hours(f"{_CONSOLIDATING}_pods_disturbed_total"),
                        "again within 10 minutes": hours(f"{_CONSOLIDATING}_pods_redisturbed_total"),
                    },
                ),
                Panel(
                    "Nodes taken in an hour",
                    {
                        "{{nodepool}} {{reason}}": hours(
                            f"karpenter_nodeclaims_disrupted_total{_POOL}", "nodepool", "reason"
                        )
                    },
                ),
                Panel(
                    "Nodes that may go now",
                    {"{{nodepool}} {{reason}}": f"karpenter_nodepools_allowed_disruptions{_POOL}"},
                ),
            ),
            "Moves": (
                Panel("Under way", {"{{phase}}": f"sum by (phase) ({_CONSOLIDATING}_moves_in_flight)"}),
                Panel(
                    "Ended in an hour",
                    {
                        "{{outcome}} {{decision}} {{reason}}": hours(
                            f"{_CONSOLIDATING}_move_outcomes_total", "outcome", "decision", "reason"
                        )
                    },
                ),
                Panel(
                    "Decided in an hour",
                    {
                        "{{decision}} {{nodepool}}": hours(
                            f"karpenter_consolidation_moves_total{_POOL}", "decision", "nodepool"
                        )
                    },
                ),
                Panel(
                    "Scores",
                    {"{{le}}": rate("karpenter_consolidation_score_bucket", "le")},
                    kind="heatmap",
                    about="Saving by disruption, both as fractions; a move is worth it from 1/k on.",
                ),
                Panel(
                    "Did not hold any more",
                    {"{{reason}}": hours(f"{_DISRUPTION}_failed_validations_total", "reason")},
                ),
                Panel(
                    "Time to plan, p99",
                    {"p99": quantile(0.99, f"{_DISRUPTION}_decision_evaluation_duration_seconds")},
                    "s",
                ),
                Panel(
                    "Stopped",
                    {
                        "by the switch": f"max({_CONSOLIDATING}_stopped)",
                        "pools closed": f"sum({_CONSOLIDATING}_nodepool_closed{_POOL})",
                    },
                    kind="stat",
                ),
            ),
        },
        {"nodepool": "karpenter_nodepools_cost_total"},
    ),
    Board(
        "gpu",
        "Karpool / GPU",
        {
            "Demand": (
                Panel(
                    "Workers that wait",
                    {"{{pool}} {{model}}": f"sum by (pool, model) (karpool_gpu_scaling_demand_items{_GPU})"},
                ),
                Panel(
                    "Longest wait",
                    {
                        "{{pool}} {{model}}": "max by (pool, model) "
                        f"(karpool_gpu_scaling_demand_oldest_seconds{_GPU})"
                    },
                    "s",
                ),
                Panel("Scale-ups by state", {"{{state}}": "sum by (state) (karpool_gpu_scaling_requests)"}),
                Panel(
                    "No new node would help",
                    {
                        "{{pool}} {{reason}}": hours(
                            f"karpool_gpu_scaling_rejected_total{_GPU}", "pool", "reason"
                        )
                    },
                ),
            ),
            "Nodes": (
                Panel(
                    "Attempts in an hour",
                    {
                        "{{pool}} {{result}} {{reason}}": hours(
                            f"karpool_gpu_scaling_results_total{_GPU}", "pool", "result", "reason"
                        )
                    },
                ),
                Panel(
                    "Success rate",
                    {"since the start": "min(karpool_gpu_scaling_success_rate)"},
                    "percentunit",
                ),
                Panel(
                    "Time by stage, p90",
                    {"{{stage}}": quantile(0.9, "karpool_gpu_nodeclaim_provision_duration_seconds", "stage")},
                    "s",
                ),
            ),
            "Smart pods": (
                Panel(
                    "There are",
                    {"{{pool}} {{model}}": f"sum by (pool, model) (karpool_gpu_smart_pods_active{_GPU})"},
                ),
                Panel(
                    "Overdue",
                    {"overdue": "max(karpool_gpu_smart_pods_overdue)"},
                    kind="stat",
                    about="Must be 0.",
                ),
                Panel("Held devices", {"{{pool}}": f"sum by (pool) (karpool_gpu_scaling_holds{_GPU})"}),
                Panel(
                    "Gone, by reason",
                    {"{{reason}}": hours(f"karpool_gpu_smart_pods_deleted_total{_GPU}", "reason")},
                ),
            ),
        },
        {"pool": "karpool_gpu_smart_pods_active"},
    ),
)


def render(board: Board) -> Json:
    panels: list[Json] = []
    top = 0
    for title, row in board.rows.items():
        panels.append(_row(title, top, len(panels) + 1))
        top += 1
        for index, panel in enumerate(row):
            if index and index % 3 == 0:
                top += 8
            panels.append(_panel(panel, 8 * (index % 3), top, len(panels) + 1))
        top += 8
    return {
        "uid": f"karpool-{board.name}",
        "title": board.title,
        "tags": ["karpool"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), *(_variable(*pair) for pair in board.variables.items())]},
        "panels": panels,
    }


def _row(title: str, top: int, number: int) -> Json:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, left: int, top: int, number: int) -> Json:
    heat = panel.kind == "heatmap"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                **({"format": "heatmap"} if heat else {}),
            }
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _data_source() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, metric: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values({metric}, {name})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def text(board: Board) -> str:
    return json.dumps(render(board), indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"karpool-{board.name}.json").write_text(text(board))
