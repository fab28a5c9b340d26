"""Observes every write of one embedded cluster: decisions and their sums.

It listens to the store of the server, unaffected by faults and without influence: it sends no request, does
not wait and does not write. Decisions become log lines at the moment of the write; amounts are integrated
exactly, not sampled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from karpool.consolidation.execution.record import PHASE, RECORD
from karpool.gpu.records.scale_up_object import SCALEUPS
from karpool.kube.transport_interface import HttpRequest
from karpool.model import quantity, resources
from karpool.model.devices.device import PREFIX
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.provisioning.placeholders.smart_pod import COMPONENT, SMART_SCHEDULER
from karpool_fleet.apiserver.serve.server import Answer, ApiServer, Handler
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject

GPU = "nvidia.com/gpu"
_ENDED = ("Succeeded", "Failed")
Object = dict[str, Any]
Say = Callable[[str, Mapping[str, Any]], None]


@dataclass
class SeenPod:
    created: float
    requests: Mapping[str, int]
    counts: bool  # neither a placeholder nor a daemon
    smart: bool = False  # a placeholder
    vram_bytes: int = 0
    percent: int = 0
    gpus: int = 0
    node: str = ""
    charged: bool = False  # counted on its node
    gpu_amount: float = 0.0


@dataclass
class SeenNode:
    gpu_memory_bytes: int = 0
    stated: Mapping[str, Any] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)


@dataclass
class WatchedTotals:
    """Sums since the measurement began; `..._seconds` are integrals over time."""

    pods: int = 0
    bound: int = 0
    ended: int = 0
    evictions: int = 0
    lost: int = 0
    nodes_removed: int = 0
    overfull: int = 0
    placed: int = 0
    replicas_moved: int = 0
    moves: int = 0
    moves_rejected: int = 0
    scale_ups: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each pending period
    node_seconds: float = 0.0
    nodes_most: int = 0
    pod_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)  # by resource: "cpu used", "cpu there", ...


class ClusterRecorder:
    """Records one cluster. `say(decision, details)` writes a log line."""

    def __init__(self, server: ApiServer, now: Callable[[], float], say: Say) -> None:
        self.totals = WatchedTotals()
        self.pods: dict[str, SeenPod] = {}  # by namespace/name
        self.nodes: dict[str, SeenNode] = {}
        self.waiting: dict[str, float] = {}  # pods without a node, since when
        self.ended: list[tuple[str, str]] = []  # pods that have ended, to be deleted by `sweep`
        self._now, self._say = now, say
        self._amounts: dict[str, float] = {}  # current amounts, by the keys of `WatchedTotals.seconds`
        self._since = now()
        self._moves: dict[str, str] = {}
        self._handlers: dict[str, Callable[[StoredEvent], None]] = {
            "pods": self._pod,
            "nodes": self._node,
            "events": self._event,
            "nodeclaims.karpenter.sh": self._claim,
            "configmaps": self._configmap,
            str(SCALEUPS): self._scale_up,
            "resourcebindings.work.karmada.io": self._binding,
            "clusterresourcebindings.work.karmada.io": self._binding,
        }
        for kind in ("nodes", "pods"):  # objects that the cluster started with
            for record in server.cluster.store.collection(kind).records():
                self._handlers[kind](StoredEvent("ADDED", record, None))
        server.cluster.store.listeners.append(self._changed)
        self._outer = server.around
        server.around = self._around

    def begin(self) -> None:
        """Reset the sums: the measurement starts here."""
        self.settle()
        self.totals = WatchedTotals(nodes_most=len(self.nodes))

    def settle(self) -> None:
        """Bring the integrals up to now."""
        now = self._now()
        passed, self._since = now - self._since, now
        if passed <= 0:
            return
        totals = self.totals
        totals.node_seconds += passed * len(self.nodes)
        totals.pod_seconds += passed * (len(self.pods) - len(self.waiting))
        for name, amount in self._amounts.items():
            if amount:
                totals.seconds[name] = totals.seconds.get(name, 0.0) + amount * passed

    def amount(self, name: str) -> float:
        return self._amounts.get(name, 0.0)

    def _add(self, name: str, amount: float) -> None:
        self.settle()
        self._amounts[name] = self._amounts.get(name, 0.0) + amount

    # Requests

    async def _around(self, request: HttpRequest, handle: Handler) -> Answer:
        answer = await (self._outer(request, handle) if self._outer is not None else handle(request))
        if request.method == "POST" and request.path.endswith("/eviction") and answer.status < 300:
            parts = request.path.split("/")
            self.totals.evictions += 1
            self._say("evicted", {"pod": f"{parts[-4]}/{parts[-2]}"})
        return answer

    # Writes

    def _changed(self, event: StoredEvent) -> None:
        handler = self._handlers.get(event.record.collection.group_resource)
        if handler is not None:
            handler(event)

    def _pod(self, event: StoredEvent) -> None:
        record = event.record
        key = f"{record.namespace}/{record.name}"
        phase = record.field("status.phase")
        if event.type == "DELETED" or phase in _ENDED:
            self._gone(key, record, phase)
            return
        pod = self.pods.get(key)
        if pod is None:
            if event.previous is not None and event.previous.field("status.phase") in _ENDED:
                return
            pod = self._new_pod(key, record)
        node = record.field("spec.nodeName")
        if node and not pod.node:
            self._bind(key, pod, node)

    def _new_pod(self, key: str, record: StoredObject) -> SeenPod:
        obj = record.object()
        annotations = obj["metadata"].get("annotations") or {}
        owners = obj["metadata"].get("ownerReferences") or ()
        daemon = any(owner.get("kind") == "DaemonSet" for owner in owners)
        smart = record.labels.get(COMPONENT) == SMART_SCHEDULER
        try:
            requests = effective_requests(decode(obj, Pod))
        except Invalid:
            requests = {}
        pod = self.pods[key] = SeenPod(
            self._now(),
            requests,
            not daemon and not smart,
            smart,
            _quantity(annotations.get(PREFIX + "vram-request")),
            _quantity(annotations.get(PREFIX + "compute-percent-request")),
            _quantity(annotations.get(PREFIX + "gpu-count")) or 1,
        )
        if not record.field("spec.nodeName"):
            self.waiting[key] = pod.created
        if pod.counts:
            self.totals.pods += 1
        return pod

    def _bind(self, key: str, pod: SeenPod, node: str) -> None:
        pod.node = node
        self.settle()
        self.waiting.pop(key, None)
        if pod.counts:
            self.totals.bound += 1
            self.totals.waits.append((pod.created, self._now()))
            self._say("bound", {"pod": key, "node": node})
        seen = self.nodes.get(node)
        if seen is None:
            return
        pod.charged = True
        for name, amount in pod.requests.items():
            seen.used[name] = seen.used.get(name, 0) + amount
            self._add(f"{name} used", amount)
            if seen.used[name] > seen.capacity.get(name, 0) and name in seen.capacity:
                self.totals.overfull += 1
                self._say("overfull", {"node": node, "resource": name, "pod": key})
        pod.gpu_amount = _gpu_share(pod, seen) if pod.counts else 0.0
        self._add("gpu given", pod.gpu_amount)

    def _gone(self, key: str, record: StoredObject, phase: str) -> None:
        pod = self.pods.pop(key, None)
        if pod is None:
            return
        self.settle()
        if key in self.waiting:
            since = self.waiting.pop(key)
            if pod.counts:
                self.totals.waits.append((since, self._now()))
        seen = self.nodes.get(pod.node)
        if seen is not None and pod.charged:
            for name, amount in pod.requests.items():
                seen.used[name] -= amount
                self._add(f"{name} used", -amount)
            self._add("gpu given", -pod.gpu_amount)
        if phase == "Succeeded":
            self.totals.ended += pod.counts
            if not record.owners:
                self.ended.append((record.namespace, record.name))
        elif phase == "Failed" and pod.counts:
            self.totals.lost += 1
            self._say("lost", {"pod": key, "node": pod.node})

    def _node(self, event: StoredEvent) -> None:
        record = event.record
        seen = self.nodes.get(record.name)
        if event.type == "DELETED":
            if seen is not None:
                self._forget(record.name, seen)
            return
        stated = msgspec.json.decode(record.data, type=_Sized).status.allocatable or {}
        if seen is not None and seen.stated == stated:
            return
        if seen is None:
            self.settle()
            seen = self.nodes[record.name] = SeenNode(_gpu_memory(record.labels))
            self.totals.nodes_most = max(self.totals.nodes_most, len(self.nodes))
            labels = record.labels
            self._say(
                "node",
                {
                    "node": record.name,
                    "type": labels.get("node.kubernetes.io/instance-type", ""),
                    "zone": labels.get("topology.kubernetes.io/zone", ""),
                    "capacityType": labels.get("karpenter.sh/capacity-type", ""),
                    "pool": labels.get("karpenter.sh/nodepool", ""),
                },
            )
        capacity = resources.parse_all(stated)
        for name in sorted(seen.capacity.keys() | capacity.keys()):
            difference = capacity.get(name, 0) - seen.capacity.get(name, 0)
            if difference:
                self._add(f"{name} there", difference)
        seen.stated, seen.capacity = stated, capacity

    def _forget(self, name: str, node: SeenNode) -> None:
        for resource, amount in node.capacity.items():
            self._add(f"{resource} there", -amount)
        for resource, amount in node.used.items():
            self._add(f"{resource} used", -amount)
        for pod in self.pods.values():
            if pod.node == name and pod.charged:
                pod.charged = False
                self._add("gpu given", -pod.gpu_amount)
        self.settle()
        del self.nodes[name]
        self.totals.nodes_removed += 1
        self._say("node gone", {"node": name})

    def _claim(self, event: StoredEvent) -> None:
        record = event.record
        if event.type == "ADDED":
            self._say("claim", {"claim": record.name, "pool": record.labels.get("karpenter.sh/nodepool", "")})
        elif record.deleting and event.previous is not None and not event.previous.deleting:
            self._say("claim deleted", {"claim": record.name})

    def _event(self, event: StoredEvent) -> None:
        if event.type != "ADDED":
            return
        obj = event.record.object()
        about = obj.get("involvedObject") or {}
        where = f"{about.get('namespace')}/" if about.get("namespace") else ""
        self._say(
            "event",
            {
                "by": (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or "",
                "about": f"{about.get('kind', '')} {where}{about.get('name', '')}",
                "reason": obj.get("reason", ""),
                "message": obj.get("message", ""),
            },
        )

    def _configmap(self, event: StoredEvent) -> None:
        """Handle records of consolidation moves."""
        record = event.record
        if RECORD not in record.labels or event.type == "DELETED":
            return
        phase = record.labels.get(PHASE, "")
        if self._moves.get(record.name) == phase:
            return
        self._moves[record.name] = phase
        self.totals.moves += phase == "Done"
        self.totals.moves_rejected += phase in ("RolledBack", "Rejected")
        self._say("move", {"move": record.name, "phase": phase})

    def _scale_up(self, event: StoredEvent) -> None:
        if event.type == "ADDED":
            self.totals.scale_ups += 1
            self._say("scale-up", {"scaleUp": event.record.name})
        elif event.type == "DELETED":
            self._say("scale-up over", {"scaleUp": event.record.name})

    def _binding(self, event: StoredEvent) -> None:
        if event.type == "DELETED":
            return
        after = _targets(event.record)
        before = {} if event.previous is None else _targets(event.previous)
        if after == before:
            return
        less = sum(max(count - after.get(name, 0), 0) for name, count in before.items())
        more = sum(max(count - before.get(name, 0), 0) for name, count in after.items())
        self.totals.placed += 1
        self.totals.replicas_moved += min(less, more)
        name = f"{event.record.namespace}/{event.record.name}".lstrip("/")
        self._say("placed", {"binding": name, "from": before, "to": after})


class _Sized(msgspec.Struct):
    class Status(msgspec.Struct):
        allocatable: dict[str, Any] | None = None

    status: Status = msgspec.field(default_factory=Status)


class _Bound(msgspec.Struct):
    class Target(msgspec.Struct):
        name: str
        replicas: int = 0

    class Spec(msgspec.Struct):
        clusters: "list[_Bound.Target] | None" = None

    spec: Spec = msgspec.field(default_factory=Spec)


def _targets(record: StoredObject) -> dict[str, int]:
    clusters = msgspec.json.decode(record.data, type=_Bound).spec.clusters or []
    return {target.name: target.replicas for target in sorted(clusters, key=lambda target: target.name)}


def _quantity(text: str | None) -> int:
    try:
        return quantity.value(text) if text else 0
    except Invalid:
        return 0


def _gpu_memory(labels: Mapping[str, str]) -> int:
    text = labels.get("karpenter.k8s.aws/instance-gpu-memory", "")
    return int(text) * 2**20 if text.isdecimal() else 0


def _gpu_share(pod: SeenPod, node: SeenNode) -> float:
    """Return the GPU share of a pod: whole GPUs, or the larger of its shares of memory and compute."""
    whole = pod.requests.get(GPU, 0)
    if whole or not node.capacity.get(GPU):
        return float(whole)
    if not pod.vram_bytes and not pod.percent:
        return 0.0
    memory = pod.vram_bytes / node.gpu_memory_bytes if node.gpu_memory_bytes else 0.0
    return pod.gpus * min(max(memory, pod.percent / 100), 1.0)
