"""Columns of pods, the controllers that own them, and what guards them."""

from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.printing.cell_text import (
    NONE,
    UNKNOWN,
    age,
    age_of,
    duration,
    labels,
    selector,
    shown,
)
from karpool_fleet.apiserver.printing.pod_status import pod_cells
from karpool_fleet.apiserver.printing.printer import Cell, Printer, columns, count, spec_of, status_of


def _containers(template_owner: Object) -> tuple[str, str]:
    """Names and images of a pod template's containers."""
    containers = ((template_owner.get("template") or {}).get("spec") or {}).get("containers") or ()
    return (
        ",".join(container.get("name", "") for container in containers),
        ",".join(container.get("image", "") for container in containers),
    )


def _deployment(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    return [
        f"{count(status.get('readyReplicas'))}/{count(spec.get('replicas'))}",
        count(status.get("updatedReplicas")),
        count(status.get("availableReplicas")),
        age_of(obj, now),
        *_containers(spec),
        selector(spec.get("selector")),
    ]


def _replica_set(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    return [
        count(spec.get("replicas")),
        count(status.get("replicas")),
        count(status.get("readyReplicas")),
        age_of(obj, now),
        *_containers(spec),
        selector(spec.get("selector")),
    ]


def _stateful_set(obj: Object, now: float) -> list[Cell]:
    ready = f"{count(status_of(obj).get('readyReplicas'))}/{count(spec_of(obj).get('replicas'))}"
    return [ready, age_of(obj, now), *_containers(spec_of(obj))]


def _daemon_set(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    template = (spec.get("template") or {}).get("spec") or {}
    return [
        count(status.get("desiredNumberScheduled")),
        count(status.get("currentNumberScheduled")),
        count(status.get("numberReady")),
        count(status.get("updatedNumberScheduled")),
        count(status.get("numberAvailable")),
        labels(template.get("nodeSelector")),
        age_of(obj, now),
        *_containers(spec),
        selector(spec.get("selector")),
    ]


def _job(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    done, wanted = count(status.get("succeeded")), spec.get("completions")
    if wanted is not None:
        completions = f"{done}/{wanted}"
    else:
        parallel = count(spec.get("parallelism"))
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    return [
        _job_status(obj),
        completions,
        _job_duration(status, now),
        age_of(obj, now),
        *_containers(spec),
        selector(spec.get("selector")),
    ]


def _job_status(obj: Object) -> str:
    true = {c.get("type") for c in status_of(obj).get("conditions") or () if c.get("status") == "True"}
    for condition, word in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition in true:
            return word
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else "Running"


def _job_duration(status: Object, now: float) -> str:
    if not status.get("startTime"):
        return ""
    end = parse_rfc3339(status["completionTime"]) if status.get("completionTime") else now
    return duration(end - parse_rfc3339(status["startTime"]))


def _cron_job(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    last = status.get("lastScheduleTime")
    return [
        spec.get("schedule") or "",
        shown(spec.get("timeZone")),
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()),
        age(last, now) if last else NONE,
        age_of(obj, now),
        *_containers((spec.get("jobTemplate") or {}).get("spec") or {}),
        selector(((spec.get("jobTemplate") or {}).get("spec") or {}).get("selector")),
    ]


def _controller_revision(obj: Object, now: float) -> list[Cell]:
    owners = obj["metadata"].get("ownerReferences") or ()
    owner = next((entry for entry in owners if entry.get("controller")), None)
    named = NONE
    if owner is not None:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        named = f"{owner.get('kind', '').lower()}{'.' + group if group else ''}/{owner.get('name')}"
    return [named, count(obj.get("revision")), age_of(obj, now)]


def _autoscaler(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    target = spec.get("scaleTargetRef") or {}
    return [
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _autoscaler_metrics(spec, status),
        str(spec.get("minReplicas", "<unset>")),
        count(spec.get("maxReplicas")),
        count(status.get("currentReplicas")),
        age_of(obj, now),
    ]


def _autoscaler_metrics(spec: Object, status: Object) -> str:
    if "targetCPUUtilizationPercentage" in spec:
        current = status.get("currentCPUUtilizationPercentage")
        actual = UNKNOWN if current is None else f"{current}%"
        return f"cpu: {actual}/{spec['targetCPUUtilizationPercentage']}%"
    listed = []
    current_metrics = status.get("currentMetrics") or ()
    for index, metric in enumerate(spec.get("metrics") or ()):
        source = metric.get("resource") or {}
        target = source.get("target") or {}
        actual = UNKNOWN
        if index < len(current_metrics):
            current = ((current_metrics[index] or {}).get("resource") or {}).get("current") or {}
            if current.get("averageUtilization") is not None:
                actual = f"{current['averageUtilization']}%"
            elif current.get("averageValue") is not None:
                actual = str(current["averageValue"])
        percent = target.get("averageUtilization")
        goal = f"{percent}%" if percent is not None else str(target.get("averageValue") or UNKNOWN)
        listed.append(f"{source.get('name', metric.get('type', ''))}: {actual}/{goal}")
    more = f" + {len(listed) - 2} more..." if len(listed) > 2 else ""
    return ", ".join(listed[:2]) + more or NONE


def _disruption_budget(obj: Object, now: float) -> list[Cell]:
    spec, status = spec_of(obj), status_of(obj)
    return [
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        count(status.get("disruptionsAllowed")),
        age_of(obj, now),
    ]


WORKLOADS: dict[tuple[str, str], Printer] = {
    ("", "Pod"): Printer(
        columns("Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*"), pod_cells
    ),
    ("", "ReplicationController"): Printer(
        columns("Desired,Current,Ready,Age,Containers*,Images*,Selector*", "Desired,Current,Ready"),
        _replica_set,
    ),
    ("apps", "Deployment"): Printer(
        columns("Ready,Up-to-date,Available,Age,Containers*,Images*,Selector*", "Up-to-date,Available"),
        _deployment,
    ),
    ("apps", "ReplicaSet"): Printer(
        columns("Desired,Current,Ready,Age,Containers*,Images*,Selector*", "Desired,Current,Ready"),
        _replica_set,
    ),
    ("apps", "StatefulSet"): Printer(columns("Ready,Age,Containers*,Images*"), _stateful_set),
    ("apps", "DaemonSet"): Printer(
        columns(
            "Desired,Current,Ready,Up-to-date,Available,Node Selector,Age,Containers*,Images*,Selector*",
            "Desired,Current,Ready,Up-to-date,Available",
        ),
        _daemon_set,
    ),
    ("apps", "ControllerRevision"): Printer(
        columns("Controller,Revision,Age", "Revision"), _controller_revision
    ),
    ("batch", "Job"): Printer(columns("Status,Completions,Duration,Age,Containers*,Images*,Selector*"), _job),
    ("batch", "CronJob"): Printer(
        columns("Schedule,Timezone,Suspend,Active,Last Schedule,Age,Containers*,Images*,Selector*", "Active"),
        _cron_job,
    ),
    ("policy", "PodDisruptionBudget"): Printer(
        columns("Min Available,Max Unavailable,Allowed Disruptions,Age", "Allowed Disruptions"),
        _disruption_budget,
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        columns("Reference,Targets,MinPods,MaxPods,Replicas,Age", "MaxPods,Replicas"), _autoscaler
    ),
}
