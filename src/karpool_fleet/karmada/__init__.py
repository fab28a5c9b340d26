"""A simulated Karmada control plane: member clusters join it, and templates are propagated to them.

One embedded cluster with Karmada's definitions plays its API server and runs these
components; others are members. There is no scheduler here: whoever writes
`spec.clusters` of a binding, and signs it as schedulers do, is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool_fleet.karmada.members.clusters import ClusterController, ClusterSettings
from karpool_fleet.karmada.members.eviction import TIMEOUT_SECONDS, GracefulEvictionController
from karpool_fleet.karmada.members.members import JoinedMember, join, unjoin
from karpool_fleet.karmada.members.namespaces import NamespaceSyncController
from karpool_fleet.karmada.members.taint_manager import TaintManager
from karpool_fleet.karmada.propagation.binding_controller import BindingController
from karpool_fleet.karmada.propagation.detector import ResourceDetector
from karpool_fleet.karmada.propagation.execution import ExecutionController
from karpool_fleet.karmada.status.binding_status import BindingStatusController
from karpool_fleet.karmada.status.cluster_status import ClusterStatusController, StatusSettings
from karpool_fleet.karmada.status.resource_interpreter import Interpretation, ResourceInterpreter
from karpool_fleet.karmada.status.work_status import WorkStatusController
from karpool_fleet.runtime.supervisor import Build

__all__ = [
    "ClusterSettings",
    "Interpretation",
    "JoinedMember",
    "KarmadaSettings",
    "StatusSettings",
    "join",
    "karmada_components",
    "unjoin",
]


@dataclass(frozen=True)
class KarmadaSettings:
    clusters: ClusterSettings = field(default_factory=ClusterSettings)
    status: StatusSettings = field(default_factory=StatusSettings)
    graceful_eviction_timeout: float = TIMEOUT_SECONDS
    # Upstream has the taint manager off until asked for; here a NoExecute taint means what it says.
    taint_eviction: bool = True
    gather_seconds: float = 0.1  # how long reports of members may wait for others
    # Kinds of one's own, by group and kind.
    interpretations: Mapping[tuple[str, str], Interpretation] = field(default_factory=dict)


def karmada_components(
    members: Mapping[str, JoinedMember], settings: KarmadaSettings | None = None
) -> Mapping[str, Build]:
    """What to add to the cluster that plays the control plane, by the names upstream gives them.

    `members` may grow while the components run; a Cluster without an entry is not ready.
    """
    use = settings or KarmadaSettings()
    interpreter, gather = ResourceInterpreter(use.interpretations), use.gather_seconds
    components: dict[str, Build] = {
        "cluster-controller": lambda context: ClusterController(
            context, use.clusters, evicts=use.taint_eviction
        ),
        "cluster-status-controller": lambda context: ClusterStatusController(context, members, use.status),
        "namespace-sync-controller": NamespaceSyncController,
        "resource-detector": lambda context: ResourceDetector(context, interpreter),
        "binding-controller": lambda context: BindingController(context, interpreter),
        "execution-controller": lambda context: ExecutionController(context, members),
        "work-status-controller": lambda context: WorkStatusController(
            context, members, interpreter, gather_seconds=gather
        ),
        "binding-status-controller": lambda context: BindingStatusController(
            context, interpreter, gather_seconds=gather
        ),
        "graceful-eviction-controller": lambda context: GracefulEvictionController(
            context, timeout_seconds=use.graceful_eviction_timeout
        ),
    }
    if use.taint_eviction:
        components["taint-manager"] = TaintManager
    return components
