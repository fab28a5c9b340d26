"""Keeps the status of PodDisruptionBudgets current.

`model.disruption.allowance` has the arithmetic. This module finds the budgets that a write concerns and
recounts them. Percentages are of the replicas that the pods' controllers ask for; a pod without a controller
counts itself.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import LabelSelector
from karpool.model.kubernetes.pod_disruption import (
    PdbAllowance,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    allowance,
)
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.labels import LabelMatcher
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import READY, StoredObject

if TYPE_CHECKING:
    from karpool_fleet.apiserver.objects.cluster import ServedCluster

BUDGETS = "poddisruptionbudgets.policy"
_CONTROLLERS = frozenset(
    {"deployments.apps", "replicasets.apps", "statefulsets.apps", "replicationcontrollers"}
)
_DISRUPTED_SECONDS = 120.0  # an eviction whose pod still exists after this did not happen
_ACTIVE = ("Running", "Pending", "Unknown", "")


class _Members:
    """The pods that one budget selects, updated change by change."""

    def __init__(self, cluster: "ServedCluster", budget: StoredObject) -> None:
        self.asked = _spec(budget).selector
        self._selector = _compile(self.asked)
        in_namespace = cluster.store.collection("pods").in_namespace(budget.namespace)
        self.pods = {name: pod for name, pod in in_namespace.items() if self.selects(pod)}

    def selects(self, pod: StoredObject) -> bool:
        return self._selector is not None and self._selector.matches(pod.labels)

    def follow(self, event: StoredEvent) -> bool:
        """Apply a change of a pod; return whether it concerns this budget."""
        pod = event.record
        if event.type != "DELETED" and self.selects(pod):
            self.pods[pod.name] = pod
            return True
        return self.pods.pop(pod.name, None) is not None


class DisruptionBudgets:
    """Listens to the store, knows the pods of each budget, and recounts in the background."""

    def __init__(self, cluster: "ServedCluster") -> None:
        self._cluster = cluster
        self._budgets = cluster.store.collection(BUDGETS)
        self._members: dict[str, dict[str, _Members]] = {}  # by namespace and name of the budget
        cluster.store.listeners.append(self._on_change)

    def resume(self) -> None:
        """Take up the budgets of a restored store."""
        for budget in self._budgets.records():
            self._on_budget(budget, gone=False)

    def selecting(self, pod: StoredObject) -> list[StoredObject]:
        """The budgets a pod belongs to."""
        budgets = (
            self._budgets.get(pod.namespace, name)
            for name, members in self._members.get(pod.namespace, {}).items()
            if members.selects(pod)
        )
        return [budget for budget in budgets if budget is not None]

    def refresh(self, budget: StoredObject) -> StoredObject:
        """Recount a budget now; return the record with its current status. O(pods it selects)."""
        obj = budget.object()
        members = self._members[budget.namespace][budget.name]
        status = _counted(self._cluster, members.pods, _spec(budget), obj)
        if status == obj.get("status"):
            return budget
        return self._cluster.store.put(self._budgets, {**obj, "status": status})

    def _on_change(self, event: StoredEvent) -> None:
        record = event.record
        kind = record.collection.group_resource
        if kind == "pods":
            for name, members in self._members.get(record.namespace, _NO_MEMBERS).items():
                if members.follow(event):
                    self._schedule(record.namespace, name)
        elif kind == BUDGETS:
            self._on_budget(record, gone=event.type == "DELETED")
        elif kind in _CONTROLLERS:
            for name in self._members.get(record.namespace, _NO_MEMBERS):
                self._schedule(record.namespace, name)

    def _on_budget(self, budget: StoredObject, *, gone: bool) -> None:
        members = self._members.setdefault(budget.namespace, {})
        member = members.get(budget.name)
        if gone:
            members.pop(budget.name, None)
            if not members:
                del self._members[budget.namespace]
            return
        if member is None or member.asked != _spec(budget).selector:
            members[budget.name] = _Members(self._cluster, budget)
        self._schedule(budget.namespace, budget.name)

    def _schedule(self, namespace: str, name: str) -> None:
        def recount() -> None:
            budget = self._budgets.get(namespace, name)
            if budget is not None:
                self.refresh(budget)

        self._cluster.background.schedule(("budget", namespace, name), recount)


_NO_MEMBERS: dict[str, _Members] = {}


def _spec(budget: StoredObject) -> PodDisruptionBudgetSpec:
    """Return the spec of a stored budget; one that cannot be read selects no pods."""
    try:
        return msgspec.json.decode(budget.data, type=PodDisruptionBudget).spec
    except msgspec.DecodeError:
        return PodDisruptionBudgetSpec()


def _compile(selector: LabelSelector | None) -> LabelMatcher | None:
    """Compile a selector; None, which selects no pods, if it is absent or unusable."""
    try:
        return selector.compile() if selector is not None else None
    except Invalid:
        return None


def _counted(
    cluster: "ServedCluster", members: dict[str, StoredObject], spec: PodDisruptionBudgetSpec, obj: Object
) -> Object:
    before: Object = obj.get("status") or {}
    pods = [pod for pod in members.values() if _counts(pod)]
    disrupted = _still_disrupted(cluster, before.get("disruptedPods") or {}, members)
    healthy = sum(
        pod.field(READY) == "true" and not pod.deleting and pod.name not in disrupted for pod in pods
    )
    try:
        granted = allowance(spec, pods=len(pods), replicas=_replicas(cluster, pods), healthy=healthy)
    except Invalid:
        granted = PdbAllowance(len(pods), len(pods), 0)  # an amount that cannot be read protects every pod
    status: Object = {
        "disruptionsAllowed": granted.disruptions,
        "currentHealthy": healthy,
        "desiredHealthy": granted.desired_healthy,
        "expectedPods": granted.expected,
        "observedGeneration": obj["metadata"].get("generation") or 0,
    }
    if disrupted:
        status["disruptedPods"] = disrupted
    status["conditions"] = _conditions(cluster, before, status)
    return status


def _counts(pod: StoredObject) -> bool:
    return pod.field("status.phase") in _ACTIVE


def _still_disrupted(cluster: "ServedCluster", before: Object, pods: dict[str, StoredObject]) -> Object:
    """Return evictions that were allowed and are not visible in the pod yet."""
    kept: Object = {}
    for name, since in before.items():
        pod = pods.get(name)
        if pod is None or pod.deleting:
            continue
        try:
            fresh = cluster.clock.now() - parse_rfc3339(since) < _DISRUPTED_SECONDS
        except (TypeError, ValueError, AttributeError):
            fresh = False
        if fresh:
            kept[name] = since
    return kept


def _replicas(cluster: "ServedCluster", pods: list[StoredObject]) -> int:
    """Return the replicas that the controllers of these pods ask for; pods without one count themselves."""
    asked: dict[str, int] = {}
    alone = 0
    for pod in pods:
        top = _top_controller(cluster, pod) if pod.owners else None
        if top is None:
            alone += 1
        elif top.uid not in asked:
            replicas = (top.object().get("spec") or {}).get("replicas")
            asked[top.uid] = replicas if isinstance(replicas, int) else 0
    return sum(asked.values()) + alone


def _top_controller(cluster: "ServedCluster", record: StoredObject) -> StoredObject | None:
    """Return the topmost workload of a pod: its Deployment rather than its ReplicaSet."""
    controller = None
    for _ in range(4):
        above = (cluster.store.by_uid(uid) for uid in record.owners)
        owner = next(
            (o for o in above if o is not None and o.collection.group_resource in _CONTROLLERS), None
        )
        if owner is None:
            return controller
        controller = record = owner
    return controller


def _conditions(cluster: "ServedCluster", before: Object, status: Object) -> list[Any]:
    possible = status["disruptionsAllowed"] > 0
    wanted = {
        "type": "DisruptionAllowed",
        "status": "True" if possible else "False",
        "reason": "SufficientPods" if possible else "InsufficientPods",
        "message": "",
        "observedGeneration": status["observedGeneration"],
        "lastTransitionTime": cluster.now(),
    }
    others = []
    for condition in before.get("conditions") or ():
        if condition.get("type") != wanted["type"]:
            others.append(condition)
        elif condition.get("status") == wanted["status"]:
            wanted["lastTransitionTime"] = condition.get("lastTransitionTime", wanted["lastTransitionTime"])
    return [*others, wanted]
