"""Bindings: their fields from template and policy, and accessors.

The detector writes these fields and keeps the others: `clusters`, `gracefulEvictionTasks` and
`rescheduleTriggeredAt` belong to schedulers and evictors.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.model.kubernetes.api_resources import (
    CLUSTERRESOURCEBINDINGS,
    RESOURCEBINDINGS,
    ApiResource,
    ObjectKey,
)
from karpool_fleet.karmada.propagation.names import (
    BINDING_FINALIZER,
    BINDING_ID,
    BINDING_NAME,
    BINDING_NAMESPACE,
    CLAIM_ANNOTATIONS,
    CLAIM_LABELS,
    CLUSTER_BINDING_FINALIZER,
    CLUSTER_BINDING_ID,
    CLUSTER_BINDING_NAME,
    Object,
    binding_name,
    permanent_id,
)
from karpool_fleet.karmada.propagation.policies import Claim, placement_of
from karpool_fleet.karmada.status import resource_interpreter
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context

# Fields that the detector copies from the template and the policy.
OWN_FIELDS = (
    "resource",
    "replicas",
    "replicaRequirements",
    "components",
    "placement",
    "schedulerName",
    "schedulePriority",
    "suspension",
    "failover",
    "conflictResolution",
    "propagateDeps",
    "preserveResourcesOnDeletion",
    "workloadAffinityGroups",
)


class BindingRef(NamedTuple):
    """The identity of a binding; without a namespace it is a ClusterResourceBinding."""

    namespace: str
    name: str

    @property
    def resource(self) -> ApiResource:
        return RESOURCEBINDINGS if self.namespace else CLUSTERRESOURCEBINDINGS

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)

    @property
    def finalizer(self) -> str:
        return BINDING_FINALIZER if self.namespace else CLUSTER_BINDING_FINALIZER

    @property
    def id_label(self) -> str:
        return BINDING_ID if self.namespace else CLUSTER_BINDING_ID

    @property
    def where(self) -> str | None:
        """Return the namespace for a client."""
        return self.namespace or None

    def annotations(self) -> dict[str, str]:
        if not self.namespace:
            return {CLUSTER_BINDING_NAME: self.name}
        return {BINDING_NAMESPACE: self.namespace, BINDING_NAME: self.name}


class BindingFeeds:
    """The bindings of both kinds, from the informers of one component."""

    def __init__(self, context: Context) -> None:
        kinds = (RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS)
        self._feeds: list[Feed[Object]] = [context.informers.of(kind) for kind in kinds]

    def on_change(self, handler: Callable[[ObjectChange[Object]], None]) -> None:
        for feed in self._feeds:
            feed.on_change(handler)

    def get(self, ref: BindingRef) -> Object | None:
        return self._feeds[0 if ref.namespace else 1].get(ref.key)

    def objects(self) -> Iterator[Object]:
        for feed in self._feeds:
            yield from feed.objects()


def ref_of(binding: Object) -> BindingRef:
    meta = binding["metadata"]
    return BindingRef(meta.get("namespace", ""), meta["name"])


def ref_for(template: Object) -> BindingRef:
    meta = template["metadata"]
    return BindingRef(meta.get("namespace", ""), binding_name(template["kind"], meta["name"]))


def ref_in(annotations: Object) -> BindingRef | None:
    """Return the binding of a work."""
    if BINDING_NAME in annotations and BINDING_NAMESPACE in annotations:
        return BindingRef(annotations[BINDING_NAMESPACE], annotations[BINDING_NAME])
    if CLUSTER_BINDING_NAME in annotations:
        return BindingRef("", annotations[CLUSTER_BINDING_NAME])
    return None


def spec_for(template: Object, policy: Object, schedule_priority: int | None) -> Object:
    """Return the part of a binding's spec that follows from template and policy, without empty fields."""
    meta, rules = template["metadata"], policy["spec"]
    spec: Object = {
        "resource": {
            "apiVersion": template["apiVersion"],
            "kind": template["kind"],
            **({"namespace": meta["namespace"]} if meta.get("namespace") else {}),
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "placement": placement_of(policy),
        "schedulerName": rules.get("schedulerName") or "default-scheduler",
        "conflictResolution": rules.get("conflictResolution") or "Abort",
    }
    if components := resource_interpreter.components(template):
        spec["components"] = components  # several pod templates: one count and one requirement do not suffice
    else:
        if replicas := resource_interpreter.replicas(template):
            spec["replicas"] = replicas
        if needs := resource_interpreter.requirements(template):
            spec["replicaRequirements"] = needs
    if schedule_priority is not None and meta.get("namespace"):
        spec["schedulePriority"] = {"priority": schedule_priority}
    for field in ("suspension", "failover", "propagateDeps", "preserveResourcesOnDeletion"):
        if rules.get(field):
            spec[field] = rules[field]
    groups = _affinity_groups(template, spec["placement"])
    if groups and meta.get("namespace"):
        spec["workloadAffinityGroups"] = groups
    return spec


def _affinity_groups(template: Object, placement: Object) -> Object:
    rules, labels = placement.get("workloadAffinity") or {}, template["metadata"].get("labels") or {}
    groups: Object = {}
    for rule, field in (("affinity", "affinityGroup"), ("antiAffinity", "antiAffinityGroup")):
        key = (rules.get(rule) or {}).get("groupByLabelKey")
        if key and key in labels:
            groups[field] = f"{key}={labels[key]}"
    return groups


def new_binding(template: Object, claim: Claim, spec: Object) -> Object:
    ref, meta = ref_for(template), template["metadata"]
    metadata: Object = {
        "name": ref.name,
        **({"namespace": ref.namespace} if ref.namespace else {}),
        "labels": {**claim.labels, ref.id_label: permanent_id("binding", meta["uid"])},
        "annotations": claim.annotations,
        "finalizers": [ref.finalizer],
        "ownerReferences": [owner_of(template)],
    }
    return {"metadata": metadata, "spec": spec}


def owner_of(obj: Object) -> Object:
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def binding_patch(binding: Object, template: Object, claim: Claim, spec: Object) -> Object:
    """Return the merge patch that updates a binding; empty if it is up to date."""
    meta, held, patch = binding["metadata"], binding["spec"], claim_patch(binding, claim)
    ref = ref_for(template)
    if ref.finalizer not in (meta.get("finalizers") or ()):
        patch["finalizers"] = [*(meta.get("finalizers") or ()), ref.finalizer]
    if not any(owner["uid"] == template["metadata"]["uid"] for owner in meta.get("ownerReferences") or ()):
        patch["ownerReferences"] = [owner_of(template)]
    if "scheduling" in (held.get("suspension") or {}):
        # Another component, not the policy, suspends scheduling.
        kept = {"scheduling": held["suspension"]["scheduling"]}
        spec = {**spec, "suspension": {**(spec.get("suspension") or {}), **kept}}
    changes = {field: spec.get(field) for field in OWN_FIELDS if held.get(field) != spec.get(field)}
    result: Object = {}
    if patch:
        result["metadata"] = patch
    if changes:
        result["spec"] = {field: replaced(held.get(field), value) for field, value in changes.items()}
    return result


def replaced(old: object, new: object) -> object:
    """Return a merge patch value that turns `old` into exactly `new`."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    gone = {key: None for key in old if key not in new}
    changed = {key: replaced(old.get(key), value) for key, value in new.items() if old.get(key) != value}
    return {**gone, **changed}


def claim_patch(obj: Object, claim: Claim | None) -> Object:
    """Return a metadata patch that sets `claim` as the only claim of an object, or removes all claims."""
    meta, patch = obj["metadata"], {}
    fields = (
        ("labels", CLAIM_LABELS, claim.labels if claim else {}),
        ("annotations", CLAIM_ANNOTATIONS, claim.annotations if claim else {}),
    )
    for field, keys, values in fields:
        held = meta.get(field) or {}
        changes = {key: values.get(key) for key in keys if held.get(key) != values.get(key)}
        if changes:
            patch[field] = changes
    return patch


# Reading


def is_workload(spec: Object) -> bool:
    return bool(spec.get("replicas") or spec.get("replicaRequirements") or spec.get("components"))


def targets_of(spec: Object) -> list[Object]:
    """Return the scheduling result, then the clusters that other bindings require."""
    targets = list(spec.get("clusters") or ())
    names = {target["name"] for target in targets}
    for snapshot in spec.get("requiredBy") or ():
        for target in snapshot.get("clusters") or ():
            if target["name"] not in names:
                names.add(target["name"])
                targets.append(target)
    return targets


def keeps_works_in(spec: Object) -> set[str]:
    """Return the clusters whose work stays: targets, and those that are being evicted gracefully."""
    kept = {target["name"] for target in targets_of(spec)}
    for task in spec.get("gracefulEvictionTasks") or ():
        if task.get("purgeMode") != "Directly":
            kept.add(task["fromCluster"])
    return kept


def evict(spec: Object, cluster: str, task: Object) -> Object | None:
    """Return a patch of `spec` that replaces a target by an eviction task; None without that target."""
    clusters: Sequence[Object] = spec.get("clusters") or ()
    leaving = next((target for target in clusters if target["name"] == cluster), None)
    if leaving is None:
        return None
    patch: Object = {"clusters": [target for target in clusters if target["name"] != cluster] or None}
    tasks: Sequence[Object] = spec.get("gracefulEvictionTasks") or ()
    if all(task["fromCluster"] != cluster for task in tasks):
        if leaving.get("replicas"):
            task = {**task, "replicas": leaving["replicas"]}
        patch["gracefulEvictionTasks"] = [*tasks, {"fromCluster": cluster, **task}]
    return patch
