"""Clusters built call by call, with a catalogue of one's own, and the view that is made of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool.cluster import kinds
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.market.market import Market
from karpool.consolidation.execution.stop_switch import StopSwitch
from karpool.consolidation.view import ASPECTS, ClusterView, NodeRemoval, view_of
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.contracts.contract import Contract
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    INITIALIZED,
    NODEPOOL,
    ON_DEMAND,
)
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import ARCH, HOSTNAME, INSTANCE_TYPE, OS, ZONE
from karpool.model.kubernetes.times import rfc3339
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.offerings import StockOut
from tests.cluster.feeding import tell, tell_gone

NOW = 1_800_000_000.0
HOUR = 3600.0
GIB = 1024**3
LINUX = {ARCH: ValueSet(frozenset(("amd64",))), OS: ValueSet(frozenset(("linux",)))}


def instance_type(
    name: str,
    cpu_milli: int,
    memory_gib: float,
    price: float | None,
    *,
    zones: Sequence[str] = ("z1",),
    kinds: Mapping[str, float] | None = None,
) -> InstanceType:
    """`kinds`: capacity type to its share of the price."""
    amounts = {"cpu": cpu_milli, "memory": int(memory_gib * GIB), "pods": 110}
    offerings = tuple(
        Offering(zone, kind, None if price is None else price * share)
        for zone in zones
        for kind, share in (kinds or {ON_DEMAND: 1.0}).items()
    )
    return InstanceType(name, LINUX, amounts, amounts).sold_as(offerings)


def catalogue(*types: InstanceType) -> Catalogue:
    return Catalogue("test", "test-1", types)


def usual_types() -> Catalogue:
    return catalogue(
        instance_type("small", 2000, 8, 0.1),
        instance_type("medium", 4000, 16, 0.2),
        instance_type("large", 8000, 32, 0.4),
    )


class BuiltCluster:
    """Objects are put as they would come from informers."""

    def __init__(
        self, types: Catalogue | None = None, now: float = NOW, contract: Contract | None = None
    ) -> None:
        self.types = types or usual_types()
        self.now = now
        self.cluster = Cluster(ASPECTS, market=Market(self.types, contract=contract))
        self.switch = StopSwitch()

    def tell(self, kind: ClusterKind, namespace: str, name: str, raw: Any) -> None:
        tell(self.cluster, kind, ObjectKey(namespace, name), raw, self.now)

    def gone(self, kind: ClusterKind, namespace: str, name: str) -> None:
        tell_gone(self.cluster, kind, ObjectKey(namespace, name), self.now)

    def pool(self, name: str = "default", **changes: Any) -> None:
        """`disruption`, `annotations`, `spec`, `requirements`, `taints`."""
        disruption = {"consolidateAfter": "0s", "budgets": [], **changes.get("disruption", {})}
        template = {
            "requirements": changes.get("requirements", []),
            "nodeClassRef": {"group": "test", "kind": "Class", "name": "c"},
            "taints": changes.get("taints", []),
        }
        raw = {
            "metadata": {"name": name, "annotations": changes.get("annotations", {})},
            "spec": {"template": {"spec": template}, "disruption": disruption, **changes.get("spec", {})},
        }
        self.tell(kinds.NODEPOOLS, "", name, raw)

    def node(self, name: str, kind: str = "medium", pool: str = "default", **changes: Any) -> None:
        """`labels`, `annotations`, `taints`, `capacity_type`, `zone`, `ready`, `managed`, `initialized`,
        and what `claim` takes."""
        labels = {
            HOSTNAME: name,
            INSTANCE_TYPE: kind,
            ZONE: changes.get("zone", "z1"),
            CAPACITY_TYPE: changes.get("capacity_type", ON_DEMAND),
            ARCH: "amd64",
            OS: "linux",
            NODEPOOL: pool,
            INITIALIZED: "true" if changes.get("initialized", True) else None,
            **changes.get("labels", {}),
        }
        labels = {key: value for key, value in labels.items() if value is not None}
        offered = self.types.types[kind].allocatable
        amounts = {
            "cpu": f"{offered['cpu']}m",
            "memory": str(offered["memory"]),
            "pods": str(offered["pods"]),
        }
        ready = "True" if changes.get("ready", True) else "False"
        raw = {
            "metadata": {"name": name, "labels": labels, "annotations": changes.get("annotations", {})},
            "spec": {"providerID": f"test:///{name}", "taints": changes.get("taints", [])},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }
        self.tell(kinds.NODES, "", name, raw)
        if changes.get("managed", True):
            self.claim(f"claim-{name}", **{**changes, "provider": f"test:///{name}", "labels": labels})

    def claim(self, name: str, *, provider: str = "", labels: Any = None, **changes: Any) -> None:
        """`age`, `conditions`, `deleting`, `last_pod_event`."""
        since = rfc3339(self.now - changes.get("age", HOUR))
        conditions = {
            "Launched": "True",
            "Registered": "True",
            "Initialized": "True" if changes.get("initialized", True) else "Unknown",
            "Consolidatable": "True",
            **changes.get("conditions", {}),
        }
        raw = {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": labels or {NODEPOOL: "default"},
                "deletionTimestamp": rfc3339(self.now) if changes.get("deleting") else None,
            },
            "status": {
                "providerID": provider,
                "lastPodEventTime": changes.get("last_pod_event"),
                "conditions": [
                    {"type": kind, "status": status, "lastTransitionTime": since}
                    for kind, status in conditions.items()
                ],
            },
        }
        self.tell(kinds.NODECLAIMS, "", name, raw)

    def pod(self, name: str, node: str = "", cpu: int = 500, memory_mib: int = 512, **changes: Any) -> None:
        """`labels`, `annotations`, `owner` (kind), `priority`, `start`, `spec`, `status`."""
        owner = changes.get("owner", "ReplicaSet")
        version = "v1" if owner == "Node" else "apps/v1"
        requests = {"cpu": f"{cpu}m", "memory": f"{memory_mib}Mi"}
        raw = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "labels": changes.get("labels", {}),
                "annotations": changes.get("annotations", {}),
                "ownerReferences": [{"apiVersion": version, "kind": owner, "name": "o", "uid": "o"}],
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": requests}}],
                "priority": changes.get("priority"),
                **changes.get("spec", {}),
            },
            "status": {
                "phase": "Running" if node else "Pending",
                "startTime": changes.get("start", rfc3339(self.now - HOUR)) if node else None,
                **changes.get("status", {}),
            },
        }
        self.tell(kinds.PODS, "team", name, raw)

    def budget(self, name: str, labels: Mapping[str, str], allowed: int) -> None:
        raw = {
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"selector": {"matchLabels": dict(labels)}, "minAvailable": 1},
            "status": {"disruptionsAllowed": allowed},
        }
        self.tell(kinds.BUDGETS, "team", name, raw)

    def stop(self, value: str = "true") -> None:
        key = ObjectKey("karpool-system", "karpool-consolidation")
        self.switch.put(key, decode({"data": {"stop": value}}, ConfigMap))

    def view(
        self,
        *,
        recent: Sequence[NodeRemoval] = (),
        in_flight: Sequence[str] = (),
        unavailable: Sequence[StockOut] = (),
    ) -> ClusterView:
        return view_of(
            self.cluster.snapshot(self.now),
            self.now,
            recent=recent,
            in_flight=in_flight,
            unavailable=unavailable,
            stop=self.switch.reason(),
        )
