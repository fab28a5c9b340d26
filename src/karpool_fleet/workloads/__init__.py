"""The workload controllers: they create and delete the pods of Deployments, Jobs and other workloads."""

from collections.abc import Mapping

from karpool_fleet.runtime.supervisor import Build
from karpool_fleet.workloads.daemonset import DaemonSetController
from karpool_fleet.workloads.deployment import DeploymentController
from karpool_fleet.workloads.job import JobController
from karpool_fleet.workloads.pod_gc import PodGC
from karpool_fleet.workloads.replicaset import ReplicaSetController
from karpool_fleet.workloads.statefulset import StatefulSetController


def workload_components() -> Mapping[str, Build]:
    """Return the components to add to a cluster, by upstream's names."""
    return {
        "deployment-controller": DeploymentController,
        "replicaset-controller": ReplicaSetController,
        "statefulset-controller": StatefulSetController,
        "daemonset-controller": DaemonSetController,
        "job-controller": JobController,
        "pod-garbage-collector": PodGC,
    }
