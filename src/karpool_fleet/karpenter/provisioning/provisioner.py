"""Provisions nodes for unschedulable pods: collects them, plans all at once, creates NodeClaims.

A pod triggers when the scheduler could not place it, and again every few seconds while that is so; a node
that is being drained triggers, too. Nothing is planned while a claim has no machine yet, because its size is
not known. Nothing is remembered between batches: the next batch sees the claims of this one as future nodes.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

import structlog

from karpool.cluster.nodes.expected import row_name
from karpool.cluster.snapshot import Snapshot
from karpool.kube.clock import Clock
from karpool.kube.errors import KubeError
from karpool.kube.transport.rate_limit import TokenBucket
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    DISRUPTED,
    CompiledPool,
    NodeClaim,
    NodePool,
    pool_of,
)
from karpool.model.kubernetes.api_resources import NODEPOOLS, PODS, ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_protected, is_reschedulable, running_seconds
from karpool.packing.new_nodes.offerings import remaining
from karpool.packing.new_nodes.pack import PackOptions, pack_new_nodes
from karpool.packing.new_nodes.pack_result import PackResult, PendingPod, PlannedNode
from karpool.packing.pool_reasons import show_pool
from karpool.packing.tables.room import Room
from karpool_fleet.karpenter.lifecycle.conditions import READY
from karpool_fleet.karpenter.provisioning.batch_window import BatchWindow
from karpool_fleet.karpenter.provisioning.claims import Object, node_claim, wire_requirements
from karpool_fleet.karpenter.provisioning.unsupported_pods import refusal, refuses_pools
from karpool_fleet.karpenter.reporting import FAILED_SCHEDULING_SECONDS
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.karpenter.view import KarpenterState

log = structlog.get_logger(__name__)
_REASONS_SHOWN = 5
_CACHE_LIMIT = 256
_BUFFERS = "#buffers"  # not a valid node name or uid


class Provisioner:
    def __init__(self, shared: Shared) -> None:
        view, settings = shared.view, shared.settings
        self._clock: Clock = shared.context.clock
        self._view = view
        self._market = shared.market
        self._say = shared.say
        self._settings = settings
        self._window = BatchWindow(settings.batch_idle_seconds, settings.batch_max_seconds)
        self._again: deque[tuple[float, str, ObjectKey | str]] = deque()  # due, uid, pod or node
        self._watched: set[str] = set()  # uids in `_again`
        self._wake = asyncio.Event()
        # One limit for all nominations, as upstream: a thousand pods do not make a thousand events.
        self._nominations = TokenBucket(5.0, 10, self._clock)
        self._requirements: dict[object, list[Object]] = {}
        self.batches = 0
        view.on_pod.append(self._on_pod)
        view.nodes.subscribe(self._on_node)
        view.on_buffers.append(lambda: self._trigger(_BUFFERS, _BUFFERS))

    async def run(self) -> None:
        while True:
            now = self._clock.monotonic()
            self._trigger_again(now)
            closes = self._window.closes_at()
            if closes is not None and closes <= now:
                self._window.close()
                await self.provision()
                continue
            due = [*([] if closes is None else [closes]), *(entry[0] for entry in list(self._again)[:1])]
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(due) - now if due else None):
                    await self._wake.wait()

    # Triggers

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        if after is not None:
            key = ObjectKey(after.metadata.namespace, after.name)
            if key in self._view.provisionable:
                self._trigger(after.metadata.uid, key)

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        if after is not None and DISRUPTED in (after.spec.taints or ()):
            self._trigger(after.metadata.uid, after.name)

    def _trigger(self, uid: str, key: ObjectKey | str) -> None:
        if uid in self._watched:
            return
        self._watched.add(uid)
        now = self._clock.monotonic()
        self._again.append((now + self._settings.retrigger_seconds, uid, key))
        self._window.trigger(uid, now)
        self._wake.set()

    def _trigger_again(self, now: float) -> None:
        while self._again and self._again[0][0] <= now:
            _, uid, key = self._again.popleft()
            self._watched.discard(uid)
            if self._still_triggers(uid, key):
                self._trigger(uid, key)

    def _still_triggers(self, uid: str, key: ObjectKey | str) -> bool:
        if isinstance(key, ObjectKey):
            pod = self._view.provisionable.get(key)
            return pod is not None and pod.metadata.uid == uid
        if key == _BUFFERS:
            return bool(self._view.snapshot().buffers.shapes)
        node = self._view.nodes.get(key)
        return node is not None and node.metadata.uid == uid and DISRUPTED in (node.spec.taints or ())

    # One batch

    async def provision(self) -> None:
        if not self._view.is_synced:
            return
        self._explain_refusals()
        packing = self.plan()
        if packing is None:
            return
        self.batches += 1
        created = await asyncio.gather(*(self._create(node) for node in packing.nodes))
        for planned, claim in zip(packing.nodes, created, strict=True):
            if claim is not None:
                self._nominate(planned.pods, claim, None)
        self._nominate_existing(packing)
        self._explain(packing)

    def plan(self) -> PackResult | None:
        """Plan nodes for the pods that need them now; None without such pods."""
        view = self._view
        snapshot = view.snapshot()
        pods = demand(snapshot, view, self._clock.now())
        if not pods:
            return None
        return self.pack(snapshot.room.without(view.leaving()), pods)

    def pack(self, room: Room, pods: Sequence[PendingPod]) -> PackResult:
        """Place pods on existing nodes, then on the cheapest nodes that could be launched now."""
        return pack_new_nodes(
            room,
            pods,
            self.pools(),
            self._market.offerings,
            daemons=tuple(self._view.snapshot().daemons.values()),
            usage=self._view.usages(),
            unavailable=self._market.unavailable.stock_outs(),
            options=PackOptions(
                preferences=self._settings.preferences, max_options=self._settings.claim_types_max
            ),
        )

    def pools(self) -> list[CompiledPool]:
        """Return the pools that may launch now. A pool without any type to launch reports that."""
        pools: list[CompiledPool] = []
        for node_pool in self._view.pools.objects():
            ready = condition(node_pool.status.conditions, READY) if node_pool.status is not None else None
            if ready is None or ready.status != "True":
                continue
            try:
                pool = pool_of(node_pool)
            except Invalid:
                continue  # the status of the pool has the reason
            if not pool.is_usable:
                continue
            if not self._market.offerings.for_pool(pool).types:
                message = "NodePool requirements filtered out all compatible available instance types"
                self._say.say(NODEPOOLS, node_pool, "Warning", "NoCompatibleInstanceTypes", message)
                continue
            pools.append(pool)
        return pools

    async def _create(self, planned: PlannedNode) -> NodeClaim | None:
        pool = self._view.pools.get(planned.pool)
        if pool is None or self._exceeded(pool):
            return None
        claim = node_claim(pool, planned, self.requirements_of(planned))
        try:
            return await self._view.claims.create(claim)
        except KubeError as error:
            log.warning("claim not created", pool=planned.pool, reason=str(error))
            return None

    def _exceeded(self, pool: NodePool) -> str:
        """Return the limit that is already exceeded, or an empty text."""
        limits = pool_of(pool).limits
        left = remaining(limits, self._view.usage(pool.name))
        return next((name for name, units in left.items() if units < 0), "")

    def requirements_of(self, planned: PlannedNode) -> list[Object]:
        """Return the requirements of the claim; equal plans share them."""
        types = tuple(choice.instance_type for choice in planned.options)
        requirements = planned.requirements
        out = self._market.unavailable
        out.current()
        key = (types, frozenset(requirements.items()), out.version)
        written = self._requirements.get(key)
        if written is None:
            kinds = self._market.capacity_types(
                types, requirements.get(ZONE), requirements.get(CAPACITY_TYPE)
            )
            if len(self._requirements) >= _CACHE_LIMIT:
                self._requirements.clear()
            written = self._requirements[key] = wire_requirements(requirements, types, kinds)
        return written

    # Events about decisions

    def _nominate(self, pods: Iterable[str], claim: NodeClaim | None, node: Node | None) -> None:
        self._view.nominate(row_name(claim, node), self._settings.nomination_seconds)
        places = [f"nodeclaim/{claim.name}"] if claim is not None else []
        places += [f"node/{node.name}"] if node is not None else []
        where = ", ".join(places)
        for name in pods:
            pod = self._view.pod(_key(name))
            if pod is not None and not pod.spec.node_name:
                message = f"Pod should schedule on: {where}"
                self._say.say(PODS, pod, "Normal", "Nominated", message, limit=self._nominations)

    def _nominate_existing(self, packing: PackResult) -> None:
        by_row: dict[str, list[str]] = {}
        virtual = self._view.snapshot().buffers.shapes
        for pod, row in packing.placed.items():
            if pod not in virtual:
                by_row.setdefault(row, []).append(pod)
        for row, pods in by_row.items():
            node = self._view.nodes.get(row)
            claim = self._view.claims.get(row.removeprefix("nodeclaim/")) if node is None else None
            if node is not None:
                claim = self._view.claim_of(node)
            if node is not None or claim is not None:
                self._nominate(pods, claim, node)

    def _explain_refusals(self) -> None:
        for pod in self._view.provisionable.values():
            if (why := refusal(pod)) and not refuses_pools(pod):
                self._say_failed(pod, why)

    def _explain(self, packing: PackResult) -> None:
        for left in packing.left:
            pod = self._view.pod(_key(left.pod))
            if pod is not None and not pod.spec.node_name:
                self._say_failed(
                    pod, "; ".join(show_pool(reason) for reason in left.reasons[:_REASONS_SHOWN])
                )

    def _say_failed(self, pod: Pod, why: str) -> None:
        self._say.say(
            PODS,
            pod,
            "Warning",
            "FailedScheduling",
            f"Failed to schedule pod, {why}",
            window_seconds=FAILED_SCHEDULING_SECONDS,
        )


def demand(whole: Snapshot, view: KarpenterState, now: float) -> list[PendingPod]:
    """Return pending pods, pods that will have to leave their node, and pods of capacity buffers."""
    snapshot = whole.room
    pending = [PendingPod(name, shape, "", name) for name, shape in whole.buffers.shapes.items()]
    for key, pod in view.provisionable.items():
        name = str(key)
        shape = snapshot.pending.get(name)
        if shape is not None and not refuses_pools(pod) and not refusal(pod):
            pending.append(_pending(name, pod, snapshot, shape))
    for existing_node in view.leaving():
        row = snapshot.find(existing_node)
        if row is None:
            continue
        shapes = snapshot.pods_on(row)
        for key, pod in view.pods_on(existing_node).items():
            name = str(key)
            if name in shapes and is_currently_reschedulable(pod, view, now):
                pending.append(_pending(name, pod, snapshot, shapes[name]))
    return pending


def _pending(name: str, pod: Pod, snapshot: Room, shape: int) -> PendingPod:
    meta = pod.metadata
    return PendingPod(name, snapshot.shapes[shape], meta.creation_timestamp or "", meta.uid)


def is_currently_reschedulable(pod: Pod, view: KarpenterState, now: float) -> bool:
    """Whether a pod can be moved now: nothing blocks its eviction permanently."""
    if not is_reschedulable(pod) or is_protected(pod, running_seconds(pod, now)):
        return False
    budgets = [budget for budget in view.budgets(pod.metadata.namespace) if budget.selects(pod)]
    return len(budgets) < 2 and not any(budget.is_fully_blocking for budget in budgets)


def _key(name: str) -> ObjectKey:
    namespace, _, own = name.rpartition("/")
    return ObjectKey(namespace, own)
