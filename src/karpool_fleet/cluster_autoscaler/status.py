"""The ConfigMap `cluster-autoscaler-status`, in the YAML form that it has since 1.30."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.cluster_autoscaler.backoff import GroupFailure
from karpool_fleet.cluster_autoscaler.group_counts import GroupView, NodeCounts

NAME = "cluster-autoscaler-status"
NAMESPACE = "kube-system"
LAST_UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"

Document = dict[str, Any]
Stamp = Callable[[str, str, str], Document]  # takes the owner of a condition, its type and its status


@dataclass(frozen=True)
class GroupReport:
    view: GroupView
    healthy: bool
    backoff: GroupFailure | None
    candidates: int  # unneeded nodes

    @property
    def scale_up(self) -> str:
        if self.backoff is not None:
            return "Backoff"
        return "InProgress" if self.view.launching or self.view.starting else "NoActivity"


class Transitions:
    """Transition times of the conditions; lost on a restart."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[str, str]] = {}

    def stamp(self, now: str, whose: str, kind: str, status: str) -> Document:
        entry = self._since.get((whose, kind))
        if entry is None or entry[0] != status:
            entry = self._since[whose, kind] = (status, now)
        return {"lastProbeTime": now, "lastTransitionTime": entry[1]}


def written_at(now: float) -> str:
    """Format a time as Go prints it, for the status and its annotation."""
    moment = datetime.fromtimestamp(now, UTC)
    fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} +0000 UTC"


def initializing(now: float) -> Document:
    return {"time": written_at(now), "autoscalerStatus": "Initializing"}


def document(
    groups: Sequence[GroupReport], cluster: NodeCounts, healthy: bool, transitions: Transitions, now: float
) -> Document:
    stamp = partial(transitions.stamp, rfc3339(now))
    candidates = sum(group.candidates for group in groups)
    active = any(group.scale_up == "InProgress" for group in groups)
    wide = _conditions(
        "",
        {"status": _health(healthy), "nodeCounts": _counts(cluster)},
        {"status": "InProgress" if active else "NoActivity"},
        candidates,
        stamp=stamp,
    )
    return {
        "time": written_at(now),
        "autoscalerStatus": "Running",
        "clusterWide": wide,
        "nodeGroups": [_group(group, stamp) for group in groups],
    }


def _group(report: GroupReport, stamp: Stamp) -> Document:
    view, group = report.view, report.view.group
    health = {
        "status": _health(report.healthy),
        "nodeCounts": _counts(view.counts),
        "cloudProviderTarget": view.target,
        "minSize": group.min_size,
        "maxSize": group.max_size,
    }
    scale_up: Document = {"status": report.scale_up}
    if report.backoff is not None:
        scale_up["backoffInfo"] = {
            "errorCode": report.backoff.code,
            "errorMessage": report.backoff.message,
        }
    conditions = _conditions(group.name, health, scale_up, report.candidates, stamp=stamp)
    return {"name": group.name, **conditions}


def _conditions(
    whose: str, health: Document, scale_up: Document, candidates: int, *, stamp: Stamp
) -> Document:
    scale_down: Document = {"status": "CandidatesPresent" if candidates else "NoCandidates"}
    if candidates:
        scale_down["candidates"] = candidates
    return {
        kind: {**condition, **stamp(whose, kind, condition["status"])}
        for kind, condition in (("health", health), ("scaleUp", scale_up), ("scaleDown", scale_down))
    }


def _health(healthy: bool) -> str:
    return "Healthy" if healthy else "Unhealthy"


def _counts(counts: NodeCounts) -> Document:
    registered: Document = {
        "total": counts.registered,
        "ready": counts.ready,
        "notStarted": counts.not_started,
    }
    if counts.being_deleted:
        registered["beingDeleted"] = counts.being_deleted
    if counts.unready or counts.resource_unready:
        registered["unready"] = {"total": counts.unready, "resourceUnready": counts.resource_unready}
    return {
        "registered": registered,
        "longUnregistered": counts.long_unregistered,
        "unregistered": counts.unregistered,
    }


def text(status: Document) -> str:
    """Return block-style YAML. It is written every few seconds, so a general emitter would be too slow."""
    return "".join(_lines(status, ""))


def _lines(value: Mapping[str, Any], indent: str) -> Iterable[str]:
    for key, field in value.items():
        if isinstance(field, Mapping):
            yield f"{indent}{key}:\n"
            yield from _lines(field, indent + "  ")
        elif isinstance(field, list):
            yield f"{indent}{key}:{'' if field else ' []'}\n"
            for item in field:
                first, *rest = _lines(item, indent + "  ")
                yield f"{indent}- {first.lstrip(' ')}"
                yield from rest
        else:
            yield f"{indent}{key}: {_scalar(field)}\n"


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_RESERVED = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))


def _scalar(value: int | str) -> str:
    if isinstance(value, int) or (_PLAIN.fullmatch(value) and value.lower() not in _RESERVED):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
