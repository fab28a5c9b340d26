"""The DaemonSet controller: one pod on every eligible node.

The shared kernel decides which nodes are eligible; `daemon_places` decides what each node needs. A pod has a
node affinity on the name of its node and is placed by the scheduler, so that it counts like any other.
"""

from functools import partial

from karpool.kube.api.decoding import Object
from karpool.kube.transport.backoff import Backoff
from karpool.kube.work_queue import Requeue
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import DAEMONSETS, NODES, PODS, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import scaled
from karpool.model.kubernetes.workload import daemon_tolerations
from karpool.model.taints import Toleration
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import owner_reference
from karpool_fleet.workloads.controller import GATHER_SECONDS, WorkloadController
from karpool_fleet.workloads.daemon_places import NOWHERE, DaemonLedger, DaemonStanding, assess
from karpool_fleet.workloads.dependents import Dependents
from karpool_fleet.workloads.history import RevisionHistory, forget_old, remember
from karpool_fleet.workloads.nodes import DaemonNodes, EligibleDaemonNodes
from karpool_fleet.workloads.ownership import claim
from karpool_fleet.workloads.pods import available_in, is_available, new_pod, prefix_for
from karpool_fleet.workloads.revisions import CONTROLLERREVISIONS, REVISION_HASH

FAILED_BACKOFF = Backoff(first=1.0, limit=900.0)


def target_of(pod: Pod) -> str:
    """Return the node that a daemon pod is on, or is meant for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    for term in (required.node_selector_terms if required else None) or ():
        for entry in term.match_fields or ():
            if entry.key == "metadata.name" and entry.operator == "In" and entry.values:
                return entry.values[0]
    return ""


def most_unavailable(spec: Object, nodes: int) -> int | None:
    """Return how many nodes may lack an available pod during an update; None with OnDelete."""
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


def status_of(obj: Object, ledger: DaemonLedger) -> Object:
    counts = ledger.counts
    status: Object = {
        "observedGeneration": obj["metadata"].get("generation", 0),
        "desiredNumberScheduled": counts["desired"],
        "currentNumberScheduled": counts["scheduled"],
        "numberMisscheduled": counts["misplaced"],
        "numberReady": counts["ready"],
    }
    if collisions := (obj.get("status") or {}).get("collisionCount"):
        status["collisionCount"] = collisions
    optional = {
        "updatedNumberScheduled": counts["updated"],
        "numberAvailable": counts["available"],
        "numberUnavailable": counts["desired"] - counts["available"],
    }
    return status | {name: count for name, count in optional.items() if count}


def pod_spec(spec: Object, node: str) -> Object:
    """Return a template's spec for one node, with the tolerations of daemon pods."""
    field_term = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field_term]}]}
    affinity = dict(spec.get("affinity") or {})
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": required,
    }
    own = list(spec.get("tolerations") or ())
    added = [_wire(toleration) for toleration in daemon_tolerations(bool(spec.get("hostNetwork")))]
    return {
        **spec,
        "affinity": affinity,
        "tolerations": [*own, *(name for name in added if name not in own)],
    }


def _wire(toleration: Toleration) -> Object:
    return {"key": toleration.key, "operator": toleration.operator, "effect": toleration.effect}


class DaemonSetController(WorkloadController):
    resource = DAEMONSETS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._pods = self.watch(PODS, Pod, group=target_of)
        self._revisions: Dependents[Object] = self.watch(CONTROLLERREVISIONS, dict)
        self._nodes = DaemonNodes(self._on_nodes)
        self._ledgers: dict[ObjectKey, DaemonLedger] = {}
        self._due: dict[str, float] = {}  # pod uid -> when the ended pod may be deleted
        # By DaemonSet and node, since the start of this process.
        self._failures: dict[tuple[str, str], int] = {}
        context.informers.of(NODES, Node).add_sink(self._nodes)

    def _on_nodes(self) -> None:
        for key in self.selectors.owners():
            self.queue.add_after(key, GATHER_SECONDS)

    async def reconcile(self, key: ObjectKey) -> Requeue | None:
        obj = self.owners.get(key)
        if obj is None:
            self._nodes.forget(key)
            self._ledgers.pop(key, None)
            return None
        await claim(self.client, self.resource, obj, self._pods)
        await claim(self.client, self.resource, obj, self._revisions)
        if "deletionTimestamp" in obj["metadata"]:
            return None
        history = await remember(self, obj, self._revisions)
        if history is None:
            return None
        ledger = self._ledgers.setdefault(key, DaemonLedger())
        self._assess(key, obj, history, ledger)
        wait = await self._carry_out(obj, history, ledger)
        limit = most_unavailable(obj["spec"], ledger.counts["desired"])
        if limit is not None and ledger.outdated:
            for pod in ledger.replaceable(limit):
                await self.delete_pod(self._pods, obj, pod)
        ledger.dirty.clear()  # only now: after an error above they are assessed again
        self._assess(key, obj, history, ledger)
        await self.write_status(obj, status_of(obj, ledger))
        await forget_old(self, obj, self._revisions, history, partial(self._hashes, obj))
        waiting = [pod for node in ledger.waiting for pod in self._at(obj, node)]
        soon = available_in(waiting, obj["spec"].get("minReadySeconds") or 0, self.clock.now())
        waits = [seconds for seconds in (wait, soon) if seconds is not None]
        return Requeue(min(waits)) if waits else None

    def _assess(self, key: ObjectKey, obj: Object, history: RevisionHistory, ledger: DaemonLedger) -> None:
        """Assess every node that has changed, or was waiting, since its last assessment."""
        uid, spec = obj["metadata"]["uid"], obj["spec"]
        min_ready, now = spec.get("minReadySeconds") or 0, self.clock.now()
        eligible = self._nodes.eligible(key, obj)
        basis = (uid, history.update_hash, min_ready)
        if ledger.basis != basis:
            ledger.restart(basis)
            ledger.dirty.update(dict.fromkeys(map(target_of, self._pods.of(uid))))
        ledger.dirty.update(dict.fromkeys(self._pods.take_touched(uid)))
        ledger.dirty.update(dict.fromkeys(_moved(ledger.eligible, eligible)))
        ledger.eligible = eligible
        for node in [*ledger.dirty, *ledger.waiting]:
            place = assess(
                DaemonStanding(node in eligible.known, node in eligible.tolerable, node in eligible.wanted),
                self._at(obj, node),
                lambda pod: pod.labels.get(REVISION_HASH) == history.update_hash,
                lambda pod: is_available(pod, min_ready, now),
            )
            ledger.put(node, place)

    def _at(self, obj: Object, node: str) -> list[Pod]:
        return self._pods.in_group(obj["metadata"]["uid"], node)

    def _hashes(self, obj: Object) -> list[str]:
        return [pod.labels.get(REVISION_HASH, "") for pod in self._pods.of(obj["metadata"]["uid"])]

    async def _carry_out(self, obj: Object, history: RevisionHistory, ledger: DaemonLedger) -> float | None:
        """Create and delete pods; return the seconds until a failed pod may be replaced."""
        waits: list[float] = []
        missing: list[str] = []
        for node in {**ledger.dirty, **ledger.failed}:
            place = ledger.places.get(node, NOWHERE)
            for pod in place.delete:
                await self.delete_pod(self._pods, obj, pod)
            waits += [wait for pod in place.failed if (wait := await self._clear(obj, pod)) is not None]
            if place.create:
                missing.append(node)
        works = [partial(self._create, obj, history, node) for node in missing]
        if (error := await self.create_all(obj, works)) is not None:
            raise error
        return min(waits, default=None)

    async def _create(self, obj: Object, history: RevisionHistory, node: str) -> None:
        meta, template = obj["metadata"], obj["spec"]["template"]
        tied = {**template, "spec": pod_spec(template["spec"], node)}
        reference = owner_reference(self.resource, obj)
        prefix, labels = prefix_for(meta["name"]), {REVISION_HASH: history.update_hash}

        def build(name: str) -> Object:
            return new_pod(tied, reference, meta["namespace"], name, generate_name=prefix, labels=labels)

        await self.create_pod(self._pods, obj, meta["name"], build)

    async def _clear(self, obj: Object, pod: Pod) -> float | None:
        """Delete an ended pod, so that it is replaced; the wait grows with each failure on a node."""
        place = (obj["metadata"]["uid"], target_of(pod))
        due = self._due.get(pod.metadata.uid)
        if due is None:
            self._failures[place] = count = self._failures.get(place, 0) + 1
            due = self.clock.monotonic() + FAILED_BACKOFF.delay(count, self.random.random())
            self._due[pod.metadata.uid] = due
        wait = due - self.clock.monotonic()
        if wait > 0:
            return wait
        del self._due[pod.metadata.uid]
        self.record(obj, "Warning", "FailedDaemonPod", f"Found failed daemon pod {pod.name}; replacing it")
        await self.delete_pod(self._pods, obj, pod)
        return None


def _moved(before: EligibleDaemonNodes, now: EligibleDaemonNodes) -> list[str]:
    """Return the nodes whose eligibility has changed."""
    if before is now:
        return []
    changed = (before.known ^ now.known) | (before.tolerable ^ now.tolerable) | (before.wanted ^ now.wanted)
    return sorted(changed)
