"""The options of `karpool gpu-agent`."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from karpool.manager.options import ConnectionOptions, LongerThanNothing, Options, ProbeOptions, option
from karpool.model.errors import Invalid


class GpuAgentOptions(Options, frozen=True):
    command: ClassVar[str] = "gpu-agent"

    connection: Annotated[ConnectionOptions, option(process_only=True)] = ConnectionOptions()
    once: Annotated[bool, option("Print what this machine has, and stop; no cluster is needed.")] = False
    output: Annotated[Literal["table", "json"], option("With --once: form of the result.", short="o")] = (
        "table"
    )
    node_name: Annotated[str, option("The node that this machine is.", metavar="NAME")] = ""
    interval_seconds: Annotated[
        LongerThanNothing, option("How often to look at the devices.", flag="interval")
    ] = 30.0
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions()

    def problems(self) -> Iterator[Invalid | str]:
        if not self.once and not self.node_name:
            yield "--node-name is required: the node that this machine is (spec.nodeName); or give --once"
