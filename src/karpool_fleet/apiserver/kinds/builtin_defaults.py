"""Defaults and value rules of built-in types that their OpenAPI document does not carry.

Upstream applies these in code. The tables hold facts, keyed by definition (without the
`io.k8s.api.` prefix) and field; `FILLS` are the defaults that depend on another field.
"""

from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.objects.types import Object

_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_CONTAINER = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_FILE_MODE = {"defaultMode": 0o644}

DEFAULTS: dict[str, dict[str, Any]] = {
    "core.v1.PodSpec": {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
    },
    "core.v1.Container": _CONTAINER,
    "core.v1.EphemeralContainer": _CONTAINER,
    "core.v1.ContainerPort": {"protocol": "TCP"},
    "core.v1.Probe": _PROBE,
    "core.v1.HTTPGetAction": {"path": "/", "scheme": "HTTP"},
    "core.v1.ObjectFieldSelector": {"apiVersion": "v1"},
    "core.v1.SecretVolumeSource": _FILE_MODE,
    "core.v1.ConfigMapVolumeSource": _FILE_MODE,
    "core.v1.DownwardAPIVolumeSource": _FILE_MODE,
    "core.v1.ProjectedVolumeSource": _FILE_MODE,
    "core.v1.ServiceAccountTokenProjection": {"expirationSeconds": 3600},
    "core.v1.HostPathVolumeSource": {"type": ""},
    "core.v1.Secret": {"type": "Opaque"},
    "core.v1.ServiceSpec": {
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
    },
    "core.v1.ServicePort": {"protocol": "TCP"},
    "core.v1.EndpointPort": {"protocol": "TCP"},
    "core.v1.PersistentVolumeSpec": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"},
    "core.v1.PersistentVolumeStatus": {"phase": "Pending"},
    "core.v1.PersistentVolumeClaimSpec": {"volumeMode": "Filesystem"},
    "core.v1.PersistentVolumeClaimStatus": {"phase": "Pending"},
    "core.v1.ReplicationControllerSpec": {"replicas": 1},
    "apps.v1.DeploymentSpec": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
        "strategy": {},
    },
    "apps.v1.DeploymentStrategy": {"type": "RollingUpdate"},
    "apps.v1.ReplicaSetSpec": {"replicas": 1},
    "apps.v1.StatefulSetSpec": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    },
    "apps.v1.StatefulSetUpdateStrategy": {"type": "RollingUpdate"},
    "apps.v1.RollingUpdateStatefulSetStrategy": {"partition": 0},
    "apps.v1.DaemonSetSpec": {"revisionHistoryLimit": 10, "updateStrategy": {}},
    "apps.v1.DaemonSetUpdateStrategy": {"type": "RollingUpdate"},
    "batch.v1.JobSpec": {
        "completionMode": "NonIndexed",
        "backoffLimit": 6,
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    },
    "batch.v1.CronJobSpec": {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    },
    "storage.v1.StorageClass": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
    "storage.v1.CSIDriverSpec": {
        "attachRequired": True,
        "podInfoOnMount": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "storageCapacity": False,
        "requiresRepublish": False,
        "volumeLifecycleModes": ["Persistent"],
    },
    "scheduling.v1.PriorityClass": {"preemptionPolicy": "PreemptLowerPriority"},
    "autoscaling.v2.HorizontalPodAutoscalerSpec": {"minReplicas": 1},
    "autoscaling.v1.HorizontalPodAutoscalerSpec": {"minReplicas": 1},
    "networking.v1.NetworkPolicyPort": {"protocol": "TCP"},
    "discovery.v1.EndpointPort": {"protocol": "TCP", "name": ""},
    "rbac.v1.RoleRef": {"apiGroup": "rbac.authorization.k8s.io"},
    "resource.v1.ExactDeviceRequest": {"allocationMode": "ExactCount"},
}

_POLICIES = ["Always", "IfNotPresent", "Never"]
_PROTOCOLS = ["TCP", "UDP", "SCTP"]
_PORT = {"minimum": 1, "maximum": 65535}
_COUNT = {"minimum": 0}
_DNS_LABEL = {"maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
_NODE_OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_SELECTOR_OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist"]
_CONTAINER_VALUES: dict[str, dict[str, Any]] = {
    "name": {**_DNS_LABEL, "minLength": 1},
    "imagePullPolicy": {"enum": _POLICIES},
    "terminationMessagePolicy": {"enum": ["File", "FallbackToLogsOnError"]},
}

VALUES: dict[str, dict[str, dict[str, Any]]] = {
    "core.v1.PodSpec": {
        "containers": {"minItems": 1},
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never"]},
        "dnsPolicy": {"enum": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]},
        "preemptionPolicy": {"enum": ["Never", "PreemptLowerPriority"]},
        "terminationGracePeriodSeconds": _COUNT,
    },
    "core.v1.Container": _CONTAINER_VALUES,
    "core.v1.EphemeralContainer": _CONTAINER_VALUES,
    "core.v1.ContainerPort": {
        "containerPort": _PORT,
        "hostPort": {"minimum": 0, "maximum": 65535},
        "protocol": {"enum": _PROTOCOLS},
    },
    "core.v1.EnvVar": {"name": {"minLength": 1}},
    "core.v1.Volume": {"name": {**_DNS_LABEL, "minLength": 1}},
    "core.v1.VolumeMount": {"name": {"minLength": 1}, "mountPath": {"minLength": 1}},
    "core.v1.Taint": {"key": {"minLength": 1}, "effect": {"enum": _EFFECTS}},
    "core.v1.Toleration": {
        "effect": {"enum": ["", *_EFFECTS]},
        "operator": {"enum": ["", "Exists", "Equal", "Lt", "Gt"]},
    },
    "core.v1.NodeSelectorRequirement": {"operator": {"enum": _NODE_OPERATORS}},
    "core.v1.NodeSelector": {"nodeSelectorTerms": {"minItems": 1}},
    "core.v1.PreferredSchedulingTerm": {"weight": {"minimum": 1, "maximum": 100}},
    "core.v1.WeightedPodAffinityTerm": {"weight": {"minimum": 1, "maximum": 100}},
    "core.v1.PodAffinityTerm": {"topologyKey": {"minLength": 1}},
    "core.v1.TopologySpreadConstraint": {
        "maxSkew": {"minimum": 1},
        "topologyKey": {"minLength": 1},
        "whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
        "nodeAffinityPolicy": {"enum": ["Honor", "Ignore"]},
        "nodeTaintsPolicy": {"enum": ["Honor", "Ignore"]},
    },
    "core.v1.ServiceSpec": {
        "type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]},
        "sessionAffinity": {"enum": ["None", "ClientIP"]},
    },
    "core.v1.ServicePort": {"port": _PORT, "protocol": {"enum": _PROTOCOLS}},
    "core.v1.PersistentVolumeSpec": {
        "persistentVolumeReclaimPolicy": {"enum": ["Retain", "Delete", "Recycle"]},
        "volumeMode": {"enum": ["Filesystem", "Block"]},
    },
    "core.v1.ReplicationControllerSpec": {"replicas": _COUNT},
    "apps.v1.DeploymentSpec": {"replicas": _COUNT, "revisionHistoryLimit": _COUNT, "minReadySeconds": _COUNT},
    "apps.v1.DeploymentStrategy": {"type": {"enum": ["RollingUpdate", "Recreate"]}},
    "apps.v1.ReplicaSetSpec": {"replicas": _COUNT, "minReadySeconds": _COUNT},
    "apps.v1.StatefulSetSpec": {
        "replicas": _COUNT,
        "podManagementPolicy": {"enum": ["OrderedReady", "Parallel"]},
    },
    "apps.v1.StatefulSetUpdateStrategy": {"type": {"enum": ["RollingUpdate", "OnDelete"]}},
    "apps.v1.DaemonSetUpdateStrategy": {"type": {"enum": ["RollingUpdate", "OnDelete"]}},
    "autoscaling.v1.ScaleSpec": {"replicas": _COUNT},
    "batch.v1.JobSpec": {
        "parallelism": _COUNT,
        "completions": _COUNT,
        "backoffLimit": _COUNT,
        "completionMode": {"enum": ["NonIndexed", "Indexed"]},
    },
    "batch.v1.CronJobSpec": {"concurrencyPolicy": {"enum": ["Allow", "Forbid", "Replace"]}},
    "storage.v1.StorageClass": {
        "volumeBindingMode": {"enum": ["Immediate", "WaitForFirstConsumer"]},
        "reclaimPolicy": {"enum": ["Delete", "Retain"]},
    },
    "scheduling.v1.PriorityClass": {"preemptionPolicy": {"enum": ["Never", "PreemptLowerPriority"]}},
    "autoscaling.v2.HorizontalPodAutoscalerSpec": {"maxReplicas": {"minimum": 1}, "minReplicas": _COUNT},
    "autoscaling.v1.HorizontalPodAutoscalerSpec": {"maxReplicas": {"minimum": 1}, "minReplicas": _COUNT},
    "meta.v1.LabelSelectorRequirement": {"operator": {"enum": _SELECTOR_OPERATORS}},
    "policy.v1.PodDisruptionBudgetSpec": {
        "unhealthyPodEvictionPolicy": {"enum": ["IfHealthyBudget", "AlwaysAllow"]},
    },
}


def _fill_container(container: Object) -> None:
    image = container.get("image")
    if "imagePullPolicy" not in container and isinstance(image, str):
        container["imagePullPolicy"] = "Always" if _is_latest(image) else "IfNotPresent"
    resources = container.get("resources")
    if isinstance(resources, dict) and isinstance(resources.get("limits"), dict):
        requests = resources.setdefault("requests", {})
        if isinstance(requests, dict):
            for name, amount in resources["limits"].items():
                requests.setdefault(name, amount)


def _is_latest(image: str) -> bool:
    """An image without tag and digest, or tagged latest."""
    if "@" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag in ("", "latest")


def _fill_service_port(port: Object) -> None:
    if "targetPort" not in port and "port" in port:
        port["targetPort"] = port["port"]


def _fill_rolling_update(strategy: Object) -> None:
    if strategy.get("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        if isinstance(rolling, dict):
            rolling.setdefault("maxSurge", "25%")
            rolling.setdefault("maxUnavailable", "25%")


def _fill_daemon_update(strategy: Object) -> None:
    if strategy.get("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        if isinstance(rolling, dict):
            rolling.setdefault("maxSurge", 0)
            rolling.setdefault("maxUnavailable", 1)


def _fill_stateful_update(strategy: Object) -> None:
    if strategy.get("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {"partition": 0})


def _fill_job(spec: Object) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)


def _fill_limit_requests(item: Object) -> None:
    """A limit is also the default, and a default is also the default request."""
    if item.get("type") != "Container":
        return
    for source, target in (("max", "default"), ("default", "defaultRequest")):
        if isinstance(item.get(source), dict):
            amounts = item.setdefault(target, {})
            if isinstance(amounts, dict):
                for name, amount in item[source].items():
                    amounts.setdefault(name, amount)


FILLS: dict[str, Callable[[Object], None]] = {
    "core.v1.Container": _fill_container,
    "core.v1.EphemeralContainer": _fill_container,
    "core.v1.ServicePort": _fill_service_port,
    "core.v1.LimitRangeItem": _fill_limit_requests,
    "apps.v1.DeploymentStrategy": _fill_rolling_update,
    "apps.v1.DaemonSetUpdateStrategy": _fill_daemon_update,
    "apps.v1.StatefulSetUpdateStrategy": _fill_stateful_update,
    "batch.v1.JobSpec": _fill_job,
}
