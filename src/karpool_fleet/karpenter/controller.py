"""The simulated Karpenter as one component, which starts and crashes as one process."""

import asyncio

from karpool_fleet.cloud.cloud import Cloud, Instance
from karpool_fleet.karpenter.disruption.loop import DisruptionLoop
from karpool_fleet.karpenter.lifecycle.interruption import Interruptions
from karpool_fleet.karpenter.lifecycle.lifecycle import Lifecycle
from karpool_fleet.karpenter.lifecycle.pod_events import PodEventTimes
from karpool_fleet.karpenter.lifecycle.pools import Pools
from karpool_fleet.karpenter.provisioning.machines import CLUSTER_TAG, NAME_TAG
from karpool_fleet.karpenter.provisioning.provisioner import Provisioner
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.karpenter.shared import shared
from karpool_fleet.karpenter.termination.node_terminator import NodeTerminator
from karpool_fleet.runtime.supervisor import Context


class Karpenter:
    def __init__(self, context: Context, cloud: Cloud, settings: KarpenterSettings) -> None:
        self._cluster = context.cluster
        self._cloud = cloud
        self.shared = parts = shared(context, cloud, settings)
        self.pools = Pools(parts)
        self.lifecycle = Lifecycle(parts)
        self.node_terminator = NodeTerminator(parts)
        self.provisioner = Provisioner(parts)
        self.interruptions = Interruptions(parts)
        self.pod_events = PodEventTimes(parts)
        self.disruption = DisruptionLoop(parts, self.provisioner)

    async def run(self) -> None:
        await self.shared.view.start()
        self._cloud.subscribe(self._on_machine)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.shared.machines.run())
                for kind in (self.shared.view.claims, self.shared.view.nodes, self.shared.view.pools):
                    group.create_task(kind.verify())
                group.create_task(self.pools.run())
                group.create_task(self.lifecycle.run())
                group.create_task(self.node_terminator.run())
                group.create_task(self.node_terminator.evictions.run())
                group.create_task(self.provisioner.run())
                group.create_task(self.interruptions.run())
                group.create_task(self.interruptions.sweep())
                group.create_task(self.pod_events.run())
                if self.shared.settings.consolidates:
                    group.create_task(self.disruption.commands.run())
                    group.create_task(self.disruption.run())
        finally:
            self._cloud.unsubscribe(self._on_machine)

    def _on_machine(self, instance: Instance) -> None:
        if instance.tags.get(CLUSTER_TAG) != self._cluster:
            return
        self.interruptions.heard(instance)
        if instance.state == "terminated":
            self.lifecycle.queue.add(instance.tags.get(NAME_TAG, ""))
            for node in self.shared.view.nodes_with(instance.provider_id):
                self.node_terminator.queue.add(node.name)
