"""Pods without a node: a table with the scheduler's message for each, and one pod explained. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from karpool.dashboard.api.list_views import (
    ComingNodeRow,
    CountedReason,
    ObstacleRow,
    OfferRow,
    PodDetail,
    WaitingPodList,
    WaitingPodRow,
)
from karpool.dashboard.pages.move_sentences import counted
from karpool.dashboard.pages.paging import ListQuery, in_order, page_of
from karpool.estimator.pod_explanation import DEFAULT_SCHEDULER, PodExplanation, PodRemark, PodVerdict
from karpool.estimator.pod_sentences import arrival, next_step
from karpool.gpu.records.scale_up_record import MEANS, ScaleUpRecord
from karpool.model import resources
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.times import moment

REASONS_MAX = 20
ROWS_MAX = 50  # per table of an explanation
_SAID_MAX = 1024
# kube-scheduler: "0/14 nodes are available: 3 Insufficient cpu, 11 node(s) had untolerated taint {a: b}.
# preemption: ..."
_AVAILABLE = re.compile(r"^\d+/\d+ nodes are available: (.*)", re.DOTALL)
_GROUP = re.compile(r"(?:^|, )(\d{1,9}) ")


@dataclass(frozen=True, slots=True)
class ClusterWaiting:
    """Pending pods of a cluster. `shape_of` returns the requests of a pod, `workload_of` its owner."""

    cluster: str
    pods: Iterable[Pod]
    shape_of: Callable[[str, str], PodShape | None] = lambda namespace, name: None
    workload_of: Callable[[Pod], str] = lambda pod: ""


def _cpu(row: WaitingPodRow) -> int:
    return row.requests.get(resources.CPU, 0)


COLUMNS: Mapping[str, Callable[[WaitingPodRow], Any]] = {
    "name": lambda row: (row.name, row.namespace),
    "namespace": lambda row: (row.namespace, row.name),
    "cluster": lambda row: (row.cluster, row.namespace, row.name),
    "workload": lambda row: row.workload or None,
    "reason": lambda row: row.reason,
    "since": lambda row: row.since,
    "cpu": _cpu,
    "memory": lambda row: row.requests.get(resources.MEMORY, 0),
}


def waiting_pods(clusters: Iterable[ClusterWaiting], query: ListQuery, now: float) -> WaitingPodList:
    """Return the pods, the longest pending first unless the query sorts by a column."""
    total, rows = 0, []
    for waiting in clusters:
        for pod in waiting.pods:
            total += 1
            if query.cluster not in ("", waiting.cluster):
                continue
            row = waiting_row(waiting, pod)
            if query.finds(row.cluster, f"{row.namespace}/{row.name}", row.workload, row.reason, row.said):
                rows.append(row)
    rows.sort(key=lambda row: (row.since is None, row.since or 0.0, row.cluster, row.namespace, row.name))
    reasons = Counter(row.reason for row in rows)
    return WaitingPodList(
        at=now,
        items=page_of(in_order(rows, query, COLUMNS), query),
        matched=len(rows),
        total=total,
        offset=query.offset,
        reasons=[
            CountedReason(reason=reason, pods=number) for reason, number in reasons.most_common(REASONS_MAX)
        ],
    )


def waiting_row(waiting: ClusterWaiting, pod: Pod) -> WaitingPodRow:
    namespace, name = pod.metadata.namespace, pod.name
    shape = waiting.shape_of(namespace, name)
    scheduled = condition(pod.status.conditions, "PodScheduled")
    said = (scheduled.message or "")[:_SAID_MAX] if scheduled is not None else ""
    since = moment(scheduled.last_transition_time) if scheduled is not None else None
    return WaitingPodRow(
        cluster=waiting.cluster,
        namespace=namespace,
        name=name,
        workload=waiting.workload_of(pod),
        requests=dict(shape.requests) if shape is not None else {},
        reason=_reason(pod, said),
        said=said,
        since=since or moment(pod.metadata.creation_timestamp),
        nominated_node=pod.status.nominated_node_name,
        gates=[gate.name for gate in pod.spec.scheduling_gates or ()],
    )


def _reason(pod: Pod, said: str) -> str:
    if pod.is_terminating:
        return PodVerdict.LEAVING.value
    if pod.spec.scheduling_gates:
        return PodVerdict.GATED.value
    if pod.status.nominated_node_name:
        return "pods are being evicted for it"
    if not said:
        return f"{pod.spec.scheduler_name or DEFAULT_SCHEDULER} has not tried it yet"
    return main_reason(said)


def main_reason(said: str) -> str:
    """Return the reason that the scheduler's message gives for most nodes."""
    about = _AVAILABLE.match(said)
    text = about[1] if about else said
    text = text.partition(". preemption:")[0].rstrip(". \n")
    starts = list(_GROUP.finditer(text))
    if not starts:
        return text.partition("\n")[0][:160] or "no reason was given"
    ends = [start.start() for start in starts[1:]] + [len(text)]
    groups = [
        (int(start[1]), text[start.end() : end].strip(" ,")) for start, end in zip(starts, ends, strict=True)
    ]
    return max(groups, key=lambda group: group[0])[1][:160]


# One pod


@dataclass(frozen=True, slots=True)
class PodTraces:
    """Facts in addition to the explanation."""

    scale_ups: Iterable[ScaleUpRecord] = ()
    promised: int = 0  # replicas that are promised in the cluster and have no node yet
    price_gaps: Iterable[str] = field(default_factory=tuple)


def pod_detail(cluster: str, pod: PodExplanation, traces: PodTraces, now: float) -> PodDetail:
    steps = list(next_step(pod))
    return PodDetail(
        cluster=cluster,
        namespace=pod.namespace,
        name=pod.name,
        verdict=pod.verdict.value,
        why=steps or [f"it {pod.verdict.value}"],
        node=pod.node,
        waits_since=pod.waits_since,
        nodes=pod.nodes,
        open_nodes=pod.open_nodes,
        said=[_remark(remark, now) for remark in pod.remarks],
        obstacles=[
            ObstacleRow(
                nodes=obstacle.nodes, reason=obstacle.reason, detail=obstacle.detail, remedy=obstacle.remedy
            )
            for obstacle in pod.obstacles[:ROWS_MAX]
        ],
        offers=[
            OfferRow(
                pool=offer.name,
                outlook=offer.outlook.value,
                instance_types=list(offer.instance_types[:10]),
                price_per_hour=offer.price_per_hour,
                reasons=list(offer.reasons),
            )
            for offer in pod.offers[:ROWS_MAX]
        ],
        coming=[
            ComingNodeRow(
                claim=node.claim,
                pool=node.pool,
                node=node.node,
                stage=f"{node.stage}, {arrival(node)}",
                age_seconds=node.age_seconds,
                expected_in_seconds=node.expected_in_seconds,
                is_overdue=node.is_overdue,
                takes_pod=node.takes_pod,
            )
            for node in pod.coming[:ROWS_MAX]
        ],
        volumes=[f"{note.claim}: {note.detail}" for note in pod.volumes],
        others=list(_others(pod, traces)),
    )


def placed_pod(cluster: str, namespace: str, name: str, node: str) -> PodDetail:
    """Return the detail of a pod that has a node."""
    return PodDetail(
        cluster=cluster,
        namespace=namespace,
        name=name,
        verdict=PodVerdict.RUNS.value,
        why=[f"it runs on node {node}"],
        node=node,
        said=[],
        obstacles=[],
        offers=[],
        coming=[],
        volumes=[],
        others=[],
    )


def _others(pod: PodExplanation, traces: PodTraces) -> Iterator[str]:
    yield from (f"resource claims: {reason}" for reason in pod.resource_claims)
    yield from (f"quota {note.quota}: {note.detail}" for note in pod.quotas)
    for record in traces.scale_ups:
        yield f"scale-up {record.name} is for it: {record.state.value}, {MEANS[record.state]}"
    if traces.promised:
        yield (f"promised in this cluster and not yet on a node: {counted(traces.promised, 'replica')}")
    if pod.others_waiting:
        yield f"also waiting for a node: {counted(pod.others_waiting, 'other pod')}"
    yield from (f"no price: {gap}" for gap in traces.price_gaps)


def _remark(remark: PodRemark, now: float) -> str:
    times = f", {remark.times} times" if remark.times > 1 else ""
    when = "" if remark.at is None else f" ({max(0, round(now - remark.at))} s ago{times})"
    return f"{remark.said_by or 'somebody'}{when}: {remark.message or remark.reason}"
