"""The ReplicaSet controller: keeps the requested number of pods, and never more.

`status_of` and `pods.removal_order` decide; the controller adopts, creates, deletes and reports. Its own
recent writes count as seen (see `dependents`).
"""

from collections.abc import Sequence
from functools import partial

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import upsert_condition, without_condition
from karpool.kube.api.decoding import Object
from karpool.kube.errors import KubeError
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import PODS, REPLICASETS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_active
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import owner_reference
from karpool_fleet.workloads.controller import BURST, WorkloadController, slow_start
from karpool_fleet.workloads.ownership import claim
from karpool_fleet.workloads.pods import (
    available_in,
    is_available,
    is_ready,
    new_pod,
    prefix_for,
    removal_order,
)

FAILURE = "ReplicaFailure"


def status_of(obj: Object, pods: Sequence[Pod], failure: Object | None, now: float) -> Object:
    """Return the status of a ReplicaSet with these pods; `failure` is the current error."""
    spec = obj["spec"]
    wanted_labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    min_ready = spec.get("minReadySeconds") or 0
    active = [pod for pod in pods if is_active(pod)]
    counts = {
        "fullyLabeledReplicas": sum(wanted_labels.items() <= pod.labels.items() for pod in active),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": sum(is_available(pod, min_ready, now) for pod in active),
    }
    conditions = list((obj.get("status") or {}).get("conditions") or ())
    if failure is None:
        conditions = without_condition(conditions, FAILURE)
    else:
        conditions = upsert_condition(conditions, failure, rfc3339(now))
    status: Object = {"replicas": len(active), "observedGeneration": obj["metadata"].get("generation", 0)}
    status |= {field: count for field, count in counts.items() if count}
    if conditions:
        status["conditions"] = conditions
    return status


class ReplicaSetController(WorkloadController):
    resource = REPLICASETS

    def __init__(self, context: Context) -> None:
        self._siblings: dict[str, dict[ObjectKey, str]] = {}  # by uid of their controller
        super().__init__(context)
        self._pods = self.watch(PODS, Pod)

    async def reconcile(self, key: ObjectKey) -> Requeue | None:
        obj = self.owners.get(key)
        if obj is None:
            return None
        await claim(self.client, self.resource, obj, self._pods)
        pods = self._pods.of(obj["metadata"]["uid"])
        error: KubeError | None = None
        missing = 0
        if "deletionTimestamp" not in obj["metadata"]:
            active = [pod for pod in pods if is_active(pod)]
            missing = obj["spec"].get("replicas", 1) - len(active)
            if missing > 0:
                error = await self._create(obj, min(missing, BURST))
            elif missing < 0:
                error = await self._delete(obj, active, min(-missing, BURST))
            pods = self._pods.of(obj["metadata"]["uid"])
        now = self.clock.now()
        await self.write_status(obj, status_of(obj, pods, _failure(error, missing), now))
        if error is not None:
            raise error
        if abs(missing) > BURST:
            return Requeue(0)
        wait = available_in(pods, obj["spec"].get("minReadySeconds") or 0, now)
        return Requeue(wait) if wait is not None else None

    async def _create(self, obj: Object, count: int) -> KubeError | None:
        meta = obj["metadata"]
        reference = owner_reference(self.resource, obj)
        prefix = prefix_for(meta["name"])

        def build(name: str) -> Object:
            return new_pod(obj["spec"]["template"], reference, meta["namespace"], name, generate_name=prefix)

        create = partial(self.create_pod, self._pods, obj, meta["name"], build)
        return await self.create_all(obj, [create] * count)

    async def _delete(self, obj: Object, active: Sequence[Pod], count: int) -> KubeError | None:
        going = removal_order(active, self._related(obj), self.clock.now())[:count]

        error = await slow_start([partial(self.delete_pod, self._pods, obj, pod) for pod in going])
        if error is not None:
            self.record(obj, "Warning", "FailedDelete", f"Error deleting: {error}")
        return error

    def _related(self, obj: Object) -> list[Pod]:
        """Return the pods of all ReplicaSets of the same Deployment, or else its own."""
        uids = self._siblings.get(_controller_uid(obj), {}).values() or (obj["metadata"]["uid"],)
        return [pod for uid in uids for pod in self._pods.of(uid)]

    def _on_change(self, change: ObjectChange[Object]) -> None:
        if change.object is not None:
            family = _controller_uid(change.object)
            if family and change.type == "DELETED":
                members = self._siblings.get(family, {})
                members.pop(change.key, None)
                if not members:
                    self._siblings.pop(family, None)
            elif family:
                members = self._siblings.setdefault(family, {})
                members[change.key] = change.object["metadata"]["uid"]
        super()._on_change(change)


def _controller_uid(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _failure(error: KubeError | None, missing: int) -> Object | None:
    if error is None:
        return None
    reason = "FailedCreate" if missing > 0 else "FailedDelete"
    return {"type": FAILURE, "status": "True", "reason": reason, "message": str(error)}
