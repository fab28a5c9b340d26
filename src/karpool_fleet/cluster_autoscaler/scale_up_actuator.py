"""Scales groups up: for pods that fit nowhere, and to their minimum size."""

import asyncio
from collections.abc import Sequence

from karpool.kube.event_recorder import ref
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_disruption import is_daemon
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, Room
from karpool_fleet.cloud.cloud import Cloud, Instance, InsufficientCapacity
from karpool_fleet.cluster_autoscaler import scale_up
from karpool_fleet.cluster_autoscaler.backoff import GroupBackoffs, GroupFailure
from karpool_fleet.cluster_autoscaler.group_counts import GroupView
from karpool_fleet.cluster_autoscaler.groups import (
    CLUSTER_TAG,
    GROUP_TAG,
    AutoscalerSettings,
    NodeGroup,
    NodeTemplates,
    next_zones,
    node_labels,
    offers,
)
from karpool_fleet.cluster_autoscaler.reporting import Reporter
from karpool_fleet.cluster_autoscaler.watched import AutoscalerState
from karpool_fleet.runtime.supervisor import Context

# An event for a pod is repeated only after this long.
_REPEAT_SECONDS = 300.0
# Largest number of new nodes of a group in one simulation.
_MOST_NEW = 1000
# Upstream's AWS placeholder for machines without stock.
_NO_STOCK = "placeholder-cannot-be-fulfilled"


class GroupScaleUpActuator:
    def __init__(
        self,
        context: Context,
        cloud: Cloud,
        watched: AutoscalerState,
        *,
        backoffs: GroupBackoffs,
        reporter: Reporter,
        settings: AutoscalerSettings,
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._cloud = cloud
        self._watched = watched
        self._backoffs = backoffs
        self._reporter = reporter
        self._settings = settings
        self._templates = NodeTemplates(cloud.catalogue)
        self._launching: dict[str, list[str]] = {}  # group -> zones
        # Ids of machines that never registered and are being terminated.
        self._given_back: dict[str, None] = {}
        self._expecting: dict[str, None] = {}  # groups with a scale-up in progress and no failure yet
        self._told: dict[str, tuple[str, float]] = {}  # pod uid -> reason in the last event, and its time

    def launching(self, group: NodeGroup) -> Sequence[str]:
        """Return the zones of machines that are being launched."""
        return tuple(self._launching.get(group.name, ()))

    def wanted(self, instances: Sequence[Instance]) -> list[Instance]:
        """Return the machines without those that are being terminated."""
        return [instance for instance in instances if instance.id not in self._given_back]

    def settle(self, tasks: asyncio.TaskGroup, views: Sequence[GroupView]) -> None:
        """Terminate machines that never registered, reset back-offs after success, and keep minimum sizes."""
        now = self._clock.monotonic()
        for view in views:
            name = view.group.name
            if view.long_unregistered:
                self._timed_out(tasks, view)
            elif name in self._expecting and not view.launching and not view.starting:
                del self._expecting[name]
                self._backoffs.succeeded(name, now)
            # The cloud keeps a group at its minimum size by itself.
            missing = view.group.min_size - view.target
            if missing > 0 and self._backoffs.holding(name, now) is None:
                self._launch(tasks, view.group, next_zones(view.group, view.zones, missing))

    def _timed_out(self, tasks: asyncio.TaskGroup, view: GroupView) -> None:
        minutes = self._settings.max_node_provision_seconds / 60
        message = f"{len(view.long_unregistered)} nodes of {view.group.name} not there after {minutes:g} min"
        self._failed(view.group, GroupFailure("timeout", message))
        self._reporter.say("Warning", "ScaleUpTimedOut", message)
        for instance in view.long_unregistered:
            self._reporter.say("Normal", "DeleteUnregistered", f"removed unregistered node {instance.id}")
            self._given_back[instance.id] = None
            tasks.create_task(self._give_back(instance))

    async def _give_back(self, instance: Instance) -> None:
        await self._cloud.terminate(instance.id)
        del self._given_back[instance.id]

    def _failed(self, group: NodeGroup, failure: GroupFailure) -> None:
        self._expecting.pop(group.name, None)
        self._backoffs.failed(group.name, failure, self._clock.monotonic())

    # Launching

    def _launch(self, tasks: asyncio.TaskGroup, group: NodeGroup, zones: Sequence[str]) -> None:
        self._expecting[group.name] = None
        for zone in zones:
            self._launching.setdefault(group.name, []).append(zone)
            tasks.create_task(self._buy(group, zone))

    async def _buy(self, group: NodeGroup, zone: str) -> None:
        """Launch one machine.

        A launch that a crash interrupts bought nothing; a launched machine is in the cloud at once.
        """
        try:
            await self._cloud.launch(
                offers(group, zone),
                tags={CLUSTER_TAG: self._context.cluster, GROUP_TAG: group.name},
                labels=node_labels(group),
                taints=group.taints,
            )
        except InsufficientCapacity as error:
            self._failed(group, GroupFailure(_NO_STOCK, str(error)))
            message = f"scale-up of group {group.name} failed: {error}"
            self._reporter.say("Warning", "FailedToScaleUpGroup", message)
        finally:
            self._launching[group.name].remove(zone)

    # Deciding

    def grow_for_pods(self, tasks: asyncio.TaskGroup, views: Sequence[GroupView]) -> bool:
        """Scale up a group for pending pods; return whether one was grown."""
        snapshot = self._watched.snapshot().room
        cutoff = self._settings.expendable_pods_priority_cutoff
        pods = [
            PendingPod(
                name,
                snapshot.shapes[snapshot.pending[name]],
                pod.metadata.creation_timestamp or "",
                pod.metadata.uid,
            )
            for name, pod in self._watched.unschedulable.items()
            if name in snapshot.pending and (pod.spec.priority or 0) >= cutoff
        ]
        if not pods:
            return False
        decision = scale_up.decide(
            self._with_coming(snapshot, views),
            pods,
            [self._candidate(view, len(pods)) for view in views],
            self._cloud.catalogue,
            self._context.random,
        )
        self._tell(decision)
        if decision.chosen is None:
            return False
        self._grow(
            tasks,
            next(group_view for group_view in views if group_view.group is decision.chosen.group),
            decision.chosen,
        )
        return True

    def _grow(self, tasks: asyncio.TaskGroup, view: GroupView, option: scale_up.ExpanderOption) -> None:
        group, before = view.group, view.target
        change = f"{before}->{before + len(option.rows)} (max: {group.max_size})"
        self._reporter.say("Normal", "ScaledUpGroup", f"scale-up: group {group.name} {change}")
        self._launch(tasks, group, [row.labels[ZONE] for row in option.rows])
        for name in option.pods:
            pod = self._watched.unschedulable[name]
            message = f"pod triggered scale-up: [{{{group.name} {change}}}]"
            self._context.events.record(ref(PODS, pod), "Normal", "TriggeredScaleUp", message)

    def _tell(self, decision: scale_up.GrowDecision) -> None:
        now, told = self._clock.monotonic(), self._told
        self._told = {}
        for name, reason in decision.unhelped.items():
            pod = self._watched.unschedulable[name]
            entry = told.get(pod.metadata.uid)
            if entry is None or entry[0] != reason or now - entry[1] >= _REPEAT_SECONDS:
                entry = reason, now
                message = f"pod didn't trigger scale-up: {reason}"
                self._context.events.record(ref(PODS, pod), "Normal", "NotTriggerScaleUp", message)
            self._told[pod.metadata.uid] = entry

    def _candidate(self, view: GroupView, pods: int) -> scale_up.GrowCandidate:
        group, room = view.group, view.group.max_size - view.target
        refusal = ""
        if self._backoffs.holding(group.name, self._clock.monotonic()) is not None:
            refusal = "in backoff after failed scale-up"
        elif not view.counts.is_healthy(self._settings):
            refusal = "not ready for scale-up"
        elif room <= 0:
            refusal = scale_up.FULL
        if refusal:
            return scale_up.GrowCandidate(group, (), refusal)
        zones = next_zones(group, view.zones, min(room, pods, _MOST_NEW))
        rows = self._rows(group, zones, scale_up.NEW)
        return scale_up.GrowCandidate(group, rows, is_capped=room < pods)

    def _rows(self, group: NodeGroup, zones: Sequence[str], prefix: str) -> list[NodeRow]:
        """Return rows with numbered names, so that their order by name is the order of their launch."""
        daemons = list(self._watched.snapshot().daemons.values())
        made = {zone: self._templates.row(group, zone, "", daemons) for zone in dict.fromkeys(zones)}
        return [
            self._templates.named(made[zone], f"{prefix}{group.name}/{number:06d}")
            for number, zone in enumerate(zones)
        ]

    def _with_coming(self, snapshot: Room, views: Sequence[GroupView]) -> Room:
        """Return the snapshot with starting nodes at their final size and with the pods on them."""
        rows: list[NodeRow] = []
        held: list[tuple[int, str]] = []  # new row, node
        for view in views:
            zones = [instance.offer.zone for instance in view.starting] + list(view.launching)
            held += [
                (len(rows) + number, machine.id)
                for number, machine in enumerate(view.starting)
                if snapshot.find(machine.id) is not None
            ]
            rows += self._rows(view.group, zones, scale_up.UPCOMING)
        rest = snapshot.without([name for _, name in held])
        whole = rest.plus(rows)
        return whole.minus(
            PodPlacement(rest.n + number, snapshot.shapes[shape])
            for number, node in held
            for name, shape in snapshot.pods_on(_row(snapshot, node)).items()
            if (pod := self._watched.pod(name)) is not None and not is_daemon(pod)
        )


def _row(snapshot: Room, node: str) -> int:
    row = snapshot.find(node)
    assert row is not None
    return row
