"""The kube-scheduler of an embedded cluster: `kube_scheduler(settings)` returns the component."""

from karpool_fleet.kube_scheduler.scheduler import KubeScheduler, kube_scheduler
from karpool_fleet.kube_scheduler.settings import LEAST_ALLOCATED, MOST_ALLOCATED, KubeSchedulerSettings

__all__ = ["LEAST_ALLOCATED", "MOST_ALLOCATED", "KubeScheduler", "KubeSchedulerSettings", "kube_scheduler"]
