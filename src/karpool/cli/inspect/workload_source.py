"""What `karpool capacity` is asked about: objects of a file, or pods and workloads that a cluster has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from karpool.cli.cluster_source import note_skipped
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.output.text import join_names
from karpool.cluster import kinds
from karpool.cluster.changes import DELETED, ObjectChange, PutDropSink
from karpool.cluster.cluster import Cluster
from karpool.kube.bounded_input import STDIN, read_bounded
from karpool.kube.snapshots.reader import read_objects
from karpool.kube.watched import WatchedKind
from karpool.model import safe_yaml
from karpool.model.errors import Invalid
from karpool.model.kubernetes import api_resources as api
from karpool.model.kubernetes.api_resources import ApiResource, ListOptions, ObjectKey
from karpool.model.kubernetes.components import TemplatePath, WorkloadComponent, components_of, has_components
from karpool.model.kubernetes.meta import LabelSelector, decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.labels import LabelMatcher

_KINDS_WITHOUT_PODS = ("Service", "ConfigMap", "Secret", "ServiceAccount", "Namespace")
_REFERENCES: Mapping[str, ApiResource] = {
    name: resource
    for resource, names in (
        (api.PODS, ("pod", "pods", "po")),
        (api.DEPLOYMENTS, ("deployment", "deployments", "deploy")),
        (api.STATEFULSETS, ("statefulset", "statefulsets", "sts")),
        (api.REPLICASETS, ("replicaset", "replicasets", "rs")),
        (api.JOBS, ("job", "jobs")),
        (api.DAEMONSETS, ("daemonset", "daemonsets", "ds")),
        (ApiResource("batch", "v1", "cronjobs", "CronJob"), ("cronjob", "cronjobs", "cj")),
        (
            ApiResource("", "v1", "replicationcontrollers", "ReplicationController"),
            ("replicationcontroller", "replicationcontrollers", "rc"),
        ),
        (ApiResource("argoproj.io", "v1alpha1", "rollouts", "Rollout"), ("rollout", "rollouts", "ro")),
        (ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"), ("jobset", "jobsets")),
        (
            ApiResource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"),
            ("leaderworkerset", "leaderworkersets", "lws"),
        ),
        (ApiResource("ray.io", "v1", "rayclusters", "RayCluster"), ("raycluster", "rayclusters")),
        (ApiResource("ray.io", "v1", "rayjobs", "RayJob"), ("rayjob", "rayjobs")),
        (ApiResource("ray.io", "v1", "rayservices", "RayService"), ("rayservice", "rayservices")),
        (ApiResource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"), ("pytorchjob", "pytorchjobs")),
        (ApiResource("batch.volcano.sh", "v1alpha1", "jobs", "Job"), ("vcjob", "vcjobs", "vj")),
    )
    for name in names
}


@dataclass(frozen=True)
class Workload:
    """What is asked about: pods of one template, or sets of several components.

    `waiting` are pods of it that the cluster has already: whoever asks counts them, and not the cluster.
    """

    components: Sequence[WorkloadComponent]
    waiting: Sequence[ObjectKey] = ()
    asked: int | None = None  # how many are asked about, where it is not what the template says
    remark: str = ""

    @property
    def pod(self) -> Pod:
        return self.components[0].pod

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def name(self) -> str:
        return f"{self.namespace or 'default'}/{self.pod.name or 'pod'}"

    @property
    def replicas(self) -> int:
        """Of the one template; of a set, one."""
        if self.asked is not None:
            return self.asked
        return self.components[0].replicas if len(self.components) == 1 else 1

    @property
    def unit(self) -> str:
        if len(self.components) == 1:
            return "replicas"
        return f"sets of {', '.join(f'{part.replicas} {part.name}' for part in self.components)}"


# Files


def workloads_of_file(path: Path, namespace: str, template_paths: Sequence[str]) -> list[Workload]:
    """The objects of a file that have pods. Raises Invalid or UsageError."""
    return workloads_of_objects(_documents(path), namespace, template_paths, str(path))


def workloads_of_objects(
    documents: Iterable[Any], namespace: str, template_paths: Sequence[str], source: str
) -> list[Workload]:
    """Those of some objects that have pods; `source` is where they are from. Raises Invalid or UsageError."""
    # As kubectl's JSONPath has them, too: {.spec.template}, $.spec.template.
    paths = [TemplatePath(path.strip("{} ").removeprefix("$").removeprefix(".")) for path in template_paths]
    workloads: list[Workload] = []
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") in _KINDS_WITHOUT_PODS:
            continue
        metadata = document.get("metadata")
        metadata = dict(metadata) if isinstance(metadata, dict) else {}
        if namespace:
            metadata["namespace"] = metadata.get("namespace") or namespace
        try:
            components = components_of({**document, "metadata": metadata}, paths)
        except Invalid as error:
            is_hidden = not paths and "pod template" in error.reason
            hint = "; pass the path of its pod templates with --template-path" if is_hidden else ""
            raise Invalid(error.path, error.value, f"{error.reason}{hint}") from None
        is_set = len(components) > 1 or has_components(document)
        if is_set and not any(component.replicas for component in components):
            names = ", ".join(component.name for component in components)
            raise Invalid("spec", 0, f"no component has replicas ({names}); set replicas of at least one")
        workloads.append(Workload(components))
    if not workloads:
        raise click.UsageError(f"{source}: contains no object with pods; pass a file with at least one")
    return workloads


def _documents(path: Path) -> Iterator[Any]:
    if path != STDIN:
        yield from read_objects(path, report=note_skipped)
        return
    try:
        yield from safe_yaml.load_documents(read_bounded(path, safe_yaml.SIZE_LIMIT))
    except OSError as error:
        raise Invalid("-", "stdin", str(error.strerror)) from None
    except safe_yaml.UnusableYaml as error:
        raise Invalid("-", "stdin", str(error)) from None


# Clusters


@dataclass
class ClusterWorkload:
    """`pod/NAME`, `deployment/NAME` and the like; what the cluster has under that name comes by `watch`."""

    resource: ApiResource
    namespace: str
    name: str
    manifest: dict[str, Any] | None = field(default=None, init=False)

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"

    @property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        """Nothing for a pod: the cluster keeps it."""
        if self.resource == api.PODS:
            return ()
        selection = ListOptions(self.namespace, field_selector=f"metadata.name={self.name}")
        sink: PutDropSink[dict[str, Any]] = PutDropSink(self._put, lambda key: None)
        return (WatchedKind(self.resource, dict, sink, selection, optional=True),)

    def _put(self, key: ObjectKey, manifest: dict[str, Any]) -> None:
        if key == (self.namespace, self.name):
            self.manifest = manifest

    def workload(self, pods: Mapping[ObjectKey, Pod], cluster_name: str) -> Workload:
        """`pods`: those of the namespace. Raises Invalid, or CommandFailed when there is no such thing."""
        if self.resource == api.PODS:
            pod = pods.get(ObjectKey(self.namespace, self.name))
            if pod is None:
                raise CommandFailed(no_such_pod(self.namespace, self.name, pods, cluster_name))
            return _of_pod(pod)
        if self.manifest is None:
            listing = f"`kubectl get {self.resource} -A` lists all"
            raise CommandFailed(f"there is no {self} in {cluster_name}; {listing}")
        manifest = {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            **self.manifest,
        }
        components = components_of(manifest)
        if len(components) > 1:
            return Workload(components)
        members = _members(manifest, pods)
        placed = sum(bool(pod.spec.node_name) for pod in members)
        waiting = [_key(pod) for pod in members if not pod.spec.node_name]
        missing = max(len(waiting), components[0].replicas - placed)
        placed_words = f"{placed} of its pods have a node"
        if missing:
            return Workload(components, waiting, missing, placed_words)
        return Workload(components, waiting, 1, f"{placed_words} and none is pending; this shows one more")


def reference_of(words: Sequence[str], namespace: str) -> ClusterWorkload:
    """From `deployment/web` or `deployment web`. Raises UsageError."""
    kind, _, name = words[0].partition("/") if len(words) == 1 else (words[0], "/", words[1])
    resource = _REFERENCES.get(kind.lower())
    if resource is None or not name or "/" in name or len(words) > 2:
        raise click.UsageError(
            f"{' '.join(words)!r} is not like pod/NAME, deployment/NAME, cronjob/NAME or rollout/NAME; other"
            " kinds: kubectl get KIND NAME -o yaml | karpool capacity -f -"
        )
    return ClusterWorkload(resource, namespace, name)


def workloads_of_selector(
    selector: LabelMatcher, pods: Mapping[ObjectKey, Pod], namespace: str | None
) -> list[Workload]:
    """Waiting pods that labels choose, those that ask for the same together. Raises CommandFailed when
    there are none."""
    groups: dict[bytes, list[Pod]] = {}
    chosen = placed = 0
    for key, pod in sorted(pods.items()):
        if namespace not in (None, key.namespace) or not selector.matches(pod.labels):
            continue
        chosen += 1
        if pod.spec.node_name:
            placed += 1
            continue
        groups.setdefault(_template_of(pod), []).append(pod)
    if not groups:
        where = f"in namespace {namespace}" if namespace is not None else "in any namespace"
        raise CommandFailed(
            f"no pod with these labels is pending {where}: {chosen} have the labels, {placed} have a node"
        )
    return [
        Workload([WorkloadComponent("pod", members[0], len(members))], [_key(pod) for pod in members])
        for members in groups.values()
    ]


def without_waiting(cluster: Cluster, workloads: Sequence[Workload], now: float) -> None:
    """Take the pods that are asked about out of the picture, so that nothing waits for itself."""
    cluster.apply(
        kinds.PODS,
        [ObjectChange(DELETED, key, None) for workload in workloads for key in workload.waiting],
        now,
    )


def no_such_pod(namespace: str, name: str, pods: Mapping[ObjectKey, Pod], cluster_name: str) -> str:
    waiting = [str(key) for key, pod in sorted(pods.items()) if not pod.spec.node_name]
    hint = f"; these wait: {join_names(waiting, 5)}" if waiting else ""
    return f"there is no pod {namespace}/{name} in {cluster_name}, or it has ended{hint}"


def _of_pod(pod: Pod) -> Workload:
    component = [WorkloadComponent("pod", pod, 1)]
    if not pod.spec.node_name:
        return Workload(component, [_key(pod)])
    return Workload(component, remark=f"it runs on {pod.spec.node_name}; this shows one more such pod")


def _members(manifest: Mapping[str, Any], pods: Mapping[ObjectKey, Pod]) -> list[Pod]:
    spec = manifest.get("spec")
    raw = spec.get("selector") if isinstance(spec, dict) else None
    if not isinstance(raw, dict) or not raw:
        return []
    if manifest.get("kind") == "ReplicationController":
        raw = {"matchLabels": raw}
    try:
        selector = decode(raw, LabelSelector).compile()
    except Invalid as error:
        raise error.at("spec.selector") from None
    namespace = (manifest.get("metadata") or {}).get("namespace")
    return [pod for key, pod in pods.items() if key.namespace == namespace and selector.matches(pod.labels)]


def _template_of(pod: Pod) -> bytes:
    """Pods of one controller ask for the same; a name or a node of their own does not set them apart."""
    owners = [(owner.kind, owner.name) for owner in pod.metadata.owner_references or ()]
    return msgspec.json.encode([pod.metadata.namespace, owners, pod.spec], order="deterministic")


def _key(pod: Pod) -> ObjectKey:
    return ObjectKey(pod.metadata.namespace, pod.name)
