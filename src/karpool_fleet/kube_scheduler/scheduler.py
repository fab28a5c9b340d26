"""The kube-scheduler as a component: events in, one decision after another, writes in the background.

Decisions never wait: a pod that gets a node is assumed there, and its binding is written during the next
decision. All writes about one pod have one key, so they stay in order, and the latest intention wins.

Not simulated: admission by the kubelet (`OutOfcpu`). So two schedulers of different names that race for the
same room may overcommit a node; one scheduler never does.
"""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from karpool.cluster import kinds
from karpool.cluster.changes import ObjectChange
from karpool.cluster.kinds import ClusterKind
from karpool.model.kubernetes.api_resources import NODES, PODS, PVCS, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import fits
from karpool.packing.tables.room import RoomSubset
from karpool_fleet.kube_scheduler import claims, messages
from karpool_fleet.kube_scheduler.board import has_rules
from karpool_fleet.kube_scheduler.cache import Happened, SchedulerCache
from karpool_fleet.kube_scheduler.device_claims import DeviceClaims, DeviceDecision
from karpool_fleet.kube_scheduler.node_choice import NodeChooser
from karpool_fleet.kube_scheduler.preemption import Preemption, preempt
from karpool_fleet.kube_scheduler.queue import QueuedPod, SchedulingQueue
from karpool_fleet.kube_scheduler.settings import KubeSchedulerSettings
from karpool_fleet.kube_scheduler.writer import Bind, Report, SchedulerWriter
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Build, Context
from karpool_fleet.runtime.watched_cluster import ClusterFeeds

log = structlog.get_logger(__name__)

GATED = "Scheduling is blocked due to non-empty scheduling gates"
# The embedded API server has no taint rules of devices.
_FED_OTHERWISE = (kinds.NODES, kinds.PODS, kinds.DEVICE_TAINT_RULES)
_BATCH = 64  # decisions between two checks for events


@dataclass(frozen=True, slots=True)
class Nomination:
    """A node that is promised to a pod, and the victims that must leave it first."""

    node: str
    victims: tuple[tuple[ObjectKey, str], ...] = ()  # with their uids

    @classmethod
    def for_victims(cls, chosen: Preemption) -> "Nomination":
        return cls(
            chosen.node,
            tuple((ObjectKey(pod.metadata.namespace, pod.name), pod.metadata.uid) for pod in chosen.victims),
        )


def kube_scheduler(settings: KubeSchedulerSettings | None = None) -> Build:
    return lambda context: KubeScheduler(context, settings or KubeSchedulerSettings())


class KubeScheduler:
    def __init__(self, context: Context, settings: KubeSchedulerSettings) -> None:
        self._context = context
        self._clock = context.clock
        self._settings = settings
        self._chance = context.random.random
        self._pods = context.informers.of(PODS, Pod)
        self._nodes = context.informers.of(NODES, Node)
        self._claims: Feed[dict[str, Any]] = context.informers.of(PVCS)
        self._cache = SchedulerCache(context.clock)
        self._feeds = ClusterFeeds(context, self._cache.cluster, but=_FED_OTHERWISE)
        self._queue = SchedulingQueue(
            settings.first_backoff_seconds,
            settings.longest_backoff_seconds,
            settings.flush_seconds,
            settings.message_seconds,
        )
        self._devices = DeviceClaims(
            self._cache.snapshot, context.client, lambda: str(uuid.UUID(int=context.random.getrandbits(128)))
        )
        self._chooser: NodeChooser | None = None
        self._nominated: dict[ObjectKey, Nomination] = {}
        self._woken = asyncio.Event()
        self._writer = SchedulerWriter(
            context,
            settings,
            self._cache,
            pod=self._pods.get,
            claim=self._claims.get,
            try_again=self._try_again,
            devices=self._devices,
        )

    async def run(self) -> None:
        await self._context.informers.synced()
        self._feeds.start(self._other_changed)
        self._nodes.on_change(self._node_changed)
        await self._learn_what_events_have_not_said()
        self._pods.on_change(self._pod_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.run())
            group.create_task(self._work())

    async def _learn_what_events_have_not_said(self) -> None:
        """Read the pods from the server: events may be late, and a former process has bound pods."""
        for pod in (await self._context.client.list(PODS, into=Pod)).items:
            if pod.spec.node_name and not pod.is_terminal:
                seen = self._pods.get(ObjectKey(pod.metadata.namespace, pod.name))
                if seen is None or not seen.spec.node_name:
                    self._cache.learn_bound(pod)

    # Events

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        self._cache.node_changed(change)
        self._woken.set()

    def _other_changed(self, kind: ClusterKind) -> None:
        self._cache.other_changed(kind)
        if kind is not kinds.BUDGETS:
            self._writer.claims_changed()
            self._woken.set()

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        self._cache.pod_changed(change)
        key, pod = change.key, change.object
        if change.type == "DELETED" or pod is None or not self._is_ours(pod):
            self._leave(key)
        elif pod.spec.scheduling_gates:
            self._leave(key)
            self._writer.report(key, Report(pod.metadata.uid, "SchedulingGated", GATED))
        elif self._cache.assumed(key) is None:
            self._enqueue(key, pod)
        self._woken.set()

    def _is_ours(self, pod: Pod) -> bool:
        name = pod.spec.scheduler_name or "default-scheduler"
        unbound = not pod.spec.node_name and not pod.is_terminating and not pod.is_terminal
        return unbound and name == self._settings.name

    def _leave(self, key: ObjectKey) -> None:
        self._queue.remove(key)
        self._nominated.pop(key, None)
        self._writer.drop_report(key)

    def _enqueue(self, key: ObjectKey, pod: Pod) -> None:
        if pod.status.nominated_node_name and key not in self._nominated:
            self._nominated[key] = Nomination(pod.status.nominated_node_name)
        queued = self._queue.get(key)
        if queued is None or queued.uid != pod.metadata.uid:
            self._queue.remove(key)
            self._queue.add(_queued(key, pod))
        elif queued.shape is not self._cache.shape_of(key):
            self._queue.wake_pod(key, self._clock.monotonic())

    def _try_again(self, key: ObjectKey) -> None:
        """Requeue a pod whose binding failed, with back-off; others may take its place."""
        pod = self._pods.get(key)
        if (
            pod is not None
            and self._is_ours(pod)
            and not pod.spec.scheduling_gates
            and key not in self._queue
        ):
            self._queue.delay(_queued(key, pod, attempts=1), self._clock.monotonic())
        self._woken.set()

    # Decisions

    async def _work(self) -> None:
        while True:
            await self._wait()
            now = self._clock.monotonic()
            for told in self._queue.due(now):
                self._writer.report(told.key, Report(told.uid, "Unschedulable", told.message, repeats=True))
            self._stir()
            for _ in range(_BATCH):
                pod = self._queue.pop(now)
                if pod is None:
                    self._stir()
                    pod = self._queue.pop(now)
                if pod is None:
                    break
                self._attempt(pod, now)
            else:
                self._woken.set()
            await asyncio.sleep(0)  # let events and writes run

    async def _wait(self) -> None:
        due = self._queue.next_due()
        delay = None if due is None else max(due - self._clock.monotonic(), 0.0)
        try:
            async with asyncio.timeout(delay):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _stir(self) -> None:
        """Wake the pods that recent events may help."""
        happened = self._cache.take_happened()
        if not happened or not self._queue.has_waiting:
            return
        now = self._clock.monotonic()
        for key, promise in list(self._nominated.items()):
            if promise.node in happened.nodes:
                self._queue.wake_pod(key, now)
        if happened.volumes:
            for pod in [queued_pod for queued_pod in self._queue.waiting() if queued_pod.mounts_claims]:
                self._queue.wake_pod(pod.key, now)
        self._wake_shapes(happened, now)

    def _wake_shapes(self, happened: Happened, now: float) -> None:
        board = self._cache.board()
        found = [row for row in map(board.find, happened.nodes) if row is not None]
        rows = RoomSubset(board, found) if found else None

        def helps(shape: PodShape) -> bool:
            if self._devices.concern(shape) or (happened.topology and has_rules(shape)):
                return True  # a claim may wait for anything
            return rows is not None and bool((fits(rows, shape) > 0).any())

        self._queue.wake(helps, now)

    def _attempt(self, queued: QueuedPod, now: float) -> None:
        pod = self._pods.get(queued.key)
        if pod is None or pod.metadata.uid != queued.uid or not self._is_ours(pod):
            self._queue.remove(queued.key)
            return
        shape = self._cache.shape_of(queued.key)
        if shape is None:
            self._refuse(queued)
            return
        reserved = self._reserved(queued.key, shape)
        devices = self._devices.decide(pod, shape)
        if devices is not None:
            self._attempt_with_claims(queued, pod, shape, devices, now)
            return
        row = self._choose(queued.key, shape, reserved)
        if row is None:
            self._park(queued, pod, shape, reserved, now)
            return
        node = self._cache.assume(queued.key, queued.uid, shape, row)
        self._nominated.pop(queued.key, None)
        self._queue.placed(queued)
        self._writer.bind(queued.key, Bind(queued.uid, node, now))

    def _attempt_with_claims(
        self, queued: QueuedPod, pod: Pod, shape: PodShape, devices: DeviceDecision, now: float
    ) -> None:
        """Schedule a pod with device claims, which the node must satisfy.

        Nothing is preempted for devices.
        """
        reserved = self._reserved(queued.key, shape)
        row = self._choose(queued.key, self._devices.plain(shape), reserved, devices.closed)
        if row is None:
            why = devices.reason or "no node has the rest of what the pod asks for"
            message = f"0/{self._cache.board().n} nodes are available: {why}."
            self._queue.park(queued, shape, message, now)
            self._writer.report(queued.key, Report(queued.uid, "Unschedulable", message, ""))
            return
        placed = self._devices.assume(pod, devices, row)
        node = self._cache.assume(queued.key, queued.uid, shape, row)
        self._nominated.pop(queued.key, None)
        self._queue.placed(queued)
        self._writer.bind(queued.key, Bind(queued.uid, node, now, devices.demand, placed))

    def _choose(
        self,
        key: ObjectKey,
        shape: PodShape,
        reserved: list[tuple[PodShape, int]],
        closed: Sequence[int] = (),
    ) -> int | None:
        board, promise = self._cache.board(), self._nominated.get(key)
        return self._current_chooser().choose(
            shape,
            closed=[*closed, *(board.blocked_by(reserved, shape) if reserved else ())],
            first=board.find(promise.node) if promise else None,
        )

    def _current_chooser(self) -> NodeChooser:
        board = self._cache.board()
        if self._chooser is None or self._chooser.board is not board:
            self._chooser = NodeChooser(board, self._settings, self._chance)
        return self._chooser

    def _reserved(self, key: ObjectKey, shape: PodShape) -> list[tuple[PodShape, int]]:
        """Return pods of equal or higher priority that nodes are promised to."""
        shapes: list[tuple[PodShape, int]] = []
        for other, promise in self._nominated.items():
            if other == key:
                continue
            theirs, row = self._cache.shape_of(other), self._cache.board().find(promise.node)
            if theirs is not None and row is not None and theirs.priority >= shape.priority:
                shapes.append((theirs, row))
        return shapes

    def _refuse(self, queued: QueuedPod) -> None:
        """Report a pod that cannot be parsed; it is retried when it changes."""
        self._queue.remove(queued.key)
        problem = next(
            (
                unreadable_object
                for unreadable_object in self._cache.cluster.problems
                if unreadable_object.name == str(queued.key)
            ),
            None,
        )
        message = f"the pod cannot be read: {problem}" if problem else "the pod cannot be read"
        self._writer.report(queued.key, Report(queued.uid, "SchedulerError", message))

    def _park(
        self,
        queued: QueuedPod,
        pod: Pod,
        shape: PodShape,
        reserved: list[tuple[PodShape, int]],
        now: float,
    ) -> None:
        verdict = self._current_chooser().verdict(shape)
        if verdict.whole and (name := claims.missing_claim(pod, self._claims.get)):
            verdict.whole = f'persistentvolumeclaim "{name}" not found'
        after, victims = "", None
        if self._settings.preemption and verdict.nodes:
            after, victims = self._preempt(pod, shape, verdict, reserved)
        message = verdict.message(after)
        queued.mounts_claims = bool(claims.claim_keys(pod))
        self._queue.park(queued, shape, message, now)
        if victims is not None:
            self._nominated[queued.key] = Nomination.for_victims(victims)
        elif queued.key in self._nominated and not self._waits_for_victims(pod, shape):
            del self._nominated[queued.key]
        promise = self._nominated.get(queued.key)
        self._writer.report(
            queued.key,
            Report(queued.uid, "Unschedulable", message, promise.node if promise else "", victims),
        )

    # Preemption

    def _preempt(
        self, pod: Pod, shape: PodShape, verdict: messages.FilterVerdict, reserved: list[tuple[PodShape, int]]
    ) -> tuple[str, Preemption | None]:
        """Return the message and the result of preemption."""
        if pod.spec.preemption_policy == "Never":
            return "not eligible due to preemptionPolicy=Never.", None
        if self._waits_for_victims(pod, shape):
            return "not eligible due to terminating pod on the nominated node.", None
        everybody = int(verdict.helpable.sum())
        if verdict.in_vain:
            return verdict.no_preemption(everybody), None
        outcome = preempt(
            self._cache.snapshot(),
            shape,
            verdict.helpable,
            lambda key: self._pods.get(ObjectKey(*key.split("/", 1))),
            self._cache.cluster.snapshot().budgets,
            reserved=reserved,
            candidates=self._settings.preemption_candidates,
            start=self._chance(),
        )
        if outcome is not None:
            return "", outcome
        verdict.in_vain = not reserved
        return verdict.no_preemption(everybody), None

    def _waits_for_victims(self, pod: Pod, shape: PodShape) -> bool:
        """Whether victims are still leaving the node that is promised to the pod."""
        promise = self._nominated.get(ObjectKey(pod.metadata.namespace, pod.name))
        if promise is None:
            return False
        for key, uid in promise.victims:
            victim = self._pods.get(key)
            if victim is not None and victim.metadata.uid == uid:
                return True
        snapshot = self._cache.snapshot()
        row = snapshot.find(promise.node)
        if row is None:
            return False
        for name, number in snapshot.pods_on(row).items():
            other = self._pods.get(ObjectKey(*name.split("/", 1)))
            if (
                snapshot.shapes[number].priority < shape.priority
                and other is not None
                and other.is_terminating
            ):
                return True
        return False


def _queued(key: ObjectKey, pod: Pod, attempts: int = 0) -> QueuedPod:
    return QueuedPod(
        key,
        pod.metadata.uid,
        pod.spec.priority or 0,
        pod.metadata.creation_timestamp or "",
        attempts,
    )
