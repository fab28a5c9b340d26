"""Status patches as kubelets write them: pods that start, run and end; nodes that are ready.

Pure: a status follows from the pod and the time. Times are RFC 3339.
"""

from typing import Any

from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod

Status = dict[str, Any]


def condition_patch(kind: str, status: str, reason: str, now: str, message: str = "") -> Status:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


def is_ready(pod: Pod) -> bool:
    ready = condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def starting(pod: Pod, now: str) -> Status:
    """Return the status of a bound pod that pulls images and creates containers."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "phase": "Pending",
        "startTime": now,
        "conditions": [
            condition_patch("Initialized", "True", "", now),
            condition_patch("ContainersReady", "False", "ContainersNotReady", now, _unready(pod)),
            condition_patch("Ready", "False", "ContainersNotReady", now, _unready(pod)),
        ],
        "containerStatuses": _containers(pod, waiting, ready=False),
    }


def running(pod: Pod, started: str, now: str, *, ready: bool) -> Status:
    reason, message = ("", "") if ready else ("ContainersNotReady", _unready(pod))
    status = "True" if ready else "False"
    return {
        "phase": "Running",
        "startTime": started,
        "podIP": _address(pod),
        "podIPs": [{"ip": _address(pod)}],
        "conditions": [
            condition_patch("Initialized", "True", "", started),
            condition_patch("ContainersReady", status, reason, now, message),
            condition_patch("Ready", status, reason, now, message),
        ],
        "containerStatuses": _containers(pod, {"running": {"startedAt": now}}, ready=ready),
    }


def ended(pod: Pod, now: str, *, succeeded: bool) -> Status:
    reason = "PodCompleted" if succeeded else "PodFailed"
    done = {
        "terminated": {
            "exitCode": 0 if succeeded else 1,
            "reason": "Completed" if succeeded else "Error",
            "startedAt": pod.status.start_time or now,
            "finishedAt": now,
        }
    }
    return {
        "phase": "Succeeded" if succeeded else "Failed",
        "conditions": [
            condition_patch("ContainersReady", "False", reason, now),
            condition_patch("Ready", "False", reason, now),
        ],
        "containerStatuses": _containers(pod, done, ready=False),
    }


def node_ready(now: str) -> Status:
    return {
        "conditions": [
            condition_patch("Ready", "True", "KubeletReady", now, "kubelet is posting ready status")
        ],
    }


def _containers(pod: Pod, state: Status, *, ready: bool) -> list[Status]:
    return [
        {
            "name": container.name,
            "image": container.image,
            "imageID": container.image,
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        }
        for container in pod.spec.containers or ()
    ]


def _unready(pod: Pod) -> str:
    names = " ".join(container.name for container in pod.spec.containers or ())
    return f"containers with unready status: [{names}]"


def _address(pod: Pod) -> str:
    """Return an address for the pod; it is always the same."""
    number = int(pod.metadata.uid.replace("-", "")[:6] or "1", 16)
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
