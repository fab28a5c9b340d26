"""Manifests that the chapters write."""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool.gpu.controller.options import SCHEDULER_NAME as GPU_SCHEDULER
from karpool.model.kubernetes.node import HOSTNAME
from karpool.scheduler.controller.options import SCHEDULER_NAME

Object = dict[str, Any]

BY_AVAILABILITY = {
    "replicaSchedulingType": "Divided",
    "replicaDivisionPreference": "Weighted",
    "weightPreference": {"dynamicWeight": "AvailableReplicas"},
}
ALL_OR_NOTHING = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"}


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def deployment(
    where: str,
    name: str,
    replicas: int,
    *,
    cpu: str = "1",
    memory: str = "1Gi",
    annotations: Mapping[str, str] | None = None,
    team: str = "",
    avoids: str = "",
) -> Object:
    """Return a Deployment.

    Pods of a `team` run on its own nodes; `avoids` names an app they never share one with.
    """
    labels = {"app": name}
    spec: Object = {
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": name,
                "image": f"example.invalid/{name}:1",
                "resources": {"requests": {"cpu": cpu, "memory": memory}},
            }
        ],
    }
    if team:
        spec["nodeSelector"] = {"team": team}
        spec["tolerations"] = [{"key": "team", "operator": "Equal", "value": team, "effect": "NoSchedule"}]
    if avoids:
        term = {"labelSelector": {"matchLabels": {"app": avoids}}, "topologyKey": HOSTNAME}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": where, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": dict(annotations or {})},
                "spec": spec,
            },
        },
    }


def policy(where: str, names: Sequence[str], clusters: Sequence[str], how: Mapping[str, Any]) -> Object:
    """Return a policy that propagates Deployments to clusters, by Karpool's scheduler."""
    return {
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": names[0], "namespace": where},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "resourceSelectors": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": name} for name in names
            ],
            "placement": {
                "clusterAffinity": {"clusterNames": list(clusters)},
                "replicaScheduling": dict(how),
            },
        },
    }


def budget(where: str, app: str, least: int) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": where},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
    }


def fraction(where: str, name: str, *, vram: str, tflops: str) -> Object:
    """Return a pod that requests a fraction of a GPU of the pool `shared`."""
    asked = {"gpupool": "shared", "vram-request": vram, "tflops-request": tflops}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": where,
            "labels": {"app": name},
            "annotations": {f"tensor-fusion.ai/{key}": value for key, value in asked.items()},
        },
        "spec": {
            "schedulerName": GPU_SCHEDULER,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "example.invalid/model:1",
                    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
                }
            ],
        },
    }
