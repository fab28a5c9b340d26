"""What must hold in a fleet whatever happens to Karpool's controllers. Slow and obvious on purpose.

While it happens: `Jury` sees every binding of a pod, every eviction, every NodeClaim that a
move deletes and every placement, at the moment it is written. When all is calm: nothing
that a controller wrote for its own use is left (`leaks`), and everybody has what they
asked for (`unserved`). Functions give violations as sentences; none is good.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from karpool.consolidation.execution.node_marks import CORDONED, LEAVING, MOVE_MARK, PROTECTED
from karpool.consolidation.execution.record import ACTIVE, RECORD
from karpool.gpu.controller.options import SCHEDULER_NAME as GPU_SCHEDULER
from karpool.model.karpenter.objects import DO_NOT_DISRUPT
from karpool.provisioning.placeholders.placeholder import KARPOOL, MANAGED_BY
from karpool.scheduler.controller.controller import Scheduler
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.clusters.fleet import EmbeddedFleet
from tests.fleet.invariants import (
    Judge,
    World,
    after_a_step,
    has_ended,
    is_going,
    is_ready,
    labels_of,
    name_of,
    when_quiet,
    world,
)

Object = dict[str, Any]
Violations = Iterator[str]
_CLAIMS = "nodeclaims.karpenter.sh"
_BINDINGS = "resourcebindings.work.karmada.io"


class Jury:
    """`most`: how many replicas Karmada may ever send to a member."""

    def __init__(self, fleet: EmbeddedFleet, most: Mapping[str, int]) -> None:
        assert fleet.karmada is not None
        self._fleet = fleet
        self.schedulers: Mapping[str, Scheduler] | None = {}  # those that run; None: not known
        self.judges = {name: Judge(each.embedded.server) for name, each in fleet.clusters.items()}
        self.budgets = {name: PoolBudgets(each.embedded.server) for name, each in fleet.clusters.items()}
        self.placements = Placements(fleet.karmada.server, most)

    @property
    def violations(self) -> list[str]:
        """What was wrong at any moment until now."""
        found = list(self.placements.violations)
        for name in self._fleet.clusters:
            found += [f"{name}: {violation}" for violation in self.judges[name].violations]
            found += [f"{name}: {each}" for each in self.budgets[name].violations]
            found += [f"{name}: {each}" for each in after_a_step(self.world(name))]
        return found

    def world(self, name: str) -> World:
        live = self._fleet.clusters[name]
        return world(live.embedded.server, live.cloud if live.spec.autoscaler == "karpenter" else None)

    def when_calm(self) -> list[str]:
        found = self.violations
        for name in self._fleet.clusters:
            now = self.world(name)
            checks = when_quiet(now) if now.cloud is not None else []
            found += [f"{name}: {check}" for check in (*checks, *leaks(now), *unserved(now))]
        found += self._promises()
        assert self._fleet.karmada is not None
        found += list(incomplete(world(self._fleet.karmada.server)))
        return found

    def _promises(self) -> list[str]:
        if self.schedulers is None:
            return []
        return [
            f"{promise.replicas} replicas of {promise.binding} are still promised in {promise.cluster}"
            for promise in self.ledger.promises()
            if promise.replicas
        ]

    @property
    def ledger(self) -> PromiseLedger:
        assert self.schedulers, "the jury has to know the scheduler that runs"
        [scheduler] = self.schedulers.values()
        assert scheduler.view.ledger is not None
        return scheduler.view.ledger


class Placements:
    """Sees every placement at the moment it is written."""

    def __init__(self, server: ApiServer, most: Mapping[str, int]) -> None:
        self.violations: list[str] = []
        self.written = 0
        self._most = most
        self._store = server.cluster.store
        self._store.listeners.append(self._on_change)

    def _on_change(self, event: StoredEvent) -> None:
        if event.record.collection.group_resource != _BINDINGS or event.type == "DELETED":
            return
        before = targets(event.previous.object()) if event.previous is not None else {}
        after = targets(event.record.object())
        if before == after:
            return
        self.written += 1
        for member in after:
            if after[member] <= before.get(member, 0):
                continue
            given = sum(
                targets(record.object()).get(member, 0)
                for record in self._store.collection(_BINDINGS).ordered(None)
            )
            if given > self._most.get(member, given):
                self.violations.append(
                    f"{name_of(event.record.object())} gets {after[member]} in {member}, which makes {given} "
                    f"there; {self._most[member]} is the most it can hold"
                )


def targets(binding: Object) -> dict[str, int]:
    found = binding["spec"].get("clusters") or ()
    return {each["name"]: each.get("replicas", 0) for each in found}


class PoolBudgets:
    """Sees every NodeClaim that a move deletes, at that moment, and counts."""

    def __init__(self, server: ApiServer) -> None:
        self.violations: list[str] = []
        self.deletions = 0
        self._store = server.cluster.store
        self._store.listeners.append(self._on_change)

    def _all(self, kind: str) -> list[Object]:
        return [record.object() for record in self._store.collection(kind).ordered(None)]

    def _on_change(self, event: StoredEvent) -> None:
        if event.record.collection.group_resource != _CLAIMS or event.type != "MODIFIED":
            return
        claim = event.record.object()
        if event.previous is None or is_going(event.previous.object()) or not is_going(claim):
            return
        nodes = {node["spec"].get("providerID", ""): node for node in self._all("nodes")}
        node = nodes.get(claim.get("status", {}).get("providerID", "-"))
        if node is None or MOVE_MARK not in (node["metadata"].get("annotations") or {}):
            return  # people, the cloud or Karpenter itself
        self.deletions += 1
        self._count(claim, nodes)

    def _count(self, claim: Object, nodes: Mapping[str, Object]) -> None:
        pool_name = labels_of(claim)["karpenter.sh/nodepool"]
        pool = next(each for each in self._all("nodepools.karpenter.sh") if name_of(each) == pool_name)
        counted = consuming = 0
        for owner in self._all(_CLAIMS):
            node = nodes.get(owner.get("status", {}).get("providerID", "-"))
            if node is None or labels_of(owner).get("karpenter.sh/nodepool") != pool_name:
                continue
            if labels_of(node).get("karpenter.sh/initialized") == "true":
                counted += 1
                consuming += is_going(owner) or not is_ready(node)
        for budget in pool["spec"]["disruption"]["budgets"]:
            text = budget["nodes"]
            most = -(-int(text[:-1]) * counted // 100) if text.endswith("%") else int(text)
            if consuming > most:
                self.violations.append(f"{name_of(claim)}: {consuming} of {counted} nodes go, and {text} may")


# When all is calm


def leaks(now: World) -> Violations:
    """What a controller wrote for its own use and did not take back."""
    for node in now.of("nodes"):
        notes = node["metadata"].get("annotations") or {}
        for key in (MOVE_MARK, CORDONED, PROTECTED, DO_NOT_DISRUPT):
            if key in notes:
                yield f"node {name_of(node)} still has {key}={notes[key]}"
        if LEAVING in labels_of(node):
            yield f"node {name_of(node)} still has {LEAVING}"
        if node["spec"].get("unschedulable"):
            yield f"node {name_of(node)} is still cordoned"
        for taint in node["spec"].get("taints") or ():
            if "karpool" in taint["key"] or taint["key"].startswith("karpenter.sh/disrupted"):
                yield f"node {name_of(node)} still has taint {taint['key']}"
    for pod in now.of("pods"):
        if labels_of(pod).get(MANAGED_BY) == KARPOOL:
            yield f"placeholder {name_of(pod)} is left"
    for record in now.of("configmaps"):
        if labels_of(record).get(RECORD) and ACTIVE in labels_of(record):
            yield f"move {name_of(record)} is still under way"
    for kind, objects in now.kinds.items():
        if kind.startswith("scaleups."):
            yield from (f"scale-up {name_of(each)} is left" for each in objects)


def unserved(now: World) -> Violations:
    """Pods without a node, and Deployments that are not complete."""
    for pod in now.of("pods"):
        if not has_ended(pod) and not pod["spec"].get("nodeName"):
            who = "the GPU scaler" if pod["spec"].get("schedulerName") == GPU_SCHEDULER else "the scheduler"
            yield f"pod {name_of(pod)} waits for {who}"
    for each in now.of("deployments.apps"):
        wanted, ready = each["spec"]["replicas"], each.get("status", {}).get("readyReplicas", 0)
        if wanted != ready:
            yield f"deployment {name_of(each)}: {ready} of {wanted} replicas are ready"


def incomplete(control_plane: World) -> Violations:
    """Bindings that have not placed everything."""
    for binding in control_plane.of(_BINDINGS):
        wanted, placed = binding["spec"].get("replicas", 0), sum(targets(binding).values())
        if wanted != placed:
            yield f"binding {name_of(binding)}: {placed} of {wanted} replicas are placed"
        if binding["spec"].get("gracefulEvictionTasks"):
            yield f"binding {name_of(binding)} still evicts"
