"""The Job controller: runs pods to completion, counts each end once, and reports the result.

The rules are in `job_rules`. A finished Job with `ttlSecondsAfterFinished` is deleted automatically.
"""

from collections.abc import Sequence
from functools import partial

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import changed_fields, condition_of, upsert_condition
from karpool.kube.api.decoding import Object
from karpool.kube.errors import KubeError
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import JOBS, PODS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import delete_object, owner_reference, patch_object, patch_version
from karpool_fleet.workloads.controller import BURST, GATHER_SECONDS, WorkloadController, slow_start
from karpool_fleet.workloads.dependents import controller_of, key_of
from karpool_fleet.workloads.job_rules import (
    FINALIZER,
    INDEX,
    JobTally,
    JobVerdict,
    counts_of,
    free_indexes,
    is_indexed,
    next_start,
    tally,
    verdict,
    wanted_active,
)
from karpool_fleet.workloads.ownership import claim
from karpool_fleet.workloads.pods import new_pod, prefix_for, removal_order

_TARGETS = {True: "SuccessCriteriaMet", False: "FailureTarget"}
_ENDS = {True: "Complete", False: "Failed"}


def finished_at(obj: Object) -> float | None:
    """Return when the Job finished; None before."""
    for condition_type in _ENDS.values():
        condition = condition_of((obj.get("status") or {}).get("conditions"), condition_type)
        if condition is not None and condition.get("status") == "True":
            return parse_rfc3339(condition["lastTransitionTime"])
    return None


def decided(obj: Object) -> JobVerdict | None:
    """Return the announced end, which is final."""
    for success, condition_type in _TARGETS.items():
        condition = condition_of((obj.get("status") or {}).get("conditions"), condition_type)
        if condition is not None and condition.get("status") == "True":
            return JobVerdict(success, condition.get("reason", ""), condition.get("message", ""))
    return None


class JobController(WorkloadController):
    resource = JOBS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # Uids of Jobs with pods that hold a finalizer, by key.
        self._left: dict[ObjectKey, dict[str, None]] = {}
        self._strays: dict[
            ObjectKey, dict[ObjectKey, None]
        ] = {}  # pods with finalizer and without a controller, by namespace
        self._pods = self.watch(PODS, Pod)
        context.informers.of(PODS, Pod).on_change(self._on_pod)

    async def reconcile(self, key: ObjectKey) -> Requeue | None:
        obj = self.owners.get(key)
        await self._release_left(key, obj["metadata"]["uid"] if obj is not None else "")
        if obj is None:
            return None
        if (ended := finished_at(obj)) is not None:
            await self._release(self._pods.of(obj["metadata"]["uid"]))
            return await self._expire(obj, ended)
        await claim(self.client, self.resource, obj, self._pods)
        pods = self._pods.of(obj["metadata"]["uid"])
        if "deletionTimestamp" in obj["metadata"]:
            await self._release(pods)
            return None
        return await self._advance(obj, pods)

    async def _advance(self, obj: Object, pods: Sequence[Pod]) -> Requeue | None:
        spec, now = obj["spec"], self.clock.now()
        count = tally(spec, obj.get("status") or {}, pods)
        end = decided(obj) or verdict(obj, count, now)
        error: KubeError | None = None
        wait: float | None = None
        if count.to_release:
            # Write the status before removing the finalizer: see `job_rules`.
            obj = await self._write(obj, self._status(obj, count, end, final=False))
            await self._release(count.to_release)
            pods = self._pods.of(obj["metadata"]["uid"])
            count = tally(spec, obj.get("status") or {}, pods)
        if end is not None:
            error = await self._remove(obj, count.active)
        else:
            error, wait = await self._adjust(obj, count, pods)
        pods = self._pods.of(obj["metadata"]["uid"])
        count = tally(spec, obj.get("status") or {}, pods)
        final = end is not None and not (count.active or count.terminating or count.notes)
        obj = await self._write(obj, self._status(obj, count, end, final=final))
        if error is not None:
            raise error
        return _sooner(wait, _deadline_in(obj, now))

    async def _adjust(
        self, obj: Object, count: JobTally, pods: Sequence[Pod]
    ) -> tuple[KubeError | None, float | None]:
        """Create or delete pods; return an error, and the seconds until the next attempt."""
        missing = wanted_active(obj["spec"], count) - len(count.active)
        if missing < 0:
            going = removal_order(count.active, count.active, self.clock.now())[:-missing]
            return await self._remove(obj, going), None
        if missing == 0:
            return None, None
        wait = next_start(pods) - self.clock.now()
        if wait > 0:
            return None, wait
        return await self._create(obj, count, min(missing, BURST)), None

    async def _create(self, obj: Object, count: JobTally, many: int) -> KubeError | None:
        if not is_indexed(obj["spec"]):
            works = [partial(self._create_one, obj, None)] * many
        else:
            works = [
                partial(self._create_one, obj, index) for index in free_indexes(obj["spec"], count, many)
            ]
        return await self.create_all(obj, works)

    async def _create_one(self, obj: Object, index: int | None) -> None:
        meta = obj["metadata"]
        base = meta["name"] if index is None else f"{meta['name']}-{index}"
        reference = owner_reference(self.resource, obj)

        def build(name: str) -> Object:
            template = obj["spec"]["template"]
            pod = new_pod(template, reference, meta["namespace"], name, generate_name=prefix_for(base))
            pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", ()), FINALIZER]
            if index is not None:
                _number(pod, index, base)
            return pod

        await self.create_pod(self._pods, obj, base, build)

    async def _remove(self, obj: Object, pods: Sequence[Pod]) -> KubeError | None:
        return await slow_start([partial(self.delete_pod, self._pods, obj, pod) for pod in pods])

    async def _release(self, pods: Sequence[Pod]) -> None:
        """Remove our finalizer from pods whose end is recorded, or no longer matters."""
        for pod in pods:
            meta = pod.metadata
            if FINALIZER not in (meta.finalizers or ()):
                continue
            kept = [finalizer for finalizer in meta.finalizers or () if finalizer != FINALIZER]
            answer = await patch_object(self.client, PODS, pod, {"metadata": {"finalizers": kept or None}})
            if answer is None:
                self._pods.forget(key_of(meta), meta.uid)
            else:
                self._pods.assume(answer)

    async def _release_left(self, key: ObjectKey, present: str) -> None:
        """Release pods of deleted Jobs and orphaned pods, which are no longer counted."""
        for uid in list(self._left.get(key, ())):
            if uid != present:
                await self._release(self._pods.of(uid))
                del self._left[key][uid]
        for pod_key in self._strays.pop(key, {}):
            pod = self._pods.get(pod_key)
            if pod is not None and controller_of(pod.metadata) is None:
                await self._release([pod])

    def _status(self, obj: Object, count: JobTally, end: JobVerdict | None, *, final: bool) -> Object:
        before: Object = obj.get("status") or {}
        now = rfc3339(self.clock.now())
        status = counts_of(obj["spec"], count)
        conditions: list[Object] = list(before.get("conditions") or ())
        suspended = bool(obj["spec"].get("suspend"))
        if suspended or condition_of(conditions, "Suspended"):
            conditions = upsert_condition(conditions, _suspension(suspended), now)
        if not suspended:
            status["startTime"] = before.get("startTime") or now
        if end is not None:
            about = {"status": "True", "reason": end.reason, "message": end.message}
            conditions = upsert_condition(conditions, {"type": _TARGETS[end.success], **about}, now)
            if final:
                conditions = upsert_condition(conditions, {"type": _ENDS[end.success], **about}, now)
                if end.success:
                    status["completionTime"] = now
                self.record(obj, "Normal" if end.success else "Warning", _event(end), end.message)
        if conditions:
            status["conditions"] = conditions
        return status

    async def _write(self, obj: Object, status: Object) -> Object:
        """Write the status; fails if the Job has changed, because the counts build on the last ones."""
        patch = changed_fields(obj.get("status") or {}, status)
        if not patch:
            return obj
        answer = await patch_version(self.client, self.resource, obj, {"status": patch}, status=True)
        self.owners.assume(answer, obj)
        return answer

    async def _expire(self, obj: Object, ended: float) -> Requeue | None:
        ttl = obj["spec"].get("ttlSecondsAfterFinished")
        if ttl is None or "deletionTimestamp" in obj["metadata"]:
            return None
        wait = ended + ttl - self.clock.now()
        if wait > 0:
            return Requeue(wait)
        await delete_object(self.client, self.resource, obj, propagation="Background")
        return None

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        """Remember which Jobs, by uid, have pods under a key: a deleted Job is not in the cache."""
        pod = change.object
        if pod is None or change.type == "DELETED" or FINALIZER not in (pod.metadata.finalizers or ()):
            return
        controller = controller_of(pod.metadata)
        if controller is None:
            stray = ObjectKey(change.key.namespace, "")
            self._strays.setdefault(stray, {})[change.key] = None
            self.queue.add_after(stray, GATHER_SECONDS)
        elif controller.kind == JOBS.kind:
            self._left.setdefault(ObjectKey(change.key.namespace, controller.name), {})[controller.uid] = None


def _number(pod: Object, index: int, hostname: str) -> None:
    """Set annotation, label, variable and host name of an indexed pod."""
    meta = pod["metadata"]
    meta["annotations"] = {**meta.get("annotations", {}), INDEX: str(index)}
    meta["labels"] = {**meta.get("labels", {}), INDEX: str(index)}
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    spec = dict(pod["spec"])
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [
                {**container, "env": [*(container.get("env") or ()), variable]} for container in spec[field]
            ]
    spec["hostname"] = hostname
    pod["spec"] = spec


def _suspension(suspended: bool) -> Object:
    return {
        "type": "Suspended",
        "status": "True" if suspended else "False",
        "reason": "JobSuspended" if suspended else "JobResumed",
        "message": "The Job is suspended" if suspended else "The Job goes on",
    }


def _event(end: JobVerdict) -> str:
    return "Completed" if end.success else end.reason


def _deadline_in(obj: Object, now: float) -> float | None:
    deadline, started = obj["spec"].get("activeDeadlineSeconds"), (obj.get("status") or {}).get("startTime")
    if deadline is None or not started or finished_at(obj) is not None:
        return None
    wait = parse_rfc3339(started) + deadline - now
    return wait if wait > 0 else None


def _sooner(*waits: float | None) -> Requeue | None:
    due = [wait for wait in waits if wait is not None]
    return Requeue(min(due)) if due else None
