"""The STATUS word of a pod, and the rest of its table row.

The word is the phase, replaced by the most informative state of its containers, as in `kubectl get pods`.
"""

from typing import Any

from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.printing.cell_text import NONE, age, age_of


def pod_cells(obj: Object, now: float) -> list[Any]:
    """Ready, status, restarts, age, address, node, nominated node, readiness gates."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    reason, ready, total, restarts = _summary(obj, spec, status, now)
    return [
        f"{ready}/{total}",
        reason,
        restarts,
        age_of(obj, now),
        _address(status),
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def _summary(obj: Object, spec: Object, status: Object, now: float) -> tuple[str, int, int, str]:
    containers, inits = spec.get("containers") or (), spec.get("initContainers") or ()
    sidecars = {c.get("name") for c in inits if c.get("restartPolicy") == "Always"}
    total = len(containers) + len(sidecars)
    reason = status.get("reason") or status.get("phase") or "Unknown"
    if reason == status.get("phase") and _gated(status):
        reason = "SchedulingGated"
    init_reason, sidecar_ready, init_restarts, init_last = _init_state(spec, status, sidecars)
    ready, restarts, last = sidecar_ready, init_restarts, init_last
    if init_reason:
        reason = init_reason
    else:
        statuses = status.get("containerStatuses") or ()
        reason, main_ready = _main_state(statuses, reason, status)
        ready += main_ready
        own = [entry for entry in status.get("initContainerStatuses") or () if entry.get("name") in sidecars]
        restarts = sum(entry.get("restartCount") or 0 for entry in (*statuses, *own))
        last = max((_finished(entry) for entry in (*statuses, *own)), default="")
    if obj["metadata"].get("deletionTimestamp"):
        reason = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    text = f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)
    return reason, ready, total, text


def _gated(status: Object) -> bool:
    return any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in status.get("conditions") or ()
    )


def _init_state(spec: Object, status: Object, sidecars: set[Any]) -> tuple[str, int, int, str]:
    """Return what blocks initialisation ("" if nothing does), ready sidecars, restarts, and the last one."""
    inits = spec.get("initContainers") or ()
    ready = restarts = 0
    last = ""
    for index, entry in enumerate(status.get("initContainerStatuses") or ()):
        restarts += entry.get("restartCount") or 0
        last = max(last, _finished(entry))
        state = entry.get("state") or {}
        ended = state.get("terminated")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if entry.get("name") in sidecars and entry.get("started"):
            ready += bool(entry.get("ready"))
            continue
        if ended is not None:
            return f"Init:{_ended(ended)}", ready, restarts, last
        waiting = (state.get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}", ready, restarts, last
        return f"Init:{index}/{len(inits)}", ready, restarts, last
    return "", ready, restarts, last


def _main_state(statuses: Any, reason: str, status: Object) -> tuple[str, int]:
    ready, running = 0, False
    for entry in reversed(list(statuses)):
        state = entry.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended is not None:
            reason = _ended(ended)
        elif entry.get("ready") and state.get("running") is not None:
            running = True
            ready += 1
    if reason == "Completed" and running:
        conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
        reason = "Running" if conditions.get("Ready") == "True" else "NotReady"
    return reason, ready


def _ended(state: Object) -> str:
    if state.get("reason"):
        return str(state["reason"])
    if state.get("signal"):
        return f"Signal:{state['signal']}"
    return f"ExitCode:{state.get('exitCode', 0)}"


def _finished(entry: Object) -> str:
    last = ((entry.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
    return str(last or "")


def _address(status: Object) -> str:
    addresses = status.get("podIPs")
    if addresses:
        return str(addresses[0].get("ip") or NONE)
    return str(status.get("podIP") or NONE)


def _gates(spec: Object, status: Object) -> str:
    gates = spec.get("readinessGates") or ()
    if not gates:
        return NONE
    met = {c.get("type") for c in status.get("conditions") or () if c.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in met for gate in gates)}/{len(gates)}"
