"""The options of `karpool consolidator`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from karpool.consolidation.policy.options import OnePolicyOptions
from karpool.manager.options import ConnectionOptions, Duration, ProbeOptions, WatchOptions, option
from karpool.model.errors import Invalid
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings

STOP_NAMESPACE = "karpool-system"
STOP_NAME = "karpool-consolidation"
KEEP_SECONDS = 30 * 86400.0
_SMART_PODS = SmartPodSettings()
_CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class ConsolidatorOptions(OnePolicyOptions, frozen=True):
    command: ClassVar[str] = "consolidator"
    chart: ClassVar[str] = "consolidator"

    dry_run: Annotated[bool, option("Print plans and write nothing.", chart="dryRun", process_only=True)] = (
        False
    )
    once: Annotated[bool, option("Execute one plan and exit.", process_only=True)] = False
    interval_seconds: Annotated[Duration, option("Time between two plans.", flag="interval")] = 10.0
    quiet_period_seconds: Annotated[
        Duration,
        option("Validate and start a move this long after it was decided.", flag="quiet-period"),
    ] = 15.0
    launch_timeout_seconds: Annotated[
        float | None,
        msgspec.Meta(ge=0, extra={"unit": "duration"}),
        option(
            "Give up on new nodes that are not Ready after this time. "
            "Default: 10m, more for moves of thousands of nodes.",
            flag="launch-timeout",
        ),
    ] = None
    settle_seconds: Annotated[
        Duration, option("Measure savings this long after the nodes are deleted.", flag="settle")
    ] = 60.0
    max_moves: Annotated[
        int, option("Maximum number of moves at the same time.", chart="maxMoves", least=1)
    ] = 20
    keep_moves_seconds: Annotated[
        Duration,
        option(
            "How long to keep records of finished moves, at least a day; at most the last 500.",
            flag="keep-moves",
            chart="keepMoves",
        ),
    ] = KEEP_SECONDS
    maintenance_windows: Annotated[
        tuple[str, ...],
        option(
            "Start moves only in this window: cron schedule and duration, like '0 22 * * * 6h'. "
            "Repeatable. Default: always.",
            flag="maintenance-window",
            metavar="'CRON DURATION [ZONE]'",
            chart="maintenanceWindows",
        ),
    ] = ()
    rates: Annotated[
        tuple[str, ...],
        option(
            "Maximum number or percentage of removed nodes per time, like 5/1h or 10%/1h. Default: no limit.",
            flag="rate",
            metavar="NODES/TIME",
            chart="rates",
            pattern="^[0-9]+%?/",
        ),
    ] = ()
    contract_cluster: Annotated[
        str,
        option(
            "Name of this cluster in `sharedBy` of the contract; clusters then exchange what they "
            "use. Default: no exchange, shared commitments count as used up.",
            process_only=True,
        ),
    ] = ""
    contract_kubeconfig: Annotated[
        Path | None,
        option(
            "Kubeconfig of the cluster in whose --namespace the clusters exchange their use, like "
            "Karmada's. Default: `sharedIn` of the contract, or this cluster.",
            process_only=True,
        ),
    ] = None
    namespace: Annotated[str, option("Namespace of the move records, the lease and the stop ConfigMap.")] = (
        STOP_NAMESPACE
    )
    stop_configmap: Annotated[str, option('ConfigMap whose key `stop: "true"` stops consolidation.')] = (
        STOP_NAME
    )
    smart_pod_namespace: Annotated[str, option("Namespace of placeholders for new nodes.")] = (
        _SMART_PODS.namespace
    )
    smart_pod_image: Annotated[str, option("Image of placeholders, a container that only sleeps.")] = (
        _SMART_PODS.image
    )
    leader_elect: Annotated[bool, option("Act only while holding the lease.", process_only=True)] = True
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions()
    watch: Annotated[WatchOptions, option(process_only=True)] = WatchOptions()
    connection: Annotated[ConnectionOptions, option(process_only=True)] = ConnectionOptions()

    def problems(self) -> Iterator[Invalid | str]:
        yield from super().problems()
        if self.contract_kubeconfig is not None and not self.contract_cluster:
            yield "--contract-kubeconfig needs --contract-cluster"
        if self.contract_cluster and not _CLUSTER_NAME.fullmatch(self.contract_cluster):
            yield Invalid("--contract-cluster", self.contract_cluster, "must be like north-1")
        if not self.maintenance_windows and not self.rates:
            return
        from karpool.consolidation.policy.settings import parse_rate, parse_window  # with numpy

        yield from _unreadable("--maintenance-window", parse_window, self.maintenance_windows)
        yield from _unreadable("--rate", parse_rate, self.rates)

    @property
    def smart_pods(self) -> SmartPodSettings:
        return SmartPodSettings(namespace=self.smart_pod_namespace, image=self.smart_pod_image)


def _unreadable(flag: str, parse: Callable[[str], object], texts: tuple[str, ...]) -> Iterator[Invalid]:
    for text in texts:
        try:
            parse(text)
        except Invalid as error:
            yield Invalid(flag, error.value, error.reason)
