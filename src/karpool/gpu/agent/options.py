"""The options of `karpool gpu-agent`."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from karpool.manager.options import ConnectionOptions, LongerThanNothing, Options, ProbeOptions, option
from karpool.model.errors import Invalid


class GpuAgentOptions(Options, frozen=True):
    command: ClassVar[str] = "gpu-agent"

    connection: Annotated[ConnectionOptions, option(process_only=True)] = ConnectionOptions()
    once: Annotated[bool, option("Print the GPUs of this machine and exit; needs no cluster.")] = False
    output: Annotated[Literal["table", "json"], option("With --once: output format.", short="o")] = "table"
    node_name: Annotated[str, option("Node name of this machine.", metavar="NAME")] = ""
    interval_seconds: Annotated[
        LongerThanNothing, option("Time between two reads of the devices.", flag="interval")
    ] = 30.0
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions()

    def problems(self) -> Iterator[Invalid | str]:
        if not self.once and not self.node_name:
            yield ("--node-name is required: the node name of this machine (spec.nodeName); or pass --once")
