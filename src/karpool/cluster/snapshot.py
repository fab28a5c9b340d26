"""One immutable moment of a cluster, which all components read.

`room` is the input of the packing kernel. `minus`, `plus` and `without` return another, hypothetical
snapshot, in which nodes and pods follow the rows of its room. Reading an aspect that is not watched raises
`NotWatched`. The state of pools and offerings depends on the time, so these methods take `now`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from karpool.cluster.aspects import Aspect, NotWatched
from karpool.cluster.devices.device_store import DeviceUse
from karpool.cluster.kinds import ClusterKind
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.cluster.nodes.expected import DaemonOverhead, ExpectedNode, expected_node
from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts
from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.pods.buffer_store import BufferPods
from karpool.cluster.pods.disruption_store import PodDisruptionTable
from karpool.cluster.pods.waiting_store import WaitingPod
from karpool.cluster.pools.node_group_store import NodeGroups
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CompiledPool, NodePool
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.resource_quota import QuotaHeadroom
from karpool.model.resources import Resources
from karpool.packing.counting.assumed import AssumedDeduction, assume
from karpool.packing.counting.first_fit import PodGroup
from karpool.packing.dra.pod_claims import HeldClaims
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.tables.room import Room

_NO_BUFFERS = BufferPods({}, {})


REGION_MISSING = (
    "the region is unknown: no node, claim, node class or pool names one; only instance "
    "types seen on nodes count; set --region"
)


@dataclass(frozen=True)
class ClusterFacts:
    """The content of a snapshot besides its room; shared by all hypothetical snapshots derived from it."""

    aspects: Aspect
    joined: Mapping[str, StateNode]  # by node
    claims: Mapping[str, StateNode]  # claims without a node, by name
    market: Market
    failures: LaunchFailures
    pools: Mapping[str, CompiledPool] = field(default_factory=dict)
    pool_objects: Mapping[str, NodePool] = field(default_factory=dict)
    broken_pools: Mapping[str, str] = field(default_factory=dict)
    usage: Mapping[str, Resources] = field(default_factory=dict)
    starting: Sequence[StateNode] = ()
    leaving: Sequence[str] = ()
    daemons: DaemonOverhead = field(default_factory=DaemonOverhead)
    quotas: Mapping[str, Sequence[QuotaHeadroom]] = field(default_factory=dict)
    node_groups: NodeGroups = field(default_factory=NodeGroups)
    budgets: Sequence[CompiledPdb] = ()
    pods: PodDisruptionTable | None = None
    pending: Sequence[str] = ()
    nominated: frozenset[str] = frozenset()
    buffers: BufferPods = _NO_BUFFERS
    held_claims: HeldClaims = field(default_factory=HeldClaims)
    held: Mapping[ClusterKind, Mapping[ObjectKey, Any]] = field(default_factory=dict)
    problems: tuple[object, ...] = ()
    blocked: Mapping[str, int] = field(default_factory=dict)
    first_unreadable: Mapping[str, str] = field(default_factory=dict)  # blocked node to one such pod
    complete: bool = True


@dataclass(frozen=True)
class Snapshot:
    version: int
    room: Room
    facts: ClusterFacts = field(repr=False)
    devices: Mapping[str, Sequence[DeviceUse]] = field(default_factory=dict, repr=False)
    "Devices by node, with the holder of each share. Assumed allocations are not included."
    kept_pods: Mapping[ObjectKey, Pod] = field(default_factory=dict, repr=False)
    "Promises and other reservations of the cluster."
    waiting_pods: Mapping[ObjectKey, WaitingPod] = field(default_factory=dict, repr=False)

    # Nodes

    @cached_property
    def nodes(self) -> Sequence[StateNode]:
        """Nodes by row of the room. Without NODECLAIMS there are no claims to join, and no prices."""
        self._need(Aspect.NODECLAIMS)
        find = self.facts.joined.get
        return tuple(find(name) or StateNode(NodeFacts(name), None) for name in self.room.names)

    @property
    def claims_without_node(self) -> Sequence[StateNode]:
        """Claims without a node, by name."""
        self._need(Aspect.NODECLAIMS)
        return [self.facts.claims[name] for name in sorted(self.facts.claims)]

    @property
    def claims(self) -> Iterator[ClaimFacts]:
        """All claims, in no particular order."""
        self._need(Aspect.NODECLAIMS)
        for joined in (*self.facts.joined.values(), *self.facts.claims.values()):
            if joined.claim is not None:
                yield joined.claim

    @property
    def leaving(self) -> Sequence[str]:
        """Nodes that are being removed."""
        self._need(Aspect.NODECLAIMS)
        return self.facts.leaving

    def expected(self) -> list[ExpectedNode]:
        """Return capacity that is starting: claims without a node and uninitialized nodes, as they will be.

        A node that cannot be read is left out, because its room cannot be promised.
        """
        self._need(Aspect.NODECLAIMS)
        facts, coming = self.facts, []
        for joined in (*facts.claims.values(), *facts.starting):
            if not joined.is_leaving and joined.claim is not None and joined.claim.initialized_at is None:
                with suppress(Invalid):
                    coming.append(
                        expected_node(
                            joined, self.room, facts.daemons, facts.market.catalogue_of(joined.pool)
                        )
                    )
        return coming

    @property
    def blocked(self) -> Mapping[str, int]:
        """The nodes with unreadable pods, and their number."""
        return self.facts.blocked

    @property
    def complete(self) -> bool:
        """Whether the node of every pod is known; otherwise no node may be removed."""
        return self.facts.complete

    # Pools and offerings

    @property
    def pools(self) -> Mapping[str, CompiledPool]:
        self._need(Aspect.POOLS)
        return self.facts.pools

    @property
    def pool_objects(self) -> Mapping[str, NodePool]:
        self._need(Aspect.POOLS)
        return self.facts.pool_objects

    @property
    def broken_pools(self) -> Mapping[str, str]:
        """The pools that cannot be read, and why."""
        self._need(Aspect.POOLS)
        return self.facts.broken_pools

    @property
    def usage(self) -> Mapping[str, Resources]:
        """Usage by pool: what counts against its limits."""
        self._need(Aspect.NODECLAIMS)
        return self.facts.usage

    @property
    def offerings(self) -> Offerings:
        return self.facts.market.offerings

    @property
    def failures(self) -> LaunchFailures:
        self._need(Aspect.STOCK)
        return self.facts.failures

    def stock_outs(self, now: float) -> tuple[StockOut, ...]:
        """Return the offerings that are out of stock at present."""
        return self.failures.stock_outs(now)

    def deliverable_pools(self, now: float) -> Mapping[str, CompiledPool]:
        """Return the pools; those that fail to launch, or have unclear prices, are marked as not ready."""
        dry = [
            name
            for name in self.pools
            if name in self.broken_pools or self.failures.of_pool(name, now) is not None
        ]
        if not dry:
            return self.pools
        return {**self.pools, **{name: replace(self.pools[name], ready=False) for name in dry}}

    @property
    def daemons(self) -> Mapping[ObjectKey, PodShape]:
        return self.daemon_overhead.shapes

    @property
    def daemon_overhead(self) -> DaemonOverhead:
        self._need(Aspect.DAEMONS)
        return self.facts.daemons

    @property
    def node_groups(self) -> NodeGroups:
        self._need(Aspect.NODE_GROUPS)
        return self.facts.node_groups

    @property
    def region_is_missing(self) -> bool:
        """Whether there are pools and the region is unknown, so that their offerings are unknown."""
        return bool(self.pools) and not self.facts.market.known

    @property
    def catalogue(self) -> Catalogue:
        return self.facts.market.catalogue

    @property
    def market(self) -> Market:
        """The current market; it is shared, and only ever learns."""
        return self.facts.market

    # Pods

    @property
    def pods(self) -> PodDisruptionTable:
        """Pods on the rows of the room that really exist; see `without`."""
        self._need(Aspect.DISRUPTION)
        assert self.facts.pods is not None
        return self.facts.pods

    @property
    def budgets(self) -> Sequence[CompiledPdb]:
        self._need(Aspect.DISRUPTION | Aspect.BUDGETS)
        return self.facts.budgets

    @property
    def pending(self) -> Sequence[str]:
        """Keys of the pods that an autoscaler would make room for."""
        self._need(Aspect.DISRUPTION)
        return self.facts.pending

    @property
    def waiting(self) -> Mapping[ObjectKey, WaitingPod]:
        """Pods for which the scheduler found no node."""
        self._need(Aspect.WAITING)
        return self.waiting_pods

    @property
    def nominated(self) -> frozenset[str]:
        """Nodes that pending pods are nominated to."""
        self._need(Aspect.DISRUPTION)
        return self.facts.nominated

    @property
    def buffers(self) -> BufferPods:
        """Virtual pods of capacity buffers; they are pending in the room under these names."""
        self._need(Aspect.BUFFERS)
        return self.facts.buffers

    # Everything else

    def quotas(self, namespace: str) -> Sequence[QuotaHeadroom]:
        """What the ResourceQuotas of a namespace still admit."""
        self._need(Aspect.QUOTAS)
        return self.facts.quotas.get(namespace, ())

    def objects(self, kind: ClusterKind) -> Mapping[ObjectKey, Any]:
        """Objects of kinds that are stored and not interpreted: DRA, quotas, records, devices."""
        self._need(kind.aspects)
        return self.facts.held[kind]

    @property
    def problems(self) -> Sequence[str]:
        """Objects that cannot be read, and why."""
        return [str(problem) for problem in self.facts.problems]

    # Hypothetical snapshots

    def assume(self, workloads: Iterable[Sequence[PodGroup]], *, topology: bool = False) -> AssumedDeduction:
        return assume(self.room, workloads, topology=topology)

    def _need(self, aspect: Aspect) -> None:
        if not self.facts.aspects & aspect:
            raise NotWatched(aspect)
