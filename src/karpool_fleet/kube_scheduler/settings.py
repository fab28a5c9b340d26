"""What can be set about a kube-scheduler, with upstream's defaults."""

from dataclasses import dataclass

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"


@dataclass(frozen=True)
class Weights:
    """How much each score counts; each is from 0 to 100 before."""

    resources: int = 1
    balance: int = 1
    spread: int = 2
    pod_affinity: int = 2
    node_affinity: int = 2
    taints: int = 3


@dataclass(frozen=True)
class KubeSchedulerSettings:
    name: str = "default-scheduler"  # the pods whose schedulerName this is
    strategy: str = LEAST_ALLOCATED
    preemption: bool = True
    weights: Weights = Weights()
    first_backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 10.0
    flush_seconds: float = 300.0  # after which a pod is tried again although nothing has happened
    message_seconds: float = 30.0  # after which pods that wait learn what keeps their like from running
    volume_seconds: float = 600.0  # how long to wait for the volumes of a pod that has a node
    preemption_candidates: int = 100  # nodes that are looked at closely for victims
    writers: int = 16  # requests to the API server at once
