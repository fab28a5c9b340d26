"""Manifests that the scenarios send."""

from collections.abc import Sequence
from typing import Any


def deployment(name: str, namespace: str, replicas: int, cpu: str = "500m", **pod: Any) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **pod},
            },
        },
    }


# Workloads are placed, and nothing of them reaches a member.
HELD_BACK: dict[str, Any] = {"suspension": {"dispatching": True}}
# What tells a binding that is to be placed from one that only carries dependencies.
OF_A_POLICY = {"propagationpolicy.karmada.io/permanent-id": "00000000-0000-0000-0000-000000000000"}
DYNAMIC = {
    "replicaSchedulingType": "Divided",
    "replicaDivisionPreference": "Weighted",
    "weightPreference": {"dynamicWeight": "AvailableReplicas"},
}
AGGREGATED = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"}


def policy(
    name: str,
    namespace: str,
    clusters: Sequence[str],
    scheduling: dict[str, Any] | None = None,
    scheduler: str = "default-scheduler",
    **spec: Any,
) -> dict[str, Any]:
    """A policy for the Deployments of a namespace."""
    return {
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulerName": scheduler,
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment"}],
            "placement": {
                "clusterAffinity": {"clusterNames": list(clusters)},
                **({"replicaScheduling": scheduling} if scheduling else {}),
            },
            **spec,
        },
    }


def node(name: str, cpu: str, memory: str = "16Gi", **labels: str) -> dict[str, Any]:
    """A machine that kwok keeps alive."""
    room = {"cpu": cpu, "memory": memory, "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"capacity": room, "allocatable": room},
    }
