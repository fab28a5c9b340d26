"""Every kind that a `Cluster` is fed with; kinds are named only here.

There is a row per kind and selection. `struct` is the type that an object is decoded into. A kind that
`may_be_absent` has no objects if the server does not serve it; a kind that is served and cannot be read is
never "none".
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from karpool.cluster.aspects import Aspect
from karpool.cluster.market.stock_outs import OUT_OF_STOCK
from karpool.cluster.pools import node_group_status
from karpool.model.devices.device import GpuObject
from karpool.model.devices.gpu_quota import QUOTAS as GPU_QUOTAS
from karpool.model.devices.gpu_quota import GpuResourceQuota
from karpool.model.dra.wire import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from karpool.model.karpenter.node_class import NodeClass
from karpool.model.karpenter.node_overlay import NodeOverlay
from karpool.model.karpenter.objects import NodeClaim, NodePool
from karpool.model.kubernetes import api_resources as api
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions
from karpool.model.kubernetes.capacity_buffer import CapacityBuffer
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import WireObject
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import PodDisruptionBudget
from karpool.model.kubernetes.priority import PriorityClass
from karpool.model.kubernetes.resource_quota import ResourceQuota
from karpool.model.kubernetes.volumes import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)


class Namespace(WireObject, frozen=True):
    pass


class OwnedObject(WireObject, frozen=True):
    """Any object of which only the metadata is read."""


class Unreadable(Enum):
    """The effect of an object of the kind that cannot be read."""

    HOLDS_NODE = "nothing counts as free on its node, and the node is not removed"
    NOT_LISTED = "it is skipped: no capacity is counted on it"
    CLOSES_NAMESPACE = "no pod of its namespace may be disrupted"
    KEEPS_NODES = "nodes with pods of its namespace are not removed"
    CLOSES_POOL = "its pool launches no nodes, and its nodes stay"
    CLOSES_DEVICES = "no device is counted on that hangs on it; a claim may hold any"
    ATTACHES_NOTHING = "its node has no room for volumes of drivers that limit them elsewhere"
    TAKES_A_SLOT = "it takes the place of one volume of every driver, on every node that may be its own"
    KEEPS_LAST = "the last known state is used"
    ADMITS_NOTHING = "nothing is allocated in its namespace"


@dataclass(frozen=True, slots=True)
class ClusterKind:
    resource: ApiResource
    struct: type[Any]
    aspects: Aspect
    selection: ListOptions = ALL
    may_be_absent: bool = False
    unreadable: Unreadable = Unreadable.KEEPS_LAST

    def __hash__(self) -> int:
        # Only the plural: every event looks up its kind, and hashing all fields is slow.
        return hash(self.resource.plural)

    def __str__(self) -> str:
        return str(self.resource)


# Finished pods use nothing, so the server need not send them.
LIVE_PODS = ListOptions(field_selector="status.phase!=Succeeded,status.phase!=Failed")

NAMESPACES = ClusterKind(api.NAMESPACES, Namespace, Aspect.NAMESPACES)
NODES = ClusterKind(api.NODES, Node, Aspect.ROOM, unreadable=Unreadable.NOT_LISTED)
PODS = ClusterKind(api.PODS, Pod, Aspect.ROOM, LIVE_PODS, unreadable=Unreadable.HOLDS_NODE)
CLAIMS = ClusterKind(api.PVCS, PersistentVolumeClaim, Aspect.VOLUMES, may_be_absent=True)
VOLUMES = ClusterKind(api.PVS, PersistentVolume, Aspect.VOLUMES, may_be_absent=True)
STORAGE_CLASSES = ClusterKind(api.STORAGECLASSES, StorageClass, Aspect.VOLUMES, may_be_absent=True)
CSI_NODES = ClusterKind(
    api.CSINODES, CsiNode, Aspect.VOLUMES, may_be_absent=True, unreadable=Unreadable.ATTACHES_NOTHING
)
VOLUME_ATTACHMENTS = ClusterKind(
    api.VOLUMEATTACHMENTS,
    VolumeAttachment,
    Aspect.VOLUMES,
    may_be_absent=True,
    unreadable=Unreadable.TAKES_A_SLOT,
)
NODEPOOLS = ClusterKind(
    api.NODEPOOLS, NodePool, Aspect.POOLS, may_be_absent=True, unreadable=Unreadable.CLOSES_POOL
)
NODECLAIMS = ClusterKind(api.NODECLAIMS, NodeClaim, Aspect.NODECLAIMS | Aspect.STOCK, may_be_absent=True)
# One of them is served where Karpenter runs, depending on the cloud.
NODE_CLASS_KINDS = tuple(
    ClusterKind(resource, NodeClass, Aspect.POOLS, may_be_absent=True)
    for resource in (api.EC2NODECLASSES, api.EKSNODECLASSES, api.AKSNODECLASSES, api.GCENODECLASSES)
)
DAEMONSETS = ClusterKind(api.DAEMONSETS, dict, Aspect.DAEMONS, may_be_absent=True)
BUDGETS = ClusterKind(
    api.PDBS,
    PodDisruptionBudget,
    Aspect.DISRUPTION | Aspect.BUDGETS,
    unreadable=Unreadable.CLOSES_NAMESPACE,
)
STOCK_EVENTS = ClusterKind(
    api.EVENTS,
    KubeEvent,
    Aspect.STOCK,
    ListOptions(field_selector=f"reason={OUT_OF_STOCK}"),
    may_be_absent=True,
)
NODE_GROUP_STATUS = ClusterKind(
    api.CONFIGMAPS,
    ConfigMap,
    Aspect.NODE_GROUPS,
    ListOptions(
        namespace=node_group_status.NAMESPACE, field_selector=f"metadata.name={node_group_status.NAME}"
    ),
    may_be_absent=True,
)
# Controllers between a pod and its workload. Others are rare, and read on demand.
OWNED_KINDS = tuple(
    ClusterKind(resource, OwnedObject, Aspect.OWNERS, may_be_absent=True)
    for resource in (api.REPLICASETS, api.DEPLOYMENTS, api.STATEFULSETS, api.JOBS)
)
RESOURCE_QUOTAS = ClusterKind(api.RESOURCEQUOTAS, ResourceQuota, Aspect.QUOTAS)
# Stored without interpretation; components read them from `Snapshot.objects`.
PRIORITIES = ClusterKind(api.PRIORITYCLASSES, PriorityClass, Aspect.PRIORITIES, may_be_absent=True)
GPUS = ClusterKind(api.GPUS, GpuObject, Aspect.DEVICES, may_be_absent=True)
GPU_RESOURCE_QUOTAS = ClusterKind(
    GPU_QUOTAS,
    GpuResourceQuota,
    Aspect.DEVICE_QUOTAS,
    may_be_absent=True,
    unreadable=Unreadable.ADMITS_NOTHING,
)
SCALE_UPS = ClusterKind(api.SCALEUPS, dict, Aspect.RECORDS, may_be_absent=True)
# Clusters serve one version, or both.
CAPACITY_BUFFERS = ClusterKind(
    api.CAPACITYBUFFERS,
    CapacityBuffer,
    Aspect.BUFFERS,
    may_be_absent=True,
    unreadable=Unreadable.KEEPS_NODES,
)
CAPACITY_BUFFERS_BETA = replace(CAPACITY_BUFFERS, resource=api.CAPACITYBUFFERS_BETA)
POD_TEMPLATES = ClusterKind(api.PODTEMPLATES, dict, Aspect.BUFFERS)
DEPLOYMENTS = ClusterKind(api.DEPLOYMENTS, dict, Aspect.BUFFERS)
REPLICA_SETS = ClusterKind(api.REPLICASETS, dict, Aspect.BUFFERS)
STATEFUL_SETS = ClusterKind(api.STATEFULSETS, dict, Aspect.BUFFERS)
NODE_OVERLAYS = ClusterKind(
    api.NODEOVERLAYS, NodeOverlay, Aspect.OVERLAYS, may_be_absent=True, unreadable=Unreadable.CLOSES_POOL
)
RESOURCE_SLICES = ClusterKind(
    api.RESOURCESLICES, ResourceSlice, Aspect.DRA, may_be_absent=True, unreadable=Unreadable.CLOSES_DEVICES
)
RESOURCE_CLAIMS = ClusterKind(
    api.RESOURCECLAIMS, ResourceClaim, Aspect.DRA, may_be_absent=True, unreadable=Unreadable.CLOSES_DEVICES
)
CLAIM_TEMPLATES = ClusterKind(
    api.RESOURCECLAIMTEMPLATES,
    ResourceClaimTemplate,
    Aspect.DRA,
    may_be_absent=True,
    unreadable=Unreadable.CLOSES_DEVICES,
)
DEVICE_CLASSES = ClusterKind(
    api.DEVICECLASSES, DeviceClass, Aspect.DRA, may_be_absent=True, unreadable=Unreadable.CLOSES_DEVICES
)
DEVICE_TAINT_RULES = ClusterKind(
    api.DEVICETAINTRULES,
    DeviceTaintRule,
    Aspect.DRA,
    may_be_absent=True,
    unreadable=Unreadable.CLOSES_DEVICES,
)

ALL_KINDS: tuple[ClusterKind, ...] = (
    NAMESPACES,
    CLAIMS,
    VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    VOLUME_ATTACHMENTS,
    NODES,
    PODS,
    NODEPOOLS,
    *NODE_CLASS_KINDS,
    NODECLAIMS,
    DAEMONSETS,
    BUDGETS,
    STOCK_EVENTS,
    NODE_GROUP_STATUS,
    *OWNED_KINDS,
    PRIORITIES,
    RESOURCE_QUOTAS,
    GPUS,
    GPU_RESOURCE_QUOTAS,
    SCALE_UPS,
    POD_TEMPLATES,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    CAPACITY_BUFFERS,
    CAPACITY_BUFFERS_BETA,
    NODE_OVERLAYS,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
)


def kinds_of(aspects: Aspect) -> tuple[ClusterKind, ...]:
    """Return the rows that these aspects need."""
    return tuple(kind for kind in ALL_KINDS if kind.aspects & (aspects | Aspect.ROOM))
