"""Reads the machine periodically, and keeps its GPU objects up to date.

One agent runs on each node and writes only objects of its own node, so it needs no lease. Without a driver it
reports that once and keeps polling: drivers are installed later than nodes.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import structlog

from karpool.gpu.agent.gpu_objects import PublishedNode, Writes, others_describe, writes_for
from karpool.gpu.agent.machine import Machine, NoNvml
from karpool.gpu.agent.options import GpuAgentOptions
from karpool.kube.api.client import Client
from karpool.kube.errors import AlreadyExists, KubeError, NotFound
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.controller import Environment
from karpool.manager.stop import Stop
from karpool.model.devices.device import OWNER_LABEL
from karpool.model.devices.node_devices import pool_of_node
from karpool.model.kubernetes.api_resources import GPUS, NODES, ListOptions
from karpool.model.kubernetes.node import HOSTNAME, Node

log = structlog.get_logger(__name__)


class GpuAgent:
    def __init__(
        self, environment: Environment, options: GpuAgentOptions, read: Callable[[], Machine]
    ) -> None:
        self._client: Client = environment.client
        self._off_loop = environment.off_loop
        self._options = options
        self._read = read
        self._said = ""

    @property
    def informers(self) -> Sequence[InformerSet]:
        return ()

    async def prepare(self, stack: AsyncExitStack) -> None:
        pass

    async def run(self, stop: Stop) -> None:
        while True:
            try:
                self._say(await self.publish())
            except (KubeError, NoNvml) as error:
                self._say(str(error))
            if await stop.sleep(self._options.interval_seconds):
                return

    async def publish(self) -> str:
        """Update the objects and return a message for the log. Raises NoNvml and KubeError."""
        machine = await self._off_loop(self._read)
        name = self._options.node_name
        node = await self._client.get(NODES, name, into=Node)
        owned = ListOptions(label_selector=f"{OWNER_LABEL}={name}")
        try:
            existing = (await self._client.list(GPUS, owned, into=dict)).items
        except NotFound:
            return (
                "GPU objects (gpus.tensor-fusion.ai) are not served here; install that CRD to publish devices"
            )
        if others_describe(existing):
            return f"another component publishes the GPUs of node {name}; nothing is published"
        published = PublishedNode(name, node.labels.get(HOSTNAME, name), pool_of_node(node.labels))
        writes = writes_for(machine, published, existing)
        await self._carry_out(writes)
        sick = [gpu.uuid for gpu in machine.devices if not gpu.healthy]
        return f"{len(machine.devices)} GPUs of node {name} are published" + (
            f"; not healthy: {', '.join(sick)}" if sick else ""
        )

    async def _carry_out(self, writes: Writes) -> None:
        for gpu in writes.created:
            with suppress(AlreadyExists):  # a crash happened between object and status
                await self._client.create(GPUS, {key: part for key, part in gpu.items() if key != "status"})
            await self._status(gpu)
        for gpu in writes.changed:
            if gpu["metadata"].keys() > {"name"}:
                await self._client.patch(GPUS, gpu["metadata"]["name"], {"metadata": gpu["metadata"]})
            await self._status(gpu)

    async def _status(self, gpu: dict[str, Any]) -> None:
        name, status = gpu["metadata"]["name"], {"status": gpu["status"]}
        try:
            await self._client.patch(GPUS, name, status, subresource="status")
        except NotFound:  # a CRD without the status subresource
            await self._client.patch(GPUS, name, status)

    def _say(self, text: str) -> None:
        """Log the message once until it changes."""
        if text != self._said:
            self._said = text
            log.info(text)
