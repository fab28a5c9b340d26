"""gpu-scaler and consolidator side by side, the GPU pool open to consolidation:
python -m tests.gpu.shares_and_moves [--hours 168] [--seed 0]

Workers come and go at random: bare pods, which nothing would bring back, and pods of Deployments, which may
be moved where device and share fit. A judge sees every change of the server: whether a node goes under a bare
pod that holds a share, whether a share is held on a device that is not there, and whether more is given of a
device than it has.
"""

import asyncio
import logging
import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import structlog

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import COMPONENT, Consolidator, ConsolidatorSettings
from karpool.consolidation.execution.record import MovePhase
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.runtime.supervisor import Context
from tests.fleet.living import pods, until
from tests.gpu.whole import Story, gpu_pool, tell, worker

GIB = 2**30
DEVICE_GIB = 24  # of the machines of the pool
DEVICES = "tensor-fusion.ai/gpu-ids"
VRAM = "tensor-fusion.ai/vram-request"
OPEN = {
    "consolidationPolicy": "WhenEmptyOrUnderutilized",
    "consolidateAfter": "2m",
    "budgets": [{"nodes": "100%"}],
}
BARE_MAX = 6


@dataclass
class ShareJudge:
    """Sees every change at the moment it is written."""

    cluster: LiveCluster
    violations: list[str] = field(default_factory=list)
    deletions: int = 0  # of NodeClaims

    def __post_init__(self) -> None:
        self._store = self.cluster.embedded.server.cluster.store
        self._store.listeners.append(self._on_change)

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [record.object() for record in self._store.collection(kind).ordered(None)]

    def _holders(self) -> list[Pod]:
        """Pods that hold a share."""
        held = (
            decode(raw, Pod)
            for raw in self._all("pods")
            if DEVICES in (raw["metadata"].get("annotations") or {})
        )
        return [pod for pod in held if pod.spec.node_name and not pod.is_terminal]

    def _on_change(self, event: StoredEvent) -> None:
        kind = event.record.collection.group_resource
        if kind == "pods" and event.type != "DELETED":
            self._check_books()
        elif kind == "nodeclaims.karpenter.sh" and event.type == "MODIFIED":
            before, after = event.previous, event.record.object()["metadata"]
            going = "deletionTimestamp" in after
            if going and before is not None and "deletionTimestamp" not in before.object()["metadata"]:
                self.deletions += 1
                self._check_bare(event.record.object().get("status", {}).get("nodeName", ""))

    def _check_bare(self, node: str) -> None:
        for pod in self._holders():
            if pod.spec.node_name == node and not pod.metadata.owner_references:
                self.violations.append(f"node {node} goes under {pod.name}, which nothing brings back")

    def _check_books(self) -> None:
        given: Counter[str] = Counter()
        homes: defaultdict[str, set[str]] = defaultdict(set)
        for pod in self._holders():
            for device in pod.annotations[DEVICES].split(","):
                given[device] += int(pod.annotations[VRAM].removesuffix("Gi"))
                homes[device].add(pod.spec.node_name)
        for device, gib in given.items():
            if gib > DEVICE_GIB:
                self.violations.append(f"{gib} GiB of {device} are given, which has {DEVICE_GIB}")
            if len(homes[device]) > 1 or not device.startswith(next(iter(homes[device]))):
                self.violations.append(f"{device} is held on {sorted(homes[device])}")


@dataclass
class Week:
    """What came of it."""

    violations: list[str]
    deletions: int
    moves: Counter[MovePhase]
    served: int
    unserved: list[str]


def owned(name: str, replicas: int, vram: str) -> dict[str, Any]:
    """A Deployment of workers."""
    pod = worker(name, vram=vram)
    template = {
        "metadata": {"labels": {"app": name}, "annotations": pod["metadata"]["annotations"]},
        "spec": pod["spec"],
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def consolidate(told: Story) -> list[Consolidator]:
    made: list[Consolidator] = []

    def build(context: Context) -> Manager[Consolidator]:
        events = EventRecorder(told.cluster.embedded.client("consolidator-events"), COMPONENT)
        environment = Environment({context.cluster: context.client}, events)
        settings = ConsolidatorSettings(plan_seconds=30.0)
        made.append(Consolidator(environment, settings, market=Market(told.cluster.catalogue)))
        return Manager(made[-1], environment)

    told.cluster.embedded.add("consolidator", build)
    return made


def lived(hours: float, seed: int = 0, say: Callable[[str], object] = lambda _: None) -> Week:
    """`say` hears every ten hours how far it came."""

    async def story(told: Story) -> Week:
        random, judge = Random(seed), ShareJudge(told.cluster)
        sizes = {"small": "6Gi", "large": "14Gi"}
        for name, vram in sizes.items():
            await told.client.create(DEPLOYMENTS, owned(name, 2, vram))
        made = consolidate(told)
        bare: list[str] = []
        served, left, told_at = 0, hours * 3600.0, 10.0
        while left > 0:
            if (passed := hours - left / 3600.0) >= told_at:
                told_at += 10.0
                say(
                    f"{passed:.0f} hours, {judge.deletions} nodes taken away, violations {judge.violations}\n"
                )
            action = random.random()
            if action < 0.35 and len(bare) < BARE_MAX:
                bare.append(f"bare-{served}")
                served += 1
                await told.add(worker(bare[-1], vram=random.choice(["4Gi", "8Gi", "16Gi"])))
            elif action < 0.6 and bare:
                await told.client.delete(PODS, bare.pop(random.randrange(len(bare))), namespace="default")
            else:
                name = random.choice(list(sizes))
                await told.client.scale(DEPLOYMENTS, name, random.randint(0, 4), namespace="default")
            pause = random.choice([120.0, 600.0, 1800.0])
            await asyncio.sleep(pause)
            left -= pause

        async def all_served() -> bool:
            return all(
                pod.spec.node_name for pod in await pods(told.cluster) if pod.metadata.namespace == "default"
            )

        await until(all_served, within=1800)
        waiting = [pod.name for pod in await pods(told.cluster) if not pod.spec.node_name]
        moves: Counter[MovePhase] = sum((consolidator.ended for consolidator in made), Counter())
        return Week(judge.violations, judge.deletions, moves, served, waiting)

    return tell(story, gpu_pool("gpu", "g6.xlarge", disruption=OPEN))


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=168.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    week = lived(chosen.hours, chosen.seed, sys.stderr.write)
    sys.stdout.write(
        f"{chosen.hours:g} hours: {week.served} bare workers, {week.deletions} nodes taken away, "
        f"moves {dict(week.moves)}, waiting {week.unserved}, violations {week.violations}\n"
    )
    return bool(week.violations or week.unserved)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
