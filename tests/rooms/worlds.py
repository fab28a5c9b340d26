"""Random clusters that live, random questions, and both ends of a stream without the wire."""

from random import Random
from typing import Any

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.plugins.resource_quota import ResourceQuotaEstimator
from karpool.estimator.question import EstimateQuestion
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, requirements
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.model.taints import Toleration
from karpool.rooms.arrived import arrived, outstanding
from karpool.rooms.copied_rooms import CopiedRooms
from karpool.rooms.publisher import PublishedRoom, RoomPublisher
from karpool.rooms.room_change import PodsOfWorkload, RoomChangeReader, WorkloadKey
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.requests import (
    AssumedOwner,
    AssumedWorkload,
    ComponentSetsRequest,
    EstimateRequest,
    ReplicasRequest,
    RoomParts,
)
from tests.cluster.feeding import tell, tell_gone

ZONES = ("z1", "z2", "z3")
NAMESPACES = ("default", "team")
RULES = pb.RoomRules(counts_quotas=True, knows_owners=True)
_FRAMEWORK = Framework((NodeResourceEstimator(), ResourceQuotaEstimator(enabled=True)))


class LivingCluster:
    """A cluster that changes at random, and its estimator."""

    def __init__(self, random: Random, name: str = "member1", nodes: int = 12) -> None:
        self.name, self._random = name, random
        self.cluster = Cluster(Aspect.ROOM | Aspect.WAITING | Aspect.QUOTAS | Aspect.OWNERS)
        self.nodes: list[str] = []
        self.pods: list[tuple[str, str]] = []
        self._made = 0
        for _ in range(nodes):
            self.add_node()
        for _ in range(3 * nodes):
            self.add_pod()

    def live(self, steps: int = 8) -> None:
        for _ in range(steps):
            self._random.choice(
                (
                    self.add_node,
                    self.change_node,
                    self.change_node,
                    self.remove_node,
                    self.add_pod,
                    self.add_pod,
                    self.add_pod,
                    self.remove_pod,
                    self.remove_pod,
                    self.set_quota,
                )
            )()

    def add_node(self) -> None:
        self._made += 1
        self._put_node(f"node-{self._made}")

    def change_node(self) -> None:
        if self.nodes:
            self._put_node(self._random.choice(self.nodes))

    def remove_node(self) -> None:
        if self.nodes:
            name = self.nodes.pop(self._random.randrange(len(self.nodes)))
            tell_gone(self.cluster, kinds.NODES, ObjectKey("", name), 0.0)

    def _put_node(self, name: str) -> None:
        random = self._random
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": random.choice(ZONES)}
        if random.random() < 0.5:
            labels["pool"] = random.choice(("a", "b"))
        if random.random() < 0.2:
            labels[f"rare-{random.randrange(4)}"] = "yes"
        taints = [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}] * (random.random() < 0.2)
        amounts = {
            "cpu": str(random.choice((2, 4, 16))),
            "memory": f"{random.choice((4, 8))}Gi",
            "pods": str(random.choice((3, 5, 110))),
        }
        if random.random() < 0.2:
            amounts["nvidia.com/gpu"] = str(random.randrange(5))
        node = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": random.random() < 0.1},
            "status": {"allocatable": amounts},
        }
        if name not in self.nodes:
            self.nodes.append(name)
        tell(self.cluster, kinds.NODES, ObjectKey("", name), node, 0.0)

    def add_pod(self) -> None:
        random = self._random
        self._made += 1
        namespace, name = random.choice(NAMESPACES), f"pod-{self._made}"
        owner = f"app-{random.randrange(3)}"
        pod: dict[str, Any] = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "StatefulSet",
                        "name": owner,
                        "uid": f"{namespace}/{owner}",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "containers": [
                    {"name": "c", "resources": {"requests": {"cpu": f"{random.randrange(1, 9)}00m"}}}
                ]
            },
            "status": {"phase": "Running"},
        }
        if self.nodes and random.random() < 0.8:
            pod["spec"]["nodeName"] = random.choice(self.nodes)
        self.pods.append((namespace, name))
        tell(self.cluster, kinds.PODS, ObjectKey(namespace, name), pod, 0.0)

    def remove_pod(self) -> None:
        if self.pods:
            key = self.pods.pop(self._random.randrange(len(self.pods)))
            tell_gone(self.cluster, kinds.PODS, ObjectKey(*key), 0.0)

    def set_quota(self) -> None:
        random, namespace = self._random, self._random.choice(NAMESPACES)
        if random.random() < 0.3:
            tell_gone(self.cluster, kinds.RESOURCE_QUOTAS, ObjectKey(namespace, "quota"), 0.0)
            return
        quota: dict[str, Any] = {
            "metadata": {"name": "quota", "namespace": namespace},
            "status": {
                "hard": {"cpu": str(random.randrange(1, 60)), "requests.memory": "100Gi"},
                "used": {"cpu": str(random.randrange(40)), "requests.memory": "1Gi"},
            },
        }
        if random.random() < 0.3:
            quota["spec"] = {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                }
            }
        tell(self.cluster, kinds.RESOURCE_QUOTAS, ObjectKey(namespace, "quota"), quota, 0.0)

    def answer(
        self, request: EstimateRequest, promised: tuple[AssumedWorkload, ...]
    ) -> tuple[int, RoomParts | None]:
        """What its estimator says."""
        on_nodes = tuple(arrived(self.cluster.replicas_of, workload) for workload in promised)
        assumed = tuple(map(outstanding, promised, on_nodes))
        question = EstimateQuestion(request, self.cluster.snapshot(0.0), assumed, False, on_nodes)
        merged = _FRAMEWORK.run_trusted(question)
        return merged.answer, merged.room_parts if merged.parts else None


def random_requirements(random: Random, namespace: str = "") -> Any:
    selector = {"pool": random.choice(("a", "b", "c"))} if random.random() < 0.3 else {}
    affinity = None
    if random.random() < 0.4:
        condition = random.choice(
            (
                SelectorRequirement(key="topology.kubernetes.io/zone", operator="In", values=["z1", "z3"]),
                SelectorRequirement(key="pool", operator="NotIn", values=["a"]),
                SelectorRequirement(key="rare-1", operator="Exists"),
                SelectorRequirement(key="kubernetes.io/hostname", operator="In", values=["node-3", "node-5"]),
            )
        )
        fields = (
            [SelectorRequirement(key="metadata.name", operator="In", values=["node-2", "node-4"])]
            if random.random() < 0.2
            else []
        )
        affinity = NodeSelector(
            node_selector_terms=[NodeSelectorTerm(match_expressions=[condition], match_fields=fields)]
        )
    tolerations = (Toleration(key="dedicated", operator="Exists"),) if random.random() < 0.4 else ()
    amounts = {"cpu": f"{random.randrange(1, 30)}00m"}
    if random.random() < 0.5:
        amounts["memory"] = f"{random.randrange(1, 4)}Gi"
    if random.random() < 0.2:
        amounts["nvidia.com/gpu"] = "1"
    if random.random() < 0.1:
        amounts = {}
    claim = ReplicaNodeClaim(selector, affinity, tolerations)
    return requirements(amounts, claim, namespace, random.choice(("", "high")))


def random_request(random: Random) -> EstimateRequest:
    namespace = random.choice(("", *NAMESPACES))
    if random.random() < 0.3:
        components = tuple(
            Component(f"part-{number}", random.randrange(4), random_requirements(random))
            for number in range(random.randrange(4))
        )
        return ComponentSetsRequest("", components, namespace, wants_parts=True)
    needs = None if random.random() < 0.1 else random_requirements(random, namespace)
    return ReplicasRequest("", needs, wants_parts=True)


def random_promise(random: Random) -> AssumedWorkload:
    number = random.randrange(3)
    owner = AssumedOwner("apps/v1", "StatefulSet", f"app-{number}", (random.randrange(6),))
    parts = tuple(
        Component(f"part-{part}", random.randrange(1, 6), random_requirements(random))
        for part in range(random.choice((1, 1, 2)))
    )
    return AssumedWorkload(random.choice(NAMESPACES), parts, owner)


def workload_of(promise: AssumedWorkload) -> WorkloadKey:
    assert promise.workload is not None
    return promise.namespace, promise.workload.api_version, promise.workload.kind, promise.workload.name


class Wire:
    """The way from one cluster's publisher to a copy, through bytes."""

    def __init__(self, living: LivingCluster, copies: CopiedRooms) -> None:
        self.living, self.copies = living, copies
        self.publisher = RoomPublisher(RULES)
        self.sent: PublishedRoom | None = None
        self._reader = RoomChangeReader()

    def parts(self, followed: tuple[AssumedWorkload, ...] = ()) -> list[pb.RoomPatch]:
        state = self.publisher.publish(self.living.cluster.snapshot(0.0))
        pods: dict[WorkloadKey, PodsOfWorkload] = {
            workload_of(promise): self.living.cluster.replicas_of(*workload_of(promise))
            for promise in followed
        }
        parts = list(self.publisher.parts(self.living.name, self.sent, state, pods))
        self.sent = state
        return parts

    def deliver(self, *parts: pb.RoomPatch) -> None:
        for part in parts:
            change = self._reader.read(pb.RoomPatch.FromString(part.SerializeToString()))
            if change is not None:
                self.copies.apply(change)

    def catch_up(self, followed: tuple[AssumedWorkload, ...] = ()) -> None:
        self.deliver(*self.parts(followed))

    def answer(
        self, request: EstimateRequest, promised: tuple[AssumedWorkload, ...]
    ) -> tuple[int, RoomParts | None]:
        """What the copy says."""
        copy = self.copies.get(self.living.name)
        assert copy is not None
        on_nodes = [arrived(copy.pods_of, promise) for promise in promised]
        self.copies.assume(copy.name, tuple(map(outstanding, promised, on_nodes)))
        answer = self.copies.answers(request, [copy.name])[copy.name]
        return answer.value, answer.parts
