"""One member cluster: what is watched of it, and the questions it can be asked.

Until every node and every pod has been counted once, `not_ready` says why there is
no answer yet: a cluster that is half counted looks emptier than it is. One that has
not been heard of for too long is `stale`.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from karpool.estimator import gates
from karpool.estimator.framework import Watched, watches_of
from karpool.estimator.owners import BETWEEN, Kinds, Owned, OwnerReader, Owners
from karpool.estimator.pods import BoundPods, WaitingPods, outstanding
from karpool.estimator.question import Question
from karpool.estimator.registry import Plugins
from karpool.estimator.running import Framework
from karpool.estimator.unschedulable import NANOSECONDS, UnschedulableReader
from karpool.kube.client import Client
from karpool.kube.feature_gates import Gates
from karpool.kube.following import Follower, followers
from karpool.kube.resource import NODES, PODS, Selection
from karpool.model.node import Node
from karpool.model.pod import Pod
from karpool.state.cluster import ClusterState
from karpool.wire.request import EstimateRequest, ObjectReference

# Pods that have ended are not sent at all; ending counts as going.
LIVE_PODS = Selection(field_selector="status.phase!=Succeeded,status.phase!=Failed")
# 50,000 pods within the burst that the Go binary allows itself. Larger pages only take more memory.
PAGE_SIZE = 2000


@dataclass(frozen=True)
class MemberSettings:
    gates: Gates = field(default_factory=lambda: gates.DEFAULTS)
    max_staleness_seconds: float = 0.0  # 0: never mind
    unschedulable_kinds: Collection[str] = ()


class Member:
    def __init__(
        self,
        name: str,
        client: Client,
        plugins: Plugins,
        framework: Framework,
        settings: MemberSettings | None = None,
    ) -> None:
        self.name = name
        self.framework = framework
        self.state = ClusterState(volumes=False)
        self.waiting = WaitingPods()
        self._client = client
        self._settings = settings or MemberSettings()
        self._owners = Owners()
        self._bound: BoundPods | None = None
        self._counted = False
        kinds = Kinds(client)
        self._unschedulable = UnschedulableReader(
            client,
            kinds.find,
            OwnerReader(client, kinds, self._owners),
            self._settings.unschedulable_kinds,
        )
        self._watches = self._build_watches(plugins)

    # Running

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.informer.run(), name=f"{self.name} {watch.informer.resource}")

    @property
    def synced(self) -> bool:
        return all(watch.ready for watch in self._watches)

    @property
    def failing(self) -> bool:
        """Whether some kind could not be read the last time it was tried."""
        return any(watch.informer.last_error is not None and not watch.ready for watch in self._watches)

    def not_ready(self) -> str | None:
        """What has not been counted yet, or None."""
        if self._counted:
            return None
        for watch in self._watches:
            if not watch.ready:
                informer = watch.informer
                why = f": {informer.last_error}" if informer.last_error else ""
                return f"cluster {self.name}: {informer.resource} are not counted yet{why}"
        self._counted = True
        return None

    @property
    def stale(self) -> bool:
        """Whether the cluster has not been heard of for so long that its state means nothing."""
        limit = self._settings.max_staleness_seconds
        return bool(limit) and self.staleness() > limit

    def staleness(self) -> float:
        """Seconds since the API server was last heard of, for the kind that has waited longest."""
        return max(watch.staleness() for watch in self._watches)

    # Asking

    def question(self, request: EstimateRequest, *, topology: bool = False) -> Question:
        if self._bound is None:  # overcommit protection is off
            return Question(request, self.state.snapshot(), topology=topology)
        arrived = tuple(map(self._bound.arrived, request.assumed))
        assumed = tuple(map(outstanding, request.assumed, arrived))
        return Question(request, self.state.snapshot(), assumed, topology, arrived)

    async def unschedulable(self, reference: ObjectReference, threshold_ns: int, now: float) -> int:
        """A threshold below zero counts as zero. Raises KubeError or Unsupported."""
        seconds = max(threshold_ns, 0) / NANOSECONDS
        waiting = self.waiting.of(reference.namespace)
        overdue = [pod for pod in waiting if pod.is_overdue(now, seconds)]
        return await self._unschedulable.count(reference, overdue)

    # Inside

    def _build_watches(self, plugins: Plugins) -> list[Follower]:
        wanted: list[Watched[Any]] = [
            Watched(NODES, Node, self.state.sink("Node")),
            Watched(PODS, Pod, self.state.sink("Pod"), LIVE_PODS),
            Watched(PODS, Pod, self.waiting, LIVE_PODS),
        ]
        if self._settings.gates[gates.OVERCOMMIT_PROTECTION]:
            # After the state, which then knows what each pod asks for.
            self._bound = BoundPods(self.state.shape_of, self._owners.get)
            wanted.append(Watched(PODS, Pod, self._bound, LIVE_PODS))
            wanted += (Watched(each, Owned, self._owners, optional=True) for each in BETWEEN)
        for plugin in plugins:
            wanted += watches_of(plugin)
        return followers(self._client, wanted, page_size=PAGE_SIZE)
