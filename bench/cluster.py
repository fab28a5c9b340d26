"""The synthetic cluster that the figures are measured on.

Nodes in six shapes and three zones, one in ten tainted, ten bound pods per node,
all from one seed, so that two runs measure the same thing.
"""

from dataclasses import dataclass
from random import Random

from karpool.cluster.cluster_room import ClusterRoom
from karpool.model.kubernetes.node import ARCH, HOSTNAME, INSTANCE_TYPE, OS, REGION, ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.taints import Taint
from karpool.packing.tables.node_table import NodeRow

GIB = 1024**3
ZONES = ("eu-1a", "eu-1b", "eu-1c")
DEDICATED = Taint(key="dedicated", value="batch", effect="NoSchedule")
# name, cores, memory in GiB, GPUs
NODE_SHAPES = (
    ("m6.2xlarge", 8, 32, 0),
    ("m6.4xlarge", 16, 64, 0),
    ("c6.8xlarge", 32, 64, 0),
    ("r6.4xlarge", 16, 128, 0),
    ("m6.8xlarge", 32, 128, 0),
    ("g5.12xlarge", 48, 192, 4),
)
# milli-CPU and MiB of the pods that are bound
POD_SIZES = ((50, 64), (100, 128), (200, 512), (250, 256), (500, 1024), (1000, 2048))
WORKLOADS = 300
SEED = 7


@dataclass(frozen=True, slots=True)
class BoundPod:
    key: str
    shape: PodShape
    node: str


def nodes(count: int = 5000, seed: int = SEED) -> list[NodeRow]:
    random = Random(seed)
    return [_node(number, random) for number in range(count)]


def _node(number: int, random: Random) -> NodeRow:
    kind, cores, memory, gpus = random.choice(NODE_SHAPES)
    name = f"node-{number:05}"
    allocatable = {
        "cpu": cores * 1000 - 80,
        "memory": (memory - 1) * GIB,
        "ephemeral-storage": 100 * GIB,
        "pods": 110,
    }
    if gpus:
        allocatable["nvidia.com/gpu"] = gpus
    return NodeRow(
        name,
        {
            HOSTNAME: name,
            INSTANCE_TYPE: kind,
            ZONE: ZONES[number % len(ZONES)],
            REGION: "eu-1",
            ARCH: "amd64",
            OS: "linux",
            "karpenter.sh/nodepool": "gpu" if gpus else "general",
            "karpenter.sh/capacity-type": random.choice(("spot", "on-demand")),
        },
        (DEDICATED,) if random.random() < 0.1 else (),
        allocatable,
    )


def pods(hosts: list[NodeRow], count: int = 50_000, seed: int = SEED) -> list[BoundPod]:
    random = Random(seed + 1)
    shapes = []
    for number in range(WORKLOADS):
        milli, mib = random.choice(POD_SIZES)
        labels = (("app", f"app-{number}"), ("tier", random.choice(("web", "worker", "cache"))))
        requests = (("cpu", milli), ("memory", mib * 1024**2))
        shapes.append(PodShape(requests, namespace=f"team-{number % 20}", labels=labels))
    names = [host.name for host in hosts]
    return [
        BoundPod(f"{(shape := random.choice(shapes)).namespace}/pod-{number}", shape, random.choice(names))
        for number in range(count)
    ]


def cluster(node_count: int = 5000, pod_count: int = 50_000) -> ClusterRoom:
    state = ClusterRoom()
    hosts = nodes(node_count)
    for host in hosts:
        state.put_node(host)
    for pod in pods(hosts, pod_count):
        state.put_pod(pod.key, pod.shape, pod.node)
    return state
