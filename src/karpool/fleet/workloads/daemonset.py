"""One pod of a DaemonSet on every node that suits it, for as long as it suits.

Which nodes those are is asked of the shared kernel. A pod is tied to its node by a
node affinity on the node's name and placed there by the scheduler, so that it
counts like any other. `plan` decides; `DaemonSetController` carries it out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from karpool.fleet.runtime import Context
from karpool.fleet.workloads.claiming import claim, owner_reference
from karpool.fleet.workloads.controller import BURST, Controller, Settings, slow_start
from karpool.fleet.workloads.dependents import Dependents
from karpool.fleet.workloads.history import History, forget_old, remember
from karpool.fleet.workloads.nodes import DaemonNodes, Eligible
from karpool.fleet.workloads.pods import (
    available_in,
    is_available,
    is_ready,
    new_pod,
    prefix_for,
)
from karpool.fleet.workloads.revisions import CONTROLLERREVISIONS, REVISION_HASH
from karpool.kube.backoff import Backoff
from karpool.kube.decoding import Object
from karpool.kube.resource import DAEMONSETS, NODES, PODS, Key
from karpool.kube.workqueue import Requeue
from karpool.model.disruption import scaled
from karpool.model.errors import Invalid
from karpool.model.node import Node
from karpool.model.pod import Pod
from karpool.model.taints import Toleration
from karpool.model.workload import daemon_tolerations

FAILED_BACKOFF = Backoff(first=1.0, limit=900.0)


@dataclass(slots=True)
class Plan:
    create: list[str] = field(default_factory=list)  # names of nodes
    delete: list[Pod] = field(default_factory=list)
    failed: list[Pod] = field(default_factory=list)  # to be deleted too, but not in a hurry


def target_of(pod: Pod) -> str:
    """The node a daemon pod is on, or is meant for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    for term in (required.node_selector_terms if required else None) or ():
        for entry in term.match_fields or ():
            if entry.key == "metadata.name" and entry.operator == "In" and entry.values:
                return entry.values[0]
    return ""


def by_node(pods: Sequence[Pod]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        found.setdefault(target_of(pod), []).append(pod)
    return found


def plan(eligible: Eligible, placed: Mapping[str, Sequence[Pod]]) -> Plan:
    """What to create and what to delete so that each suitable node has one pod."""
    steps = Plan()
    for node in eligible.wanted:
        if node not in placed:
            steps.create.append(node)
    for node, pods in placed.items():
        living = [pod for pod in pods if not pod.is_terminating]
        ended = [pod for pod in living if pod.is_terminal]
        running = [pod for pod in living if not pod.is_terminal]
        steps.failed += ended
        if node not in eligible.known:
            # Pods on a node that has gone are for the pod garbage collector; the others never start.
            steps.delete += [pod for pod in running if not pod.spec.node_name]
        elif node not in eligible.tolerable:
            steps.delete += running
        else:
            steps.delete += sorted(running, key=_seniority)[1:]
    return steps


def _seniority(pod: Pod) -> tuple[bool, str, str]:
    """Placed before waiting, older before younger."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp or "", pod.name


def outdated(
    eligible: Eligible,
    placed: Mapping[str, Sequence[Pod]],
    update: str,
    most_unavailable: int,
    is_healthy: Callable[[Pod], bool],
) -> list[Pod]:
    """Pods of old revisions that may go now: those that do not serve at once, others within bounds."""
    down = 0
    idle: list[Pod] = []
    serving: list[Pod] = []
    for node in eligible.wanted:
        living = [pod for pod in placed.get(node, ()) if not pod.is_terminating and not pod.is_terminal]
        if not any(is_healthy(pod) for pod in living):
            down += 1
        for pod in living:
            if pod.labels.get(REVISION_HASH) != update:
                (serving if is_healthy(pod) else idle).append(pod)
    return [*idle, *serving[: max(0, most_unavailable - down)]]


def most_unavailable(spec: Object, nodes: int) -> int | None:
    """How many nodes may lack a serving pod during an update; None when pods are replaced by hand."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return None
    try:
        limit = scaled(
            (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), nodes, "maxUnavailable"
        )
    except Invalid:
        return 1
    return max(1, limit)


def status_of(
    obj: Object, eligible: Eligible, placed: Mapping[str, Sequence[Pod]], history: History, now: float
) -> Object:
    min_ready = obj["spec"].get("minReadySeconds") or 0
    wanted = set(eligible.wanted)
    scheduled = ready = available = updated = misplaced = 0
    for node, pods in placed.items():
        living = sorted((pod for pod in pods if not pod.is_terminal), key=_seniority)
        if not living:
            continue
        if node not in wanted:
            misplaced += 1
            continue
        scheduled += 1
        first = next((pod for pod in living if not pod.is_terminating), living[0])
        ready += is_ready(first)
        available += is_available(first, min_ready, now)
        updated += first.labels.get(REVISION_HASH) == history.update_hash
    status: Object = {
        "observedGeneration": obj["metadata"].get("generation", 0),
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": scheduled,
        "numberMisscheduled": misplaced,
        "numberReady": ready,
    }
    if collisions := (obj.get("status") or {}).get("collisionCount"):
        status["collisionCount"] = collisions
    optional = {
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "numberUnavailable": len(wanted) - available,
    }
    return status | {name: count for name, count in optional.items() if count}


def pod_spec(spec: Object, node: str) -> Object:
    """A template's spec, tied to one node and tolerating what daemon pods tolerate."""
    field_term = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field_term]}]}
    affinity = dict(spec.get("affinity") or {})
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": required,
    }
    own = list(spec.get("tolerations") or ())
    added = [_wire(each) for each in daemon_tolerations(bool(spec.get("hostNetwork")))]
    return {
        **spec,
        "affinity": affinity,
        "tolerations": [*own, *(each for each in added if each not in own)],
    }


def _wire(toleration: Toleration) -> Object:
    return {"key": toleration.key, "operator": toleration.operator, "effect": toleration.effect}


class DaemonSetController(Controller):
    resource = DAEMONSETS

    def __init__(self, context: Context, settings: Settings | None = None) -> None:
        super().__init__(context, settings or Settings())
        self._pods = self.watch(PODS, Pod)
        self._revisions: Dependents[Object] = self.watch(CONTROLLERREVISIONS, dict)
        self._nodes = DaemonNodes(self._on_nodes)
        self._due: dict[str, float] = {}  # when a pod that has ended may go, by uid
        self._failures: dict[tuple[str, str], int] = {}  # by DaemonSet and node, since this instance began
        context.informers.of(NODES, Node).add_sink(self._nodes)

    def _on_nodes(self) -> None:
        for key in self.selectors.owners():
            self.queue.add_after(key, self.settings.gather_seconds)

    async def reconcile(self, key: Key) -> Requeue | None:
        obj = self.owners.get(key)
        if obj is None:
            self._nodes.forget(key)
            return None
        await claim(self.client, self.resource, obj, self._pods)
        await claim(self.client, self.resource, obj, self._revisions)
        if "deletionTimestamp" in obj["metadata"]:
            return None
        history = await remember(self, obj, self._revisions)
        if history is None:
            return None
        uid, now = obj["metadata"]["uid"], self.clock.now()
        eligible = self._nodes.eligible(key, obj)
        steps = plan(eligible, by_node(self._pods.of(uid)))
        more = len(steps.create) > BURST
        await self._carry_out(obj, history, steps)
        wait = await self._clear_failed(obj, steps.failed)
        await self._update(obj, eligible, history, now)
        placed = by_node(self._pods.of(uid))
        await self.write_status(obj, status_of(obj, eligible, placed, history, now))
        pods = self._pods.of(uid)
        await forget_old(
            self, obj, self._revisions, history, [pod.labels.get(REVISION_HASH, "") for pod in pods]
        )
        waits = [
            wait,
            available_in(pods, obj["spec"].get("minReadySeconds") or 0, now),
            0.0 if more else None,
        ]
        known = [each for each in waits if each is not None]
        return Requeue(min(known)) if known else None

    async def _carry_out(self, obj: Object, history: History, steps: Plan) -> None:
        for pod in steps.delete:
            await self._delete(obj, pod)
        works = [partial(self._create, obj, history, node) for node in steps.create[:BURST]]
        _, error = await slow_start(works)
        if error is not None:
            self.record(obj, "Warning", "FailedCreate", f"Error creating: {error}")
            raise error

    async def _create(self, obj: Object, history: History, node: str) -> None:
        meta, template = obj["metadata"], obj["spec"]["template"]
        tied = {**template, "spec": pod_spec(template["spec"], node)}
        reference = owner_reference(self.resource, obj)
        prefix, labels = prefix_for(meta["name"]), {REVISION_HASH: history.update_hash}

        def build(name: str) -> Object:
            return new_pod(tied, reference, meta["namespace"], name, generate_name=prefix, labels=labels)

        await self.create_pod(self._pods, obj, meta["name"], build)

    async def _delete(self, obj: Object, pod: Pod) -> None:
        await self.delete_dependent(self._pods, pod)
        self.record(obj, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")

    async def _clear_failed(self, obj: Object, failed: Sequence[Pod]) -> float | None:
        """Delete pods that have ended, so that others come; on the same node after ever longer waits."""
        waits: list[float] = []
        for pod in failed:
            place = (obj["metadata"]["uid"], target_of(pod))
            due = self._due.get(pod.metadata.uid)
            if due is None:
                self._failures[place] = count = self._failures.get(place, 0) + 1
                due = self.clock.monotonic() + FAILED_BACKOFF.delay(count, self.random.random())
                self._due[pod.metadata.uid] = due
            wait = due - self.clock.monotonic()
            if wait > 0:
                waits.append(wait)
                continue
            self._due.pop(pod.metadata.uid)
            self.record(
                obj, "Warning", "FailedDaemonPod", f"Found failed daemon pod {pod.name}; replacing it"
            )
            await self._delete(obj, pod)
        return min(waits, default=None)

    async def _update(self, obj: Object, eligible: Eligible, history: History, now: float) -> None:
        limit = most_unavailable(obj["spec"], len(eligible.wanted))
        if limit is None:
            return
        min_ready = obj["spec"].get("minReadySeconds") or 0
        placed = by_node(self._pods.of(obj["metadata"]["uid"]))
        going = outdated(
            eligible, placed, history.update_hash, limit, lambda pod: is_available(pod, min_ready, now)
        )
        for pod in going:
            await self._delete(obj, pod)
