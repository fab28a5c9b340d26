"""A simulated Karmada control plane: member clusters join it, and templates are propagated to them.

One embedded cluster with Karmada's definitions is its API server and runs these components; others are
members. There is no scheduler here: a scheduler is any client that writes `spec.clusters` of a binding and
the annotation of the applied placement.
"""

from collections.abc import Mapping

from karpool_fleet.karmada.members.clusters import ClusterController
from karpool_fleet.karmada.members.eviction import TIMEOUT_SECONDS, GracefulEvictionController
from karpool_fleet.karmada.members.members import JoinedMember, join
from karpool_fleet.karmada.members.namespaces import NamespaceSyncController
from karpool_fleet.karmada.members.taint_manager import TaintManager
from karpool_fleet.karmada.propagation.binding_controller import BindingController
from karpool_fleet.karmada.propagation.detector import ResourceDetector
from karpool_fleet.karmada.propagation.execution import ExecutionController
from karpool_fleet.karmada.status.binding_status import BindingStatusController
from karpool_fleet.karmada.status.cluster_status import ClusterStatusController
from karpool_fleet.karmada.status.work_status import WorkStatusController
from karpool_fleet.runtime.supervisor import Build

__all__ = ["JoinedMember", "join", "karmada_components"]


def karmada_components(
    members: Mapping[str, JoinedMember], *, graceful_eviction_timeout: float = TIMEOUT_SECONDS
) -> Mapping[str, Build]:
    """Return the components of the control plane, by upstream's names.

    `members` may grow while the components run; a Cluster without an entry is not ready.
    """
    return {
        "cluster-controller": ClusterController,
        "cluster-status-controller": lambda context: ClusterStatusController(context, members),
        "namespace-sync-controller": NamespaceSyncController,
        "resource-detector": ResourceDetector,
        "binding-controller": BindingController,
        "execution-controller": lambda context: ExecutionController(context, members),
        "work-status-controller": lambda context: WorkStatusController(context, members),
        "binding-status-controller": BindingStatusController,
        "graceful-eviction-controller": lambda context: GracefulEvictionController(
            context, timeout_seconds=graceful_eviction_timeout
        ),
        "taint-manager": TaintManager,
    }
