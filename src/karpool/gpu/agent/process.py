"""The agent as the manager runs it: without a lease, because only it writes the objects of its node."""

from collections.abc import Callable

from karpool.gpu.agent.agent import GpuAgent
from karpool.gpu.agent.machine import Machine, this_machine
from karpool.gpu.agent.options import GpuAgentOptions
from karpool.kube.config import kubeconfig
from karpool.manager.controller import Controller, Environment, ManagerOptions, Place


def _manages(options: GpuAgentOptions) -> ManagerOptions:
    return ManagerOptions(
        clusters=[kubeconfig.load(options.connection.kubeconfig, context=options.connection.context)],
        listen=options.probes.addresses,
        qps=5.0,  # one agent on each of thousands of nodes: a few requests a minute are enough
        burst=20,
        timeout=options.connection.timeout_seconds,
        max_staleness_seconds=0,  # it watches nothing
    )


async def _build(
    environment: Environment, options: GpuAgentOptions, *, read: Callable[[], Machine] = this_machine
) -> GpuAgent:
    return GpuAgent(environment, options, read)


GPU_AGENT = Controller[GpuAgentOptions](
    name="gpu-agent",
    place=Place.EACH_CLUSTER,
    component=lambda options: "karpool-gpu-agent",
    manages=_manages,
    build=_build,
)
