"""The built-in resources: their names, scope, short names, categories and subresources.

A table of facts; `builtin` turns rows into resource types.
"""

from typing import NamedTuple


class Row(NamedTuple):
    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short: str = ""
    categories: str = ""
    subresources: str = ""


_AUTOSCALERS = ("HorizontalPodAutoscaler", "horizontalpodautoscalers", True, "hpa", "all", "status")
_DEFINITIONS = ("CustomResourceDefinition", "customresourcedefinitions", False, "crd,crds", "api-extensions")

ROWS = (
    Row("", "v1", "Pod", "pods", True, "po", "all", "status,binding,eviction,ephemeralcontainers,resize,log"),
    Row("", "v1", "Node", "nodes", False, "no", "", "status"),
    Row("", "v1", "Namespace", "namespaces", False, "ns", "", "status,finalize"),
    Row("", "v1", "Service", "services", True, "svc", "all", "status"),
    Row("", "v1", "Endpoints", "endpoints", True, "ep"),
    Row("", "v1", "ConfigMap", "configmaps", True, "cm"),
    Row("", "v1", "Secret", "secrets"),
    Row("", "v1", "ServiceAccount", "serviceaccounts", True, "sa"),
    Row("", "v1", "Event", "events", True, "ev"),
    Row("", "v1", "PersistentVolume", "persistentvolumes", False, "pv", "", "status"),
    Row("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, "pvc", "", "status"),
    Row("", "v1", "ReplicationController", "replicationcontrollers", True, "rc", "all", "status,scale"),
    Row("", "v1", "ResourceQuota", "resourcequotas", True, "quota", "", "status"),
    Row("", "v1", "LimitRange", "limitranges", True, "limits"),
    Row("", "v1", "PodTemplate", "podtemplates"),
    Row("apps", "v1", "Deployment", "deployments", True, "deploy", "all", "status,scale"),
    Row("apps", "v1", "ReplicaSet", "replicasets", True, "rs", "all", "status,scale"),
    Row("apps", "v1", "StatefulSet", "statefulsets", True, "sts", "all", "status,scale"),
    Row("apps", "v1", "DaemonSet", "daemonsets", True, "ds", "all", "status"),
    Row("apps", "v1", "ControllerRevision", "controllerrevisions"),
    Row("batch", "v1", "Job", "jobs", True, "", "all", "status"),
    Row("batch", "v1", "CronJob", "cronjobs", True, "cj", "all", "status"),
    Row("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, "pdb", "", "status"),
    Row("coordination.k8s.io", "v1", "Lease", "leases"),
    Row("events.k8s.io", "v1", "Event", "events", True, "ev"),
    Row("storage.k8s.io", "v1", "StorageClass", "storageclasses", False, "sc"),
    Row("storage.k8s.io", "v1", "CSINode", "csinodes", False),
    Row("storage.k8s.io", "v1", "CSIDriver", "csidrivers", False),
    Row("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", False, "", "", "status"),
    Row("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, "pc"),
    Row("autoscaling", "v2", *_AUTOSCALERS),
    Row("autoscaling", "v1", *_AUTOSCALERS),
    Row("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    Row("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    Row("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", False),
    Row("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", False),
    Row("networking.k8s.io", "v1", "Ingress", "ingresses", True, "ing", "", "status"),
    Row("networking.k8s.io", "v1", "IngressClass", "ingressclasses", False),
    Row("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", True, "netpol"),
    Row("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    Row("apiextensions.k8s.io", "v1", *_DEFINITIONS, subresources="status"),
    Row("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", False),
    Row("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", True, "", "", "status"),
    Row("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    Row("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", False),
    Row("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", False),
)

# Resources that can only be created: the response is the answer, and nothing is stored.
REVIEWS = (
    Row("", "v1", "Binding", "bindings"),
    Row("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False),
    Row("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", False),
    Row("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False),
    Row("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False),
    Row("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", False),
    Row("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews"),
)

# Kinds of subresource bodies that differ from the resource itself.
SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
}


def schema_kinds() -> list[tuple[str, str, str]]:
    """Every (group, version, kind) a schema is needed for."""
    kinds = [(row.group, row.version, row.kind) for row in (*ROWS, *REVIEWS)]
    kinds += [*SUBRESOURCE_KINDS.values(), ("", "v1", "Status"), ("", "v1", "DeleteOptions")]
    return list(dict.fromkeys(kinds))
