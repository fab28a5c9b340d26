"""Works: a binding's manifest for each of its clusters.

Metadata of the control plane is removed from the manifest; labels and annotations that lead from a member's
object to its work are added.
"""

from collections.abc import Mapping, Sequence

from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import WORKS, ObjectKey
from karpool_fleet.karmada.propagation.bindings import BindingRef, is_workload, targets_of
from karpool_fleet.karmada.propagation.names import (
    CLAIM_ANNOTATIONS,
    CLAIM_LABELS,
    CONFLICT_RESOLUTION,
    MANAGED,
    MANAGED_ANNOTATIONS,
    MANAGED_LABELS,
    TEMPLATE_GENERATION,
    TEMPLATE_UID,
    WORK_FINALIZER,
    WORK_ID,
    WORK_NAME,
    WORK_NAMESPACE,
    Object,
    execution_space,
    permanent_id,
    work_name,
)
from karpool_fleet.karmada.status.resource_interpreter import with_replicas
from karpool_fleet.runtime.writes import patch_version

GOING_RETRY = Requeue(1.0)  # until the work of a deleted predecessor is gone
# Metadata that has a meaning only in the control plane.
_LOCAL = (
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
    "ownerReferences",
    "finalizers",
)
_JOB_LABELS = (
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "job-name",
    "batch.kubernetes.io/job-name",
)


def plain_manifest(template: Object) -> Object:
    """Return the template without what its API server and the detector wrote."""
    manifest = {key: value for key, value in template.items() if key not in ("status", "metadata")}
    meta = {key: value for key, value in template["metadata"].items() if key not in _LOCAL}
    for field, ours in (("labels", CLAIM_LABELS), ("annotations", CLAIM_ANNOTATIONS)):
        kept = {key: value for key, value in (meta.get(field) or {}).items() if key not in ours}
        meta.pop(field, None)
        if kept:
            meta[field] = kept
    manifest["metadata"] = meta
    match manifest.get("apiVersion"), manifest.get("kind"):
        case "batch/v1", "Job":
            manifest["spec"] = _plain_job(manifest["spec"])
        case "v1", "Service" if (manifest.get("spec") or {}).get("clusterIP") != "None":
            local = ("clusterIP", "clusterIPs", "healthCheckNodePort")
            manifest["spec"] = {k: v for k, v in manifest["spec"].items() if k not in local}
        case "v1", "Namespace":
            manifest.pop("spec", None)
    return manifest


def _plain_job(spec: Object) -> Object:
    """Return the spec of a Job without selector: each member's Job gets its own."""
    if spec.get("manualSelector"):
        return spec
    kept = {key: value for key, value in spec.items() if key not in ("selector", "ttlSecondsAfterFinished")}
    template = dict(kept.get("template") or {})
    meta = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key not in _JOB_LABELS}
    meta.pop("labels", None)
    if labels:
        meta["labels"] = labels
    template.pop("metadata", None)
    if meta:
        template["metadata"] = meta
    return {**kept, "template": template}


def shares_of_completions(template: Object, targets: Sequence[Object]) -> Mapping[str, int]:
    """Divide the completions of a Job like its replicas; the largest shares get the remainder."""
    spec = template.get("spec") or {}
    whole, total = spec.get("completions"), sum(target.get("replicas") or 0 for target in targets)
    if template.get("kind") != "Job" or not isinstance(whole, int) or not total:
        return {}
    shares = {target["name"]: whole * (target.get("replicas") or 0) // total for target in targets}
    left = whole - sum(shares.values())
    heaviest = sorted(targets, key=lambda target: (-(target.get("replicas") or 0), target["name"]))
    for target in heaviest[:left]:
        shares[target["name"]] += 1
    return shares


def manifests(template: Object, spec: Object) -> dict[str, Object]:
    """Return the manifest for each cluster, before overrides. A target without replicas gets none."""
    plain, targets = plain_manifest(template), targets_of(spec)
    completions = shares_of_completions(template, targets)
    result: dict[str, Object] = {}
    for target in targets:
        name, manifest = target["name"], plain
        if is_workload(spec):
            manifest = with_replicas(manifest, target.get("replicas") or 0)
        if name in completions:
            manifest = {**manifest, "spec": {**manifest["spec"], "completions": completions[name]}}
        result[name] = manifest
    return result


def is_suspended(spec: Object, cluster: str) -> bool:
    suspension = spec.get("suspension") or {}
    chosen = (suspension.get("dispatchingOnClusters") or {}).get("clusterNames") or ()
    return bool(suspension.get("dispatching")) or cluster in chosen


def new_work(
    cluster: str,
    template: Object,
    manifest: Object,
    *,
    ref: BindingRef,
    binding: Object,
    notes: Mapping[str, str],
) -> Object:
    """Return the work of one binding in one cluster."""
    spec, labels = binding["spec"], binding["metadata"].get("labels") or {}
    back = ref.annotations()
    ident = {ref.id_label: labels[ref.id_label]} if ref.id_label in labels else {}
    marked = marked_manifest(cluster, template, manifest, {**back, **_resolution(spec)}, ident)
    meta = marked["metadata"]
    work_spec: Object = {"workload": {"manifests": [marked]}}
    if is_suspended(spec, cluster):
        work_spec["suspendDispatching"] = True
    if spec.get("preserveResourcesOnDeletion"):
        work_spec["preserveResourcesOnDeletion"] = True
    return {
        "metadata": {
            "name": meta["annotations"][WORK_NAME],
            "namespace": meta["annotations"][WORK_NAMESPACE],
            "labels": {**ident, WORK_ID: meta["labels"][WORK_ID]},
            "annotations": {**back, **notes},
            "finalizers": [WORK_FINALIZER],
        },
        "spec": work_spec,
    }


def _resolution(spec: Object) -> dict[str, str]:
    resolution = spec.get("conflictResolution")
    return {CONFLICT_RESOLUTION: resolution.lower()} if resolution == "Overwrite" else {}


def marked_manifest(
    cluster: str, template: Object, manifest: Object, notes: Mapping[str, str], ident: Mapping[str, str]
) -> Object:
    """Return a manifest with the labels and annotations that lead back to its work."""
    meta = template["metadata"]
    space = execution_space(cluster)
    name = work_name(template["kind"], meta["name"], meta.get("namespace", ""))
    own = manifest["metadata"]
    labels = {
        **(own.get("labels") or {}),
        **ident,
        MANAGED: "true",
        WORK_ID: permanent_id(space, name, meta["uid"]),
    }
    annotations = {
        **(own.get("annotations") or {}),
        **notes,
        WORK_NAMESPACE: space,
        WORK_NAME: name,
        TEMPLATE_UID: meta["uid"],
    }
    if meta.get("generation"):
        annotations[TEMPLATE_GENERATION] = str(meta["generation"])
    # Labels listed here are removed from the member with the manifest's; other labels belong to the member.
    annotations[MANAGED_LABELS] = ",".join(sorted(labels))
    annotations[MANAGED_ANNOTATIONS] = ",".join(sorted({*annotations, MANAGED_ANNOTATIONS}))
    return {**manifest, "metadata": {**own, "labels": labels, "annotations": annotations}}


async def write_work(client: Client, work: Object | None, wanted: Object) -> Requeue | None:
    """Create or update a work; return a Requeue if the old one is being deleted."""
    key = ObjectKey(wanted["metadata"]["namespace"], wanted["metadata"]["name"])
    if work is None:
        try:
            await client.create(WORKS, wanted)
            return None
        except AlreadyExists:
            work = await client.get(WORKS, key.name, namespace=key.namespace)
    if "deletionTimestamp" in work["metadata"]:
        return GOING_RETRY
    if patch := work_patch(work, wanted):
        await patch_version(client, WORKS, work, patch)
    return None


def work_patch(work: Object, wanted: Object) -> Object:
    """Return the merge patch that updates a work; empty if it is up to date."""
    patch: Object = {}
    meta: Object = {}
    for field in ("labels", "annotations"):
        held = work["metadata"].get(field) or {}
        values = wanted["metadata"].get(field) or {}
        changed = {key: value for key, value in values.items() if held.get(key) != value}
        stale = {key: None for key in held if key.startswith("policy.karmada.io/") and key not in values}
        if changed or stale:
            meta[field] = {**changed, **stale}
    if WORK_FINALIZER not in (work["metadata"].get("finalizers") or ()):
        meta["finalizers"] = [*(work["metadata"].get("finalizers") or ()), WORK_FINALIZER]
    if meta:
        patch["metadata"] = meta
    spec = {}
    for field in ("workload", "suspendDispatching", "preserveResourcesOnDeletion"):
        if work["spec"].get(field) != wanted["spec"].get(field):
            spec[field] = wanted["spec"].get(field)
    if spec:
        patch["spec"] = spec
    return patch
