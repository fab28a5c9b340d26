"""The options of `karpool gpu-scaler`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from karpool.gpu.controller.mode import ScalerMode
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.strategies.strategy_name import StrategyName
from karpool.manager.options import (
    Amount,
    Catalogue,
    ConnectionOptions,
    ContractCluster,
    ContractFile,
    Duration,
    Options,
    ProbeOptions,
    WatchOptions,
    option,
    region_problems,
)
from karpool.model.devices.isolation import IsolationPolicy
from karpool.model.errors import Invalid
from karpool.provisioning.placeholders.backend_name import BackendName
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings

SCHEDULER_NAME = "karpool-gpu-scheduler"
_SCALE_UP, _SMART_PODS = ScaleUpSettings(), SmartPodSettings()
# The kubelet may take this much longer than our timeout, so that we time out first and report why.
_DEADLINE_GRACE_SECONDS = 300


class GpuScalerOptions(Options, frozen=True):
    command: ClassVar[str] = "gpu-scaler"
    chart: ClassVar[str] = "gpuScaler"

    connection: Annotated[ConnectionOptions, option(process_only=True)] = ConnectionOptions()
    scheduler_name: Annotated[str, option("Serve pods that name this scheduler.", chart="schedulerName")] = (
        SCHEDULER_NAME
    )
    mode: Annotated[
        ScalerMode,
        option(
            "bring-nodes: request nodes for pods that their own scheduler has no GPU for, and bind nothing. "
            "allocate: give devices to pods of --scheduler-name only. auto: each pod by its scheduler.",
            chart="mode",
        ),
    ] = ScalerMode.AUTO
    accept_unenforced_shares: Annotated[
        bool,
        option(
            "Allocate shares even if nothing on the node enforces them. Only for tests.",
            chart="acceptUnenforcedShares",
        ),
    ] = False
    device_shapes: Annotated[
        Path | None,
        option(
            "File of ResourceSlices that drivers publish on new nodes, labelled with their instance type.",
            exists=True,
            process_only=True,
        ),
    ] = None
    default_pool: Annotated[
        str,
        option("GPU pool of pods that do not name one. Default: none.", chart="defaultPool"),
    ] = ""
    catalogue: Annotated[Catalogue, option(process_only=True)] = None
    contract: Annotated[ContractFile, option(process_only=True)] = None
    contract_cluster: Annotated[ContractCluster, option(process_only=True)] = ""
    region: Annotated[
        str,
        option(
            "Region to assume until a node or NodePool names one. Default: none.",
            chart="region",
            process_only=True,
        ),
    ] = ""
    strategy: Annotated[StrategyName, option("How to choose a GPU.", chart="strategy")] = (
        StrategyName.NODE_COMPACT
    )
    isolation_policy: Annotated[
        IsolationPolicy,
        option("Static: the node sets the isolation mode. Dynamic: the first pod on a GPU sets it."),
    ] = IsolationPolicy.STATIC
    backend: Annotated[BackendName, option("How to request nodes.", chart="backend", process_only=True)] = (
        BackendName.SMART_POD
    )
    smart_pod_namespace: Annotated[str, option("Namespace of smart pods and ScaleUp objects.")] = (
        _SMART_PODS.namespace
    )
    smart_pod_image: Annotated[str, option("Image of smart pods, a container that only sleeps.")] = (
        _SMART_PODS.image
    )
    max_in_flight: Annotated[
        int,
        option(
            "Maximum number of nodes requested at the same time; 0 means the default.",
            chart="maxInFlight",
            least=0,
            most=1000,
        ),
    ] = _SCALE_UP.max_in_flight
    debounce_seconds: Annotated[
        Duration, option("How long to wait for freed GPUs before requesting a node.", flag="debounce")
    ] = _SCALE_UP.debounce
    pending_limit_seconds: Annotated[
        Duration,
        option(
            "Try the next candidate if the autoscaler has not reacted after this time.", flag="pending-limit"
        ),
    ] = _SCALE_UP.pending_limit
    device_limit_seconds: Annotated[
        Duration,
        option(
            "Give up on a Ready node that has not registered its GPUs after this time.", flag="device-limit"
        ),
    ] = _SCALE_UP.device_limit
    hold_seconds: Annotated[Duration, option("How long GPUs are reserved for the hand-off.", flag="hold")] = (
        _SCALE_UP.hold
    )
    leader_elect: Annotated[bool, option("Act only while holding the lease.", process_only=True)] = True
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions()
    watch: Annotated[WatchOptions, option(process_only=True)] = WatchOptions()
    original_metric_names: Annotated[
        bool, option("Also export every metric as tensor_fusion_...", process_only=True)
    ] = False
    kube_api_qps: Annotated[
        Amount, option("Maximum requests per second; 0 means no limit.", process_only=True)
    ] = 50.0

    def problems(self) -> Iterator[Invalid | str]:
        yield from region_problems(self.region, self.catalogue)

    @property
    def maximum_age_seconds(self) -> float:
        """The maximum age of a smart pod: at least the sum of all stage timeouts."""
        waits = self.pending_limit_seconds + _SCALE_UP.launch_limit + self.device_limit_seconds
        return max(_SCALE_UP.maximum_age, waits + 2 * self.hold_seconds)

    @property
    def scale_up(self) -> ScaleUpSettings:
        return ScaleUpSettings(
            debounce=self.debounce_seconds,
            pending_limit=self.pending_limit_seconds,
            device_limit=self.device_limit_seconds,
            hold=self.hold_seconds,
            maximum_age=self.maximum_age_seconds,
            max_in_flight=self.max_in_flight,
        )

    @property
    def smart_pods(self) -> SmartPodSettings:
        return SmartPodSettings(
            namespace=self.smart_pod_namespace,
            image=self.smart_pod_image,
            maximum_age_seconds=self.maximum_age_seconds,
            active_deadline_seconds=int(self.maximum_age_seconds) + _DEADLINE_GRACE_SECONDS,
        )
