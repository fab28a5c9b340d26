"""`karpool gpu-agent`: the GPUs of one machine, printed or published."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.gpu.agent.options import GpuAgentOptions
from karpool.model.documents import document_of

if TYPE_CHECKING:
    from karpool.gpu.agent.machine import Machine


def _gpu_agent(options: GpuAgentOptions) -> None:
    import click

    from karpool.cli.output.text import emit
    from karpool.gpu.agent.machine import NoNvml, this_machine

    if options.once:
        try:
            emit(_shown(this_machine(), options.output))
        except NoNvml as error:
            raise click.ClickException(f"no GPU found: {error}") from None
        return

    from karpool.gpu.agent.process import GPU_AGENT
    from karpool.manager.manager import run_process
    from karpool.manager.shutdown import run_until_signalled
    from karpool.manager.stop import Stop

    async def serve(stop: Stop) -> None:
        await run_process(GPU_AGENT, options, stop)

    run_until_signalled(serve)


def _shown(machine: "Machine", form: str) -> str:

    from karpool.cli.output.text import columns
    from karpool.cli.output.text import machine as document

    if form == "json":
        return document("MachineGpuList", document_of(machine, old_keys=True), form)
    rows = (
        (
            str(gpu.index),
            gpu.model or gpu.name or "?",
            "?" if gpu.memory_bytes is None else f"{gpu.memory_bytes // 2**20}Mi",
            ",".join(instance.profile for instance in gpu.instances) or ("on" if gpu.mig_enabled else "off"),
            " ".join(link.path for link in gpu.links) or "-",
            "yes" if gpu.healthy else "; ".join(gpu.problems),
            gpu.uuid or "?",
        )
        for gpu in machine.devices
    )
    return columns(("GPU", "MODEL", "MEMORY", "MIG", "LINKS", "HEALTHY", "UUID"), rows)


gpu_agent = controller_command(
    GpuAgentOptions,
    _gpu_agent,
    help_text="""Read the GPUs of this machine and publish them as GPU objects, if nothing else does.

    Reads models, memory, MIG instances and their placement, links between devices, and health through NVML.
    Without a driver it reports this and retries.
    """,
    epilog="""Needs nvidia-ml-py: pip install 'karpool[gpu-agent]'.

Example: karpool gpu-agent --once -o json
""",
)
