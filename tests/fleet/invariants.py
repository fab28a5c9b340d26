"""What must hold in every embedded cluster, whatever happens to it. Slow and obvious on purpose.

Nothing of `packing` or `cluster` is used: this is the other opinion. Objects are the raw ones of
the API server, read past all faults. `Judge` listens to every write and to every eviction, so it
sees a pod at the moment it is bound and a budget at the moment it is spent. Functions give
violations as sentences; none is good.

A scheduler works on what it has heard, so a node may change just before a pod is bound to it.
Taints that controllers put on nodes in operation are therefore not held against a binding.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from karpool.kube.transport_interface import HttpRequest
from karpool.model import resources
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool_fleet.apiserver.serve.server import Answer, ApiServer
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.cloud.cloud import Cloud

Object = dict[str, Any]
Violations = Iterator[str]

_OPERATION = ("node.kubernetes.io/", "karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler")


# The world, as plain objects


@dataclass
class World:
    """Everything in one cluster and its cloud, by kind."""

    kinds: Mapping[str, list[Object]]
    cloud: Cloud | None = None

    def of(self, kind: str) -> list[Object]:
        return self.kinds.get(kind, [])

    @cached_property
    def nodes(self) -> dict[str, Object]:
        return {name_of(node): node for node in self.of("nodes")}

    @cached_property
    def pods_on(self) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for pod in self.of("pods"):
            if node := pod["spec"].get("nodeName"):
                found.setdefault(node, []).append(pod)
        return found

    @cached_property
    def uids(self) -> set[str]:
        return {each["metadata"]["uid"] for objects in self.kinds.values() for each in objects}


def world(server: ApiServer, cloud: Cloud | None = None) -> World:
    store = server.cluster.store
    return World(
        {
            collection.group_resource: [record.object() for record in collection.ordered(None)]
            for collection in store.collections()
        },
        cloud,
    )


def name_of(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def labels_of(obj: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found


def has_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_ready(obj: Object) -> bool:
    return condition(obj, "Ready") == "True"


def condition(obj: Object, kind: str) -> str:
    for each in obj.get("status", {}).get("conditions") or ():
        if each["type"] == kind:
            return str(each["status"])
    return ""


def requests_of(pod: Object) -> dict[str, int]:
    return {**effective_requests(decode(pod, Pod)), "pods": 1}


def amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    return resources.parse_all(quantities)


# Fitting


def matches(requirement: Object, labels: Mapping[str, str]) -> bool:
    """One entry of matchExpressions, of a node or of a label selector."""
    value, values = labels.get(requirement["key"]), requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise AssertionError(requirement)


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """A label selector; a missing one selects nothing, an empty one everything."""
    if selector is None:
        return False
    return all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    ) and all(matches(each, labels) for each in selector.get("matchExpressions") or ())


def tolerates(pod: Object, taint: Object) -> bool:
    for each in pod["spec"].get("tolerations") or ():
        if each.get("effect") and each["effect"] != taint["effect"]:
            continue
        if each.get("key") and each["key"] != taint["key"]:
            continue
        if each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""):
            return True
    return False


def host_ports(pod: Object) -> set[tuple[str, int]]:
    return {
        (port.get("protocol", "TCP"), port["hostPort"])
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def required(pod: Object, kind: str) -> list[Object]:
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    found: Any = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return found if isinstance(found, list) else [found]


def misplaced(pod: Object, node: Object) -> Violations:
    """Why this node is the wrong one for this pod, room and other pods apart."""
    where = f"pod {name_of(pod)} on node {name_of(node)}"
    labels = labels_of(node)
    for key, value in (pod["spec"].get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            yield f"{where}: selector asks for {key}={value}, the node has {labels.get(key)}"
    for wanted in required(pod, "nodeAffinity"):
        fields = {"metadata.name": name_of(node)}
        terms = wanted["nodeSelectorTerms"]
        if not any(
            all(matches(each, labels) for each in term.get("matchExpressions") or ())
            and all(matches(each, fields) for each in term.get("matchFields") or ())
            for term in terms
        ):
            yield f"{where}: node affinity is not satisfied: {terms}"
    for taint in node["spec"].get("taints") or ():
        hard = taint["effect"] in ("NoSchedule", "NoExecute") and not taint["key"].startswith(_OPERATION)
        if hard and not tolerates(pod, taint):
            yield f"{where}: taint {taint['key']}:{taint['effect']} is not tolerated"


def overfull(node: Object, pods: Iterable[Object]) -> Violations:
    """What these pods ask for together and the node does not have."""
    offered = resources.parse(node.get("status", {}).get("allocatable"))
    used: dict[str, int] = {}
    for pod in pods:
        resources.add(used, requests_of(pod))
    for resource, units in used.items():
        if units > offered.get(resource, 0):
            yield f"node {name_of(node)}: {units} of {resource} used, {offered.get(resource, 0)} offered"


def in_conflict(pod: Object, others: Iterable[Object], nodes: Mapping[str, Object]) -> Violations:
    """Host ports and required anti-affinity, both ways, against pods that are on nodes."""
    here = nodes[pod["spec"]["nodeName"]]
    ports = host_ports(pod)
    for other in others:
        there = nodes.get(other["spec"]["nodeName"])
        if there is None:
            continue
        if there is here and ports & host_ports(other):
            yield f"pods {name_of(pod)} and {name_of(other)} use the same host port on {name_of(here)}"
        if _apart(pod, other, here, there) or _apart(other, pod, there, here):
            yield f"pods {name_of(pod)} and {name_of(other)} are kept apart by anti-affinity and are not"


def _apart(pod: Object, other: Object, here: Object, there: Object) -> bool:
    """Whether `pod` refuses to be where it is because of `other`."""
    for term in required(pod, "podAntiAffinity"):
        namespaces = term.get("namespaces") or [pod["metadata"]["namespace"]]
        key = term["topologyKey"]
        if (
            other["metadata"]["namespace"] in namespaces
            and selects(term.get("labelSelector"), labels_of(other))
            and labels_of(here).get(key) is not None
            and labels_of(here).get(key) == labels_of(there).get(key)
        ):
            return True
    return False


# After every step


def nodes_hold_their_pods(now: World) -> Violations:
    for name, pods in now.pods_on.items():
        if name in now.nodes:
            yield from overfull(now.nodes[name], [pod for pod in pods if not has_ended(pod)])


def limits_hold(now: World) -> Violations:
    """Claims count as soon as they exist; what is on its way out does not, as upstream has it."""
    for pool in now.of("nodepools.karpenter.sh"):
        limits = amounts(pool["spec"].get("limits"))
        used: dict[str, int] = {}
        for claim in now.of("nodeclaims.karpenter.sh"):
            if labels_of(claim).get("karpenter.sh/nodepool") == name_of(pool) and not is_going(claim):
                asked = claim["spec"].get("resources", {}).get("requests")
                resources.add(used, amounts(claim.get("status", {}).get("capacity") or asked))
                resources.add(used, {"nodes": 1})
        for resource, most in limits.items():
            if used.get(resource, 0) > most:
                yield f"pool {name_of(pool)}: {used[resource]} of {resource} claimed, the limit is {most}"


def quotas_hold(now: World) -> Violations:
    """Only what the random runs use: pods and requests, without scopes."""
    for quota in now.of("resourcequotas"):
        used: dict[str, int] = {}
        for pod in now.of("pods"):
            if pod["metadata"]["namespace"] == quota["metadata"]["namespace"] and not has_ended(pod):
                wanted = requests_of(pod)
                resources.add(
                    used, {"pods": 1, **{f"requests.{key}": units for key, units in wanted.items()}}
                )
        for name, text in quota["spec"]["hard"].items():
            most = resources.amount(name.removeprefix("requests."), text)
            if used.get(name, 0) > most:
                yield f"quota {name_of(quota)}: {used[name]} of {name} used, {most} allowed"


STEP: tuple[Callable[[World], Violations], ...] = (nodes_hold_their_pods, limits_hold, quotas_hold)


def after_a_step(now: World) -> list[str]:
    return [sentence for check in STEP for sentence in check(now)]


# When nothing has happened for long


def claims_are_whole(now: World) -> Violations:
    """Claim, machine and node belong together, one of each."""
    assert now.cloud is not None
    machines = {instance.provider_id: instance for instance in now.cloud.instances.values()}
    nodes: dict[str, list[Object]] = {}
    for node in now.of("nodes"):
        nodes.setdefault(node["spec"].get("providerID", ""), []).append(node)
    claimed: set[str] = set()
    for claim in now.of("nodeclaims.karpenter.sh"):
        where, provider = f"claim {name_of(claim)}", claim.get("status", {}).get("providerID", "")
        claimed.add(provider)
        if is_going(claim):
            yield f"{where} is still going"
        elif provider not in machines:
            yield f"{where} has no machine ({provider or 'it was never launched'})"
        elif len(nodes.get(provider, ())) != 1:
            yield f"{where} has {len(nodes.get(provider, ()))} nodes"
        elif condition(claim, "Initialized") != "True":
            yield f"{where} has not been initialised"
    for provider, machine in machines.items():
        if machine.tags.get("claim") and provider not in claimed:
            yield f"machine {machine.id} has no claim"
        if provider not in nodes:
            yield f"machine {machine.id} has no node"
    for provider, found in nodes.items():
        if provider.startswith("embedded:///") and provider not in machines:
            yield f"node {name_of(found[0])} has no machine"


def pods_have_live_nodes(now: World) -> Violations:
    for pod in now.of("pods"):
        node = now.nodes.get(pod["spec"].get("nodeName", ""))
        if pod["spec"].get("nodeName") and node is None:
            yield f"pod {name_of(pod)} is on node {pod['spec']['nodeName']}, which is gone"
        elif node is not None and pod["status"]["phase"] == "Running" and not is_ready(node):
            yield f"pod {name_of(pod)} runs on node {name_of(node)}, which is not ready"
        elif node is not None and pod["status"]["phase"] == "Pending":
            yield f"pod {name_of(pod)} was bound to {name_of(node)} and never started"
        if is_going(pod):
            yield f"pod {name_of(pod)} is still going"


def owners_exist(now: World) -> Violations:
    for kind in ("pods", "replicasets.apps", "persistentvolumeclaims", "controllerrevisions.apps"):
        for obj in now.of(kind):
            owners = obj["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in now.uids for owner in owners):
                yield f"{kind} {name_of(obj)}: its owner {owners[0]['kind']} {owners[0]['name']} is gone"


def nodes_are_calm(now: World) -> Violations:
    for node in now.of("nodes"):
        if is_going(node):
            yield f"node {name_of(node)} is still going"
        elif not is_ready(node):
            yield f"node {name_of(node)} is not ready"


def workloads_are_complete(now: World, *, unless_labelled: str) -> Violations:
    """Every replica that was asked for is there and ready, except where quotas or limits may forbid it."""
    for kind in ("deployments.apps", "statefulsets.apps"):
        for obj in now.of(kind):
            wanted, ready = obj["spec"]["replicas"], obj.get("status", {}).get("readyReplicas", 0)
            if wanted != ready and unless_labelled not in labels_of(obj):
                yield f"{kind} {name_of(obj)}: {ready} of {wanted} replicas are ready"


QUIET: tuple[Callable[[World], Violations], ...] = (
    *STEP,
    claims_are_whole,
    pods_have_live_nodes,
    owners_exist,
    nodes_are_calm,
)


def when_quiet(now: World) -> list[str]:
    return [sentence for check in QUIET for sentence in check(now)]


# While it happens


@dataclass
class Judge:
    """Sees every binding and every eviction of a server, and remembers what was wrong."""

    server: ApiServer
    violations: list[str] = field(default_factory=list)
    bindings: int = 0
    evictions: int = 0

    def __post_init__(self) -> None:
        self.server.cluster.store.listeners.append(self._on_change)
        self.server.around = self._around

    def _all(self, kind: str) -> list[Object]:
        return [record.object() for record in self.server.cluster.store.collection(kind).ordered(None)]

    def _on_change(self, event: StoredEvent) -> None:
        record = event.record
        if record.collection.group_resource != "pods" or event.type == "DELETED":
            return
        before = "" if event.previous is None else event.previous.field("spec.nodeName")
        if record.field("spec.nodeName") and not before:
            self.bindings += 1
            self.violations += self._bound(record.object())

    def _bound(self, pod: Object) -> Violations:
        nodes = {name_of(node): node for node in self._all("nodes")}
        node = nodes.get(pod["spec"]["nodeName"])
        if node is None:
            return  # it went while the scheduler was deciding; whether that is cleaned up shows later
        others = [
            each
            for each in self._all("pods")
            if each["spec"].get("nodeName") and not has_ended(each) and name_of(each) != name_of(pod)
        ]
        here = [other for other in others if other["spec"]["nodeName"] == name_of(node)]
        yield from misplaced(pod, node)
        yield from overfull(node, [*here, pod])
        yield from in_conflict(pod, others, nodes)

    async def _around(self, request: HttpRequest, handle: Callable[[HttpRequest], Any]) -> Answer:
        if request.method != "POST" or not request.path.endswith("/eviction"):
            answer: Answer = await handle(request)
            return answer
        *_, namespace, _pods, name, _eviction = request.path.split("/")
        counted = self._budgets(namespace, name)  # nothing can come between this and the request
        answer = await handle(request)
        if answer.status < 300 and not any(key == "dryRun" for key, _ in request.query):
            self.evictions += 1
            for budget, healthy, desired in counted:
                if healthy - 1 < desired:
                    self.violations.append(
                        f"evicting {namespace}/{name} leaves {healthy - 1} of the {desired} pods that "
                        f"budget {budget} wants healthy"
                    )
        return answer

    def _budgets(self, namespace: str, name: str) -> list[tuple[str, int, int]]:
        """Budgets of a pod that is healthy: their names, the healthy pods, and how many must stay."""
        record = self.server.cluster.store.collection("pods").get(namespace, name)
        if record is None or not _is_healthy(record.object()):
            return []
        found = []
        for budget in self._all("poddisruptionbudgets.policy"):
            if budget["metadata"]["namespace"] != namespace:
                continue
            chosen = [
                pod
                for pod in self._all("pods")
                if pod["metadata"]["namespace"] == namespace
                and selects(budget["spec"].get("selector"), labels_of(pod))
            ]
            if any(name_of(pod) == f"{namespace}/{name}" for pod in chosen):
                healthy = sum(_is_healthy(pod) for pod in chosen)
                found.append((name_of(budget), healthy, self._desired(budget, chosen)))
        return found

    def _desired(self, budget: Object, chosen: list[Object]) -> int:
        spec = budget["spec"]
        replicas = self._replicas(chosen)
        if "maxUnavailable" in spec:
            return max(0, replicas - _scaled(spec["maxUnavailable"], replicas))
        least = spec["minAvailable"]
        return _scaled(least, replicas if isinstance(least, str) else len(chosen))

    def _replicas(self, pods: list[Object]) -> int:
        """What the controllers of these pods are asked for; a pod without one counts as itself."""
        sizes: dict[str, int] = {}
        alone = 0
        known = {
            each["metadata"]["uid"]: each
            for kind in ("replicasets.apps", "statefulsets.apps", "deployments.apps")
            for each in self._all(kind)
        }
        for pod in pods:
            owner = _controller(pod, known)
            if owner is None:
                alone += 1
                continue
            top = _controller(owner, known) or owner
            sizes[top["metadata"]["uid"]] = top["spec"]["replicas"]
        return alone + sum(sizes.values())


def _controller(obj: Object, known: Mapping[str, Object]) -> Object | None:
    for each in obj["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            return known.get(each["uid"])
    return None


def _is_healthy(pod: Object) -> bool:
    return is_ready(pod) and not is_going(pod)


def _scaled(amount: int | str, total: int) -> int:
    return amount if isinstance(amount, int) else -(-int(amount.rstrip("%")) * total // 100)


def dump(server: ApiServer) -> bytes:
    """Every object of a cluster, for comparing runs byte by byte."""
    return json.dumps(world(server).kinds, sort_keys=True).encode()
