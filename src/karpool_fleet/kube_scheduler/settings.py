"""Settings of a kube-scheduler, with upstream's defaults."""

from dataclasses import dataclass

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"


@dataclass(frozen=True)
class Weights:
    """Weights of the scores, each of which is from 0 to 100."""

    resources: int = 1
    balance: int = 1
    spread: int = 2
    pod_affinity: int = 2
    node_affinity: int = 2
    taints: int = 3


@dataclass(frozen=True)
class KubeSchedulerSettings:
    name: str = "default-scheduler"  # handles pods with this schedulerName
    strategy: str = LEAST_ALLOCATED
    preemption: bool = True
    weights: Weights = Weights()
    first_backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 10.0
    flush_seconds: float = 300.0  # after which a pod is retried without an event
    message_seconds: float = 30.0  # after which parked pods get the message of their shape
    volume_seconds: float = 600.0  # timeout for the volumes of a pod that has a node
    preemption_candidates: int = 100  # nodes that are checked closely for victims
    writers: int = 16  # concurrent requests to the API server
