"""Members that do what they are told, late: workloads arrive, pods get nodes, reports follow.

One replica is one core. Pods get a node while there is one; the others wait. What a member
says of a workload, and what it says of itself, are as old as the last report.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from karpool.kube.errors import Conflict, NotFound
from karpool.kube.watch.informer import Informer
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.kubernetes.api_resources import CLUSTERS, RESOURCEBINDINGS
from karpool.scheduler.estimates.estimate_cache import EstimatorReply
from karpool.wire.client_protocol import EncodedQuestion
from karpool.wire.proto import estimator_pb2 as pb
from tests.kube.handlers import Handlers
from tests.scheduler.acting import Stage, summary, targets

Object = dict[str, Any]


@dataclass
class Member:
    name: str
    cores: int
    applied: dict[str, int] = field(default_factory=dict)  # workload -> replicas that it was given
    bound: dict[str, int] = field(default_factory=dict)  # workload -> pods that have a node

    @property
    def used(self) -> int:
        return sum(self.bound.values())

    @property
    def waiting(self) -> int:
        return sum(self.applied.values()) - self.used

    def step(self) -> None:
        """Pods that are not wanted go, then waiting ones get what is free, in order of their names."""
        self.bound = {name: min(count, self.applied.get(name, 0)) for name, count in self.bound.items()}
        self.bound = {name: count for name, count in self.bound.items() if count}
        for name, wanted in sorted(self.applied.items()):
            more = min(wanted - self.bound.get(name, 0), self.cores - self.used)
            if more > 0:
                self.bound[name] = self.bound.get(name, 0) + more


class Members:
    """All members of a stage. Delays are in seconds."""

    def __init__(
        self,
        stage: Stage,
        cores: dict[str, int],
        *,
        apply_every: float = 1.0,
        bind_every: float = 2.0,
        report_every: float = 3.0,
        summarise_every: float = 5.0,
    ) -> None:
        self.stage = stage
        self.members = {name: Member(name, count) for name, count in cores.items()}
        self._every = (
            (apply_every, self._apply),
            (bind_every, self._bind),
            (report_every, self._report),
            (summarise_every, self._summarise),
        )
        self.overcommitted: list[str] = []
        self._informer: Informer[Object] = Informer(
            stage.control.client("judge"), RESOURCEBINDINGS, into=dict
        )
        self._informer.add_sink(Handlers(lambda obj: self._judge(), lambda old, obj: self._judge()))

    async def join(self) -> None:
        for name, member in self.members.items():
            await self.stage.join(name, member.cores)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            for seconds, act in self._every:
                group.create_task(self._repeat(seconds, act))

    async def _repeat(self, seconds: float, act: Any) -> None:
        while True:
            await asyncio.sleep(seconds)
            await act()

    def _judge(self) -> None:
        """At every version of every binding: nobody was given more than there is."""
        given: dict[str, int] = dict.fromkeys(self.members, 0)
        for obj in self._informer.objects():
            for name, count in targets(obj).items():
                given[name] += count
        for name, count in given.items():
            if count > self.members[name].cores:
                self.overcommitted.append(f"{name}: {count} of {self.members[name].cores}")

    async def _apply(self) -> None:
        bindings = await self.stage.bindings()
        for name, member in self.members.items():
            wanted = {binding["metadata"]["name"]: targets(binding).get(name, 0) for binding in bindings}
            member.applied = {workload: count for workload, count in wanted.items() if count}

    async def _bind(self) -> None:
        for member in self.members.values():
            member.step()

    async def _report(self) -> None:
        for binding in await self.stage.bindings():
            name = binding["metadata"]["name"]
            if not binding.get("status", {}).get("lastScheduledTime"):
                continue
            items = [
                _item(member, member.applied[name], member.bound.get(name, 0))
                for member in self.members.values()
                if name in member.applied
            ]
            if (binding["status"].get("aggregatedStatus") or []) != items:
                patch = {"status": {"aggregatedStatus": items}}
                try:
                    await self.stage.admin.patch(
                        RESOURCEBINDINGS, name, patch, namespace="default", subresource="status"
                    )
                except (Conflict, NotFound):
                    continue

    async def _summarise(self) -> None:
        for name, member in self.members.items():
            counts = summary(member.cores, used=member.used, waiting=member.waiting)
            status = {"status": {"resourceSummary": counts}}
            await self.stage.admin.patch(CLUSTERS, name, status, subresource="status")

    def free(self) -> int:
        return sum(member.cores - sum(member.applied.values()) for member in self.members.values())


class Estimators:
    """What Go estimators with overcommit protection answer: free cores less what is promised to others.

    With `fails` set, every so many-th call finds nobody.
    """

    def __init__(self, members: Members, fails: int = 0) -> None:
        self._members = members.members
        self._fails = fails
        self._calls = 0

    async def ask(
        self, cluster: MemberCluster, asked: EncodedQuestion, promises: Sequence[bytes] = (), about: str = ""
    ) -> EstimatorReply:
        self._calls += 1
        await asyncio.sleep(0.01)
        if self._fails and self._calls % self._fails == 0:
            return EstimatorReply(None, "nobody is there", lost_since=asyncio.get_running_loop().time())
        promised = [pb.AssumedWorkload.FromString(promise) for promise in promises]
        taken = sum(part.replicas for each in promised for part in each.components)
        member = self._members[cluster.name]
        return EstimatorReply(max(0, member.cores - member.used - taken))


def _item(member: Member, created: int, ready: int) -> Object:
    return {
        "clusterName": member.name,
        "applied": True,
        "health": "Healthy" if ready == created else "Unhealthy",
        "status": {"replicas": created, "readyReplicas": ready},
    }
