"""A simulated Karmada control plane: member clusters join it, and templates are propagated to them.

One embedded cluster with Karmada's definitions plays its API server and runs these
components; others are members. There is no scheduler here: whoever writes
`spec.clusters` of a binding, and signs it as schedulers do, is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.fleet.karmada.binding_controller import BindingController
from karpool.fleet.karmada.binding_status import BindingStatusController
from karpool.fleet.karmada.cluster_status import ClusterStatusController, StatusSettings
from karpool.fleet.karmada.clusters import ClusterController, ClusterSettings
from karpool.fleet.karmada.detector import ResourceDetector
from karpool.fleet.karmada.eviction import TIMEOUT_SECONDS, GracefulEvictionController
from karpool.fleet.karmada.execution import ExecutionController
from karpool.fleet.karmada.interpreting import Interpretation, Interpreter
from karpool.fleet.karmada.members import Member, join, unjoin
from karpool.fleet.karmada.namespaces import NamespaceSyncController
from karpool.fleet.karmada.taint_manager import TaintManager
from karpool.fleet.karmada.work_status import WorkStatusController
from karpool.fleet.runtime import Build

__all__ = [
    "ClusterSettings",
    "Interpretation",
    "KarmadaSettings",
    "Member",
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
    members: Mapping[str, Member], settings: KarmadaSettings | None = None
) -> Mapping[str, Build]:
    """What to add to the cluster that plays the control plane, by the names upstream gives them.

    `members` may grow while the components run; a Cluster without an entry is not ready.
    """
    use = settings or KarmadaSettings()
    interpreter, gather = Interpreter(use.interpretations), use.gather_seconds
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
