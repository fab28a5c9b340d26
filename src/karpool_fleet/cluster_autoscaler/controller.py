"""The loop of cluster-autoscaler: observe, scale up, scale down, report; every ten seconds.

Its state is in the cluster and in the cloud: the tags of a machine name its group. What it keeps in memory
(back-offs, how long a node has been unneeded, launches and removals in progress) is lost on a restart, as
upstream.
"""

import asyncio
from collections.abc import Sequence

import structlog

from karpool.kube.errors import KubeError
from karpool.model.kubernetes.node import Node
from karpool_fleet.cloud.cloud import Cloud
from karpool_fleet.cluster_autoscaler import scale_down, status
from karpool_fleet.cluster_autoscaler.backoff import GroupBackoffs
from karpool_fleet.cluster_autoscaler.group_counts import GroupView, NodeCounts, observe, others, total
from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings, NodeGroup, checked, instances_of
from karpool_fleet.cluster_autoscaler.reporting import Reporter
from karpool_fleet.cluster_autoscaler.scale_down_actuator import GroupScaleDownActuator
from karpool_fleet.cluster_autoscaler.scale_up_actuator import GroupScaleUpActuator
from karpool_fleet.cluster_autoscaler.watched import AutoscalerState
from karpool_fleet.runtime.supervisor import Build, Context

log = structlog.get_logger(__name__)


def cluster_autoscaler(
    cloud: Cloud, groups: Sequence[NodeGroup], settings: AutoscalerSettings | None = None
) -> Build:
    """Return the component. Raises Invalid for an invalid group."""
    chosen = settings or AutoscalerSettings()
    node_groups = checked(groups, cloud.catalogue)
    return lambda context: ClusterAutoscaler(context, cloud, node_groups, chosen)


class ClusterAutoscaler:
    def __init__(
        self, context: Context, cloud: Cloud, groups: Sequence[NodeGroup], settings: AutoscalerSettings
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._cloud = cloud
        self._groups = groups
        self._settings = settings
        self._watched = AutoscalerState(context)
        self._backoffs = GroupBackoffs(settings)
        self._reporter = Reporter(context)
        self._growing = GroupScaleUpActuator(
            context,
            cloud,
            self._watched,
            backoffs=self._backoffs,
            reporter=self._reporter,
            settings=settings,
        )
        self._removals = GroupScaleDownActuator(context, cloud, self._watched, settings, self._removal_failed)
        self._unneeded: dict[str, float] = {}  # node -> unneeded since, monotonic
        self._movers: dict[str, tuple[str, ...]] = {}  # unneeded node -> pods that would move
        # Node whose pods have no other place -> time of the next check.
        self._kept_until: dict[str, float] = {}
        self._no_removal_until = 0.0
        # Change counter and tried nodes of the last check.
        self._looked_at: tuple[int, tuple[str, ...]] | None = None

    async def run(self) -> None:
        await self._reporter.announce()
        await self._watched.start()
        await self._removals.reset()
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self._scan(tasks)
                except KubeError as error:
                    log.info("scan interrupted", reason=str(error))
                await self._clock.sleep(self._settings.scan_interval_seconds)

    async def _scan(self, tasks: asyncio.TaskGroup) -> None:
        views = self._observe()
        healthy = self._counts(views).is_healthy(self._settings)
        if healthy:
            self._growing.settle(tasks, views)
            if self._growing.grow_for_pods(tasks, views):
                self._hold_removals(self._settings.delay_after_add_seconds)
            else:
                await self._scale_down(tasks, views)
        else:
            self._reporter.say("Warning", "ClusterUnhealthy", "too many nodes are not ready")
        await self._report(healthy)

    # Observing

    def _observe(self) -> list[GroupView]:
        instances = instances_of(self._cloud, self._context.cluster)
        return [
            observe(
                group,
                self._growing.wanted(instances.get(group.name, ())),
                self._growing.launching(group),
                self._watched.node,
                going=self._removals.under_way,
                now=self._clock.now(),
                tick=self._clock.monotonic(),
                settings=self._settings,
            )
            for group in self._groups
        ]

    def _counts(self, views: Sequence[GroupView]) -> NodeCounts:
        grouped = {instance.id for view in views for instance in view.instances}
        rest = (node for node in self._watched.nodes() if node.name not in grouped)
        return total([*(view.counts for view in views), others(rest, self._clock.now(), self._settings)])

    async def _report(self, healthy: bool) -> None:
        views, now = self._observe(), self._clock.monotonic()
        reports = [
            status.GroupReport(
                view,
                view.counts.is_healthy(self._settings),
                self._backoffs.holding(view.group.name, now),
                sum(node.name in self._unneeded for node in view.ready),
            )
            for view in views
        ]
        await self._reporter.write(reports, self._counts(views), healthy)

    # Scaling down

    def _hold_removals(self, seconds: float) -> None:
        self._no_removal_until = max(self._no_removal_until, self._clock.monotonic() + seconds)

    def _removal_failed(self) -> None:
        self._hold_removals(self._settings.delay_after_failure_seconds)

    async def _scale_down(self, tasks: asyncio.TaskGroup, views: Sequence[GroupView]) -> None:
        self._find_unneeded(views)
        now = self._clock.monotonic()
        if now >= self._no_removal_until:
            for view in views:
                self._remove_from(tasks, view, now)
        await self._removals.mark_candidates(list(self._unneeded))

    def _find_unneeded(self, views: Sequence[GroupView]) -> None:
        """Find unneeded nodes; repeated only after a change."""
        now = self._clock.monotonic()
        self._kept_until = {name: until for name, until in self._kept_until.items() if until > now}
        nodes = [
            node
            for view in views
            if view.target > view.group.min_size
            for node in view.ready
            if node.name not in self._kept_until
        ]
        nodes.sort(key=lambda node: (node.name not in self._unneeded, node.name))
        look = self._watched.changes, tuple(node.name for node in nodes)
        if look != self._looked_at:
            self._look(nodes, now)
            self._looked_at = (
                self._watched.changes,
                tuple(sorted((node for node in look[1] if node not in self._kept_until), key=self._turn)),
            )

    def _turn(self, name: str) -> tuple[bool, str]:
        return name not in self._unneeded, name

    def _look(self, nodes: Sequence[Node], now: float) -> None:
        unneeded = scale_down.find_unneeded(
            self._watched.snapshot().room,
            nodes,
            self._watched.pods_on,
            self._watched.budgets,
            catalogue=self._cloud.catalogue,
            settings=self._settings,
        )
        self._unneeded = {name: self._unneeded.get(name, now) for name in unneeded.pods}
        self._movers = unneeded.pods
        for name in unneeded.crowded:
            self._kept_until[name] = now + self._settings.unremovable_recheck_seconds

    def _remove_from(self, tasks: asyncio.TaskGroup, view: GroupView, now: float) -> None:
        spare = view.target - view.group.min_size
        for node in view.ready:
            since = self._unneeded.get(node.name)
            if spare <= 0 or since is None or now - since < self._settings.unneeded_seconds:
                continue
            pods = self._movers[node.name]
            if self._has_hands_free(drain=bool(pods)):
                self._removals.begin(tasks, node, pods)
                del self._unneeded[node.name]
                spare -= 1

    def _has_hands_free(self, *, drain: bool) -> bool:
        if drain and self._removals.draining >= self._settings.max_drain_parallelism:
            return False
        return len(self._removals.under_way) < self._settings.max_empty_bulk_delete
