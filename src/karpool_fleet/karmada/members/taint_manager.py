"""The taint manager: NoExecute taints evict bindings from a cluster.

Tolerations are read from the applied placement, so a binding that no scheduler has handled is not touched. A
toleration with seconds holds for that long after the taint was added.
"""

from contextlib import suppress
from typing import NamedTuple

import msgspec

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import NotFound
from karpool.kube.event_recorder import ref as event_ref
from karpool.kube.work_queue import Requeue
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import CLUSTERS, ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.taints import NO_EXECUTE, Taint, Toleration
from karpool_fleet.karmada.propagation.bindings import BindingFeeds, BindingRef, evict
from karpool_fleet.karmada.propagation.names import APPLIED_PLACEMENT, Object
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_version

PRODUCER, REASON = "TaintManager", "TaintUntolerated"


class Unsigned(ValueError):
    """A binding without an applied placement."""


def evict_in(cluster: Object, binding: Object, now: float) -> float | None:
    """Return the seconds until a cluster must be left, 0 for now, None for never; raises Unsigned."""
    taints = [taint for taint in cluster["spec"].get("taints") or () if taint.get("effect") == NO_EXECUTE]
    if not taints:
        return None
    text = (binding["metadata"].get("annotations") or {}).get(APPLIED_PLACEMENT)
    try:
        placement = msgspec.json.decode(text) if text else None
        given = (placement or {}).get("clusterTolerations") or []
        tolerations = decode(given, list[Toleration])
    except (msgspec.MsgspecError, AttributeError, Invalid):
        placement = None
    if placement is None:
        name = binding["metadata"]["name"]
        raise Unsigned(f"binding {name}: annotation {APPLIED_PLACEMENT} is missing or cannot be read")
    waits = [_held_for(taint, tolerations, now) for taint in taints]
    limited = [wait for wait in waits if wait is not None]
    return min(limited) if limited else None


def _held_for(taint: Object, tolerations: list[Toleration], now: float) -> float | None:
    """Return how long one taint is still tolerated; None without limit."""
    parsed = Taint(key=taint["key"], value=taint.get("value", ""), effect=taint["effect"])
    using = [toleration for toleration in tolerations if toleration.tolerates(parsed)]
    if not using:
        return 0.0
    seconds = [
        toleration.toleration_seconds for toleration in using if toleration.toleration_seconds is not None
    ]
    if not seconds:
        return None
    added = parse_rfc3339(taint["timeAdded"]) if taint.get("timeAdded") else now
    return max(0.0, added + max(0, min(seconds)) - now)


def purge_mode(spec: Object) -> str:
    cluster = (spec.get("failover") or {}).get("cluster")
    return str((cluster or {}).get("purgeMode") or "Gracefully")


class _Case(NamedTuple):
    """One binding in one cluster."""

    ref: BindingRef
    cluster: str


class TaintManager(QueueController[_Case]):
    """Upstream disables it by default; here NoExecute taints always take effect."""

    workers = 3

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._bindings = BindingFeeds(context)
        self._in_cluster: dict[str, dict[BindingRef, None]] = {}
        self._bindings.on_change(self._on_binding)
        self._clusters.on_change(self._on_cluster)

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        ref = BindingRef(*change.key)
        for name in _targets(change.old):
            self._in_cluster.get(name, {}).pop(ref, None)
        if change.object is None:
            return
        for name in _targets(change.object):
            if change.type == "DELETED":
                self._in_cluster.get(name, {}).pop(ref, None)
                continue
            self._in_cluster.setdefault(name, {})[ref] = None
            if _is_driving(self._clusters.get(ObjectKey("", name))):
                self._queue.add(_Case(ref, name))

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        if change.type != "DELETED" and _is_driving(change.object):
            for ref in self._in_cluster.get(change.key.name, ()):
                self._queue.add(_Case(ref, change.key.name))

    async def _reconcile(self, case: _Case) -> Requeue | None:
        ref, name = case
        binding = self._bindings.get(ref)
        cluster = self._clusters.get(ObjectKey("", name))
        if binding is None or cluster is None or "deletionTimestamp" in binding["metadata"]:
            return None
        if name not in _targets(binding):
            return None
        wait = evict_in(cluster, binding, self._clock.now())
        if wait is None:
            return None
        if wait > 0:
            return Requeue(wait)
        task = {"purgeMode": purge_mode(binding["spec"]), "producer": PRODUCER, "reason": REASON}
        spec = evict(binding["spec"], name, task)
        if spec is None:
            return None
        with suppress(NotFound):
            await patch_version(self._client, ref.resource, binding, {"spec": spec})
            about, message = event_ref(ref.resource, binding), f"Evict from cluster {name} succeed."
            self._context.events.record(about, "Normal", "EvictWorkloadFromClusterSucceed", message)
        return None


def _targets(binding: Object | None) -> list[str]:
    if binding is None:
        return []
    return [target["name"] for target in binding["spec"].get("clusters") or ()]


def _is_driving(cluster: Object | None) -> bool:
    taints = ((cluster or {}).get("spec") or {}).get("taints") or ()
    return any(taint.get("effect") == NO_EXECUTE for taint in taints)
