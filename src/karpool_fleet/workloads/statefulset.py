"""The StatefulSet controller: numbered pods, each with its name and its volumes.

`plan` decides the next steps from the current state: one pod at a time, in order, or all at once with the
policy Parallel; updates go from the highest ordinal down to the partition. The controller creates claims
before pods, and never deletes claims.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from karpool.kube.api.decoding import Object
from karpool.kube.errors import AlreadyExists, KubeError
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import PODS, PVCS, STATEFULSETS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import owner_reference
from karpool_fleet.workloads.controller import WorkloadController
from karpool_fleet.workloads.dependents import Dependents
from karpool_fleet.workloads.history import RevisionHistory, forget_old, hash_of, remember
from karpool_fleet.workloads.ownership import claim
from karpool_fleet.workloads.pods import available_in, is_available, is_ready, new_pod
from karpool_fleet.workloads.revisions import CONTROLLERREVISIONS, REVISION_HASH, template_of

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


@dataclass(slots=True)
class StatefulSetPlan:
    """The next steps. `create` are ordinals."""

    create: list[int] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UpdateRules:
    start: int
    replicas: int
    parallel: bool
    partition: int | None  # None: pods are updated only when they are deleted

    @property
    def ordinals(self) -> range:
        return range(self.start, self.start + self.replicas)


def rules_of(spec: Object) -> UpdateRules:
    strategy = spec.get("updateStrategy") or {}
    rolling = strategy.get("type", "RollingUpdate") == "RollingUpdate"
    partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    return UpdateRules(
        start=(spec.get("ordinals") or {}).get("start") or 0,
        replicas=spec.get("replicas", 1),
        parallel=spec.get("podManagementPolicy") == "Parallel",
        partition=partition if rolling else None,
    )


def plan(
    rules: UpdateRules, pods: Mapping[int, Pod], update: str, is_healthy: Callable[[Pod], bool]
) -> StatefulSetPlan:
    """Plan the next steps. `pods` are by ordinal; `update` is the hash of the newest revision."""
    steps = StatefulSetPlan()
    if _fill(steps, rules, pods, is_healthy) and _shrink(steps, rules, pods, is_healthy):
        _update(steps, rules, pods, update, is_healthy)
    return steps


def _fill(
    steps: StatefulSetPlan, rules: UpdateRules, pods: Mapping[int, Pod], is_healthy: Callable[[Pod], bool]
) -> bool:
    """Add missing pods; return whether the next stage may follow."""
    for ordinal in rules.ordinals:
        pod = pods.get(ordinal)
        if pod is None:
            steps.create.append(ordinal)
        elif pod.is_terminal and not pod.is_terminating:
            steps.delete.append(pod)
        elif is_healthy(pod) and not pod.is_terminating:
            continue
        if not rules.parallel:
            return False
    return True


def _shrink(
    steps: StatefulSetPlan, rules: UpdateRules, pods: Mapping[int, Pod], is_healthy: Callable[[Pod], bool]
) -> bool:
    condemned = [ordinal for ordinal in sorted(pods, reverse=True) if ordinal not in rules.ordinals]
    unhealthy = [ordinal for ordinal in condemned if not is_healthy(pods[ordinal])]
    for ordinal in condemned:
        pod = pods[ordinal]
        if not pod.is_terminating:
            if not rules.parallel and ordinal in unhealthy and ordinal != min(unhealthy):
                return False  # a lower pod is not healthy: wait for it rather than lose another
            steps.delete.append(pod)
        if not rules.parallel:
            return False
    return True


def _update(
    steps: StatefulSetPlan,
    rules: UpdateRules,
    pods: Mapping[int, Pod],
    update: str,
    is_healthy: Callable[[Pod], bool],
) -> None:
    if rules.partition is None:
        return
    for ordinal in reversed(rules.ordinals):
        if ordinal < rules.start + rules.partition:
            return
        pod = pods.get(ordinal)
        if pod is None or pod.is_terminating or pod.is_terminal:
            return
        if pod.labels.get(REVISION_HASH) != update:
            steps.delete.append(pod)
            return
        if not is_healthy(pod):
            return


def status_of(obj: Object, pods: Mapping[int, Pod], history: RevisionHistory, now: float) -> Object:
    before: Object = obj.get("status") or {}
    rules = rules_of(obj["spec"])
    min_ready = obj["spec"].get("minReadySeconds") or 0
    update = history.update["metadata"]["name"]
    hashes = {revision["metadata"]["name"]: hash_of(revision) for revision in history.all}
    current = before.get("currentRevision")
    current = current if current in hashes else update
    alive = [pod for pod in pods.values() if not pod.is_terminating]
    counts = {
        "readyReplicas": sum(is_ready(pod) for pod in pods.values()),
        "availableReplicas": sum(is_available(pod, min_ready, now) for pod in alive),
        "currentReplicas": sum(pod.labels.get(REVISION_HASH) == hashes[current] for pod in alive),
        "updatedReplicas": sum(pod.labels.get(REVISION_HASH) == hashes[update] for pod in alive),
    }
    done = counts["updatedReplicas"] == len(pods) == counts["readyReplicas"] == rules.replicas
    if done and rules.partition is not None:
        current, counts["currentReplicas"] = update, counts["updatedReplicas"]
    status: Object = {
        "observedGeneration": obj["metadata"].get("generation", 0),
        "replicas": len(pods),
        "currentRevision": current,
        "updateRevision": update,
        "availableReplicas": counts.pop("availableReplicas"),
        "collisionCount": before.get("collisionCount") or 0,
    }
    return status | {name: count for name, count in counts.items() if count}


def pod_body(obj: Object, template: Object, revision: str, ordinal: int, reference: Object) -> Object:
    meta, spec = obj["metadata"], obj["spec"]
    name = f"{meta['name']}-{ordinal}"
    labels = {POD_NAME: name, POD_INDEX: str(ordinal), REVISION_HASH: revision}
    pod = new_pod(
        template, reference, meta["namespace"], name, generate_name=f"{meta['name']}-", labels=labels
    )
    claims = {
        claim["metadata"]["name"]: claim_name(claim, name) for claim in spec.get("volumeClaimTemplates") or ()
    }
    own = [v for v in template["spec"].get("volumes") or () if v.get("name") not in claims]
    mounted = [
        {"name": volume, "persistentVolumeClaim": {"claimName": claimed}}
        for volume, claimed in claims.items()
    ]
    pod["spec"] = {**template["spec"], "hostname": name, "subdomain": spec.get("serviceName") or ""}
    if own or mounted:
        pod["spec"]["volumes"] = [*own, *mounted]
    return pod


def claim_name(template: Object, pod: str) -> str:
    return f"{template['metadata']['name']}-{pod}"


class StatefulSetController(WorkloadController):
    resource = STATEFULSETS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._pods = self.watch(PODS, Pod)
        self._revisions: Dependents[Object] = self.watch(CONTROLLERREVISIONS, dict)
        self._claims: Feed[Object] = context.informers.of(PVCS)

    async def reconcile(self, key: ObjectKey) -> Requeue | None:
        obj = self.owners.get(key)
        if obj is None:
            return None
        await claim(self.client, self.resource, obj, self._pods)
        await claim(self.client, self.resource, obj, self._revisions)
        if "deletionTimestamp" in obj["metadata"]:
            return None
        history = await remember(self, obj, self._revisions)
        if history is None:
            return None
        min_ready = obj["spec"].get("minReadySeconds") or 0
        now = self.clock.now()
        pods = self._numbered(obj)
        steps = plan(
            rules_of(obj["spec"]), pods, history.update_hash, lambda pod: is_available(pod, min_ready, now)
        )
        failure = await self._carry_out(obj, history, steps)
        pods = self._numbered(obj)
        await self.write_status(obj, status_of(obj, pods, history, now))
        if failure is not None:
            raise failure
        await forget_old(self, obj, self._revisions, history, lambda: self._used(obj, history, pods))
        wait = available_in(pods.values(), min_ready, now)
        return Requeue(wait) if wait is not None else None

    async def _carry_out(
        self, obj: Object, history: RevisionHistory, steps: StatefulSetPlan
    ) -> KubeError | None:
        """Execute the steps; return the error that stopped them, for the status."""
        try:
            for pod in steps.delete:
                await self.delete_dependent(self._pods, pod)
                self.record(obj, "Normal", "SuccessfulDelete", f"Deleted pod {pod.name}")
            for ordinal in steps.create:
                await self._create(obj, history, ordinal)
        except KubeError as error:
            if steps.create:
                self.record(obj, "Warning", "FailedCreate", f"Error creating: {error}")
            return error
        return None

    def _numbered(self, obj: Object) -> dict[int, Pod]:
        """Return its pods by ordinal; a pod with a foreign name is ignored."""
        prefix = f"{obj['metadata']['name']}-"
        pods_by_number = {}
        for pod in self._pods.of(obj["metadata"]["uid"]):
            number = pod.name.removeprefix(prefix)
            if pod.name.startswith(prefix) and number.isascii() and number.isdigit() and len(number) < 10:
                pods_by_number[int(number)] = pod
        return pods_by_number

    def _used(self, obj: Object, history: RevisionHistory, pods: Mapping[int, Pod]) -> list[str]:
        current = (obj.get("status") or {}).get("currentRevision")
        named = [hash_of(revision) for revision in history.all if revision["metadata"]["name"] == current]
        return [*named, *(pod.labels.get(REVISION_HASH, "") for pod in pods.values())]

    async def _create(self, obj: Object, history: RevisionHistory, ordinal: int) -> None:
        meta, rules = obj["metadata"], rules_of(obj["spec"])
        revision = history.update
        current = (obj.get("status") or {}).get("currentRevision")
        if rules.partition is not None and ordinal < rules.start + rules.partition:
            # Below the partition a pod is recreated with its old revision.
            kept = (revision for revision in history.all if revision["metadata"]["name"] == current)
            revision = next(kept, revision)
        reference = owner_reference(self.resource, obj)
        pod = pod_body(obj, template_of(revision), hash_of(revision), ordinal, reference)
        await self._ensure_claims(obj, pod["metadata"]["name"], reference)
        if not await self.create_named(self._pods, pod, meta["uid"]):
            raise AlreadyExists(
                f"pods {meta['namespace']}/{pod['metadata']['name']}",
                409,
                message=f"another pod has the name that StatefulSet {meta['name']} needs",
            )
        self.record(obj, "Normal", "SuccessfulCreate", f"Created pod {pod['metadata']['name']}")

    async def _ensure_claims(self, obj: Object, pod: str, reference: Object) -> None:
        namespace = obj["metadata"]["namespace"]
        policy = obj["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        for template in obj["spec"].get("volumeClaimTemplates") or ():
            name = claim_name(template, pod)
            if ObjectKey(namespace, name) in self._claims:
                continue
            labels = {
                **(template["metadata"].get("labels") or {}),
                **((obj["spec"]["selector"] or {}).get("matchLabels") or {}),
            }
            metadata: Object = {"name": name, "namespace": namespace, "labels": labels}
            if annotations := template["metadata"].get("annotations"):
                metadata["annotations"] = annotations
            if policy.get("whenDeleted") == "Delete":
                metadata["ownerReferences"] = [reference]
            try:
                await self.client.create(PVCS, {"metadata": metadata, "spec": template["spec"]})
            except AlreadyExists:
                continue
