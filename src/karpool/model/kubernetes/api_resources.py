"""API resources and their paths.

An `ApiResource` is what a request needs to know about a kind; the server's own, richer description is
`karpool_fleet.apiserver.objects.types.ResourceType`. Paths are built only here, and a name that would change
the meaning of the path is refused.
"""

from dataclasses import dataclass
from typing import NamedTuple


class ObjectKey(NamedTuple):
    """Identifies an object of a kind; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class ApiResource:
    group: str  # "" for core
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def root(self) -> str:
        """The discovery path of this group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def collection(self, namespace: str | None = None) -> str:
        """Return the path of the list; without a namespace, that of all namespaces."""
        if namespace is None:
            return f"{self.root}/{self.plural}"
        if not self.namespaced:
            raise ValueError(f"{self} are not namespaced, but namespace {namespace!r} was given")
        return f"{self.root}/namespaces/{_segment(self, 'namespace', namespace)}/{self.plural}"

    def item(self, name: str, namespace: str | None = None, subresource: str = "") -> str:
        if self.namespaced and namespace is None:
            raise ValueError(f"{self} {name!r}: a namespace is needed")
        path = f"{self.collection(namespace)}/{_segment(self, 'name', name)}"
        return f"{path}/{subresource}" if subresource else path


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Selects objects of a kind: all, those of one namespace, or by selectors."""

    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    def query(self) -> list[tuple[str, str]]:
        pairs = (("labelSelector", self.label_selector), ("fieldSelector", self.field_selector))
        return [pair for pair in pairs if pair[1]]


ALL = ListOptions()


def _segment(resource: ApiResource, field: str, value: str) -> str:
    # The API server's rule for a path segment, without characters that end a path.
    if not value or value in (".", "..") or any(c in "/%?#" or not c.isprintable() for c in value):
        raise ValueError(f"{resource}: {field} {value!r} cannot be part of a path")
    return value


def _core(plural: str, kind: str, namespaced: bool = True) -> ApiResource:
    return ApiResource("", "v1", plural, kind, namespaced)


PODS = _core("pods", "Pod")
NODES = _core("nodes", "Node", namespaced=False)
NAMESPACES = _core("namespaces", "Namespace", namespaced=False)
EVENTS = _core("events", "Event")
CONFIGMAPS = _core("configmaps", "ConfigMap")
SERVICES = _core("services", "Service")
PVS = _core("persistentvolumes", "PersistentVolume", namespaced=False)
PVCS = _core("persistentvolumeclaims", "PersistentVolumeClaim")
RESOURCEQUOTAS = _core("resourcequotas", "ResourceQuota")
LEASES = ApiResource("coordination.k8s.io", "v1", "leases", "Lease")

SECRETS = ApiResource("", "v1", "secrets", "Secret")
PODTEMPLATES = ApiResource("", "v1", "podtemplates", "PodTemplate")
DEPLOYMENTS = ApiResource("apps", "v1", "deployments", "Deployment")
REPLICASETS = ApiResource("apps", "v1", "replicasets", "ReplicaSet")
STATEFULSETS = ApiResource("apps", "v1", "statefulsets", "StatefulSet")
DAEMONSETS = ApiResource("apps", "v1", "daemonsets", "DaemonSet")
JOBS = ApiResource("batch", "v1", "jobs", "Job")
PDBS = ApiResource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
STORAGECLASSES = ApiResource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CSINODES = ApiResource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
VOLUMEATTACHMENTS = ApiResource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False
)
PRIORITYCLASSES = ApiResource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
CRDS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

NODEPOOLS = ApiResource("karpenter.sh", "v1", "nodepools", "NodePool", namespaced=False)
NODECLAIMS = ApiResource("karpenter.sh", "v1", "nodeclaims", "NodeClaim", namespaced=False)
EC2NODECLASSES = ApiResource("karpenter.k8s.aws", "v1", "ec2nodeclasses", "EC2NodeClass", namespaced=False)
EKSNODECLASSES = ApiResource("eks.amazonaws.com", "v1", "nodeclasses", "NodeClass", namespaced=False)
AKSNODECLASSES = ApiResource(
    "karpenter.azure.com", "v1beta1", "aksnodeclasses", "AKSNodeClass", namespaced=False
)
GCENODECLASSES = ApiResource(
    "karpenter.k8s.gcp", "v1alpha1", "gcenodeclasses", "GCENodeClass", namespaced=False
)
KWOKNODECLASSES = ApiResource(
    "karpenter.kwok.sh", "v1alpha1", "kwoknodeclasses", "KWOKNodeClass", namespaced=False
)

CLUSTERS = ApiResource("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", namespaced=False)
RESOURCEBINDINGS = ApiResource("work.karmada.io", "v1alpha2", "resourcebindings", "ResourceBinding")
CLUSTERRESOURCEBINDINGS = ApiResource(
    "work.karmada.io", "v1alpha2", "clusterresourcebindings", "ClusterResourceBinding", namespaced=False
)
WORKS = ApiResource("work.karmada.io", "v1alpha1", "works", "Work")
PROPAGATIONPOLICIES = ApiResource("policy.karmada.io", "v1alpha1", "propagationpolicies", "PropagationPolicy")
CLUSTERPROPAGATIONPOLICIES = ApiResource(
    "policy.karmada.io",
    "v1alpha1",
    "clusterpropagationpolicies",
    "ClusterPropagationPolicy",
    namespaced=False,
)

NODEOVERLAYS = ApiResource("karpenter.sh", "v1alpha1", "nodeoverlays", "NodeOverlay", namespaced=False)
CAPACITYBUFFERS = ApiResource("autoscaling.x-k8s.io", "v1alpha1", "capacitybuffers", "CapacityBuffer")
CAPACITYBUFFERS_BETA = ApiResource("autoscaling.x-k8s.io", "v1beta1", "capacitybuffers", "CapacityBuffer")
RESOURCESLICES = ApiResource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
RESOURCECLAIMS = ApiResource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCECLAIMTEMPLATES = ApiResource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
DEVICETAINTRULES = ApiResource(
    "resource.k8s.io", "v1beta2", "devicetaintrules", "DeviceTaintRule", namespaced=False
)
DEVICECLASSES = ApiResource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
GPUS = ApiResource("tensor-fusion.ai", "v1", "gpus", "GPU", namespaced=False)
SCALEUPS = ApiResource("gpu.karpool.dev", "v1alpha1", "scaleups", "ScaleUp")
