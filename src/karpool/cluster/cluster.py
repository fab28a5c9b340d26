"""The state of one cluster, kept current by changes of its objects.

It belongs to one event loop, and has no clock and no client: the caller passes the time. Objects may arrive
in any order. An object that cannot be read is listed in `problems`; its effect is defined in `kinds`.
Snapshots may be read in any thread.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from karpool.cluster import kinds, object_readers
from karpool.cluster.aspects import Aspect, NotWatched
from karpool.cluster.changes import (
    DELETED,
    UNREADABLE,
    ObjectChange,
    change_of_raw,
    flattened,
    identity,
    is_selected,
)
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.expected_rows import ExpectedRows
from karpool.cluster.held_objects import HeldObjects
from karpool.cluster.kinds import ClusterKind, kinds_of
from karpool.cluster.market import claim_news
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.cluster.market.stock_outs import StockOutEvents
from karpool.cluster.nodes.expected import DaemonOverhead
from karpool.cluster.nodes.node_facts import ClaimFacts, node_facts
from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.nodes.state_node_store import StateNodeStore
from karpool.cluster.object_readers import ObjectReader
from karpool.cluster.pods.budget_store import BudgetStore, QuotaStore
from karpool.cluster.pods.buffer_store import BufferStore
from karpool.cluster.pods.disruption_store import PodDisruptionStore
from karpool.cluster.pods.kept_pods import KeptPods
from karpool.cluster.pods.owner_store import OwnerStore, PodsByOwner, Requests
from karpool.cluster.pods.waiting_store import WaitingPodStore
from karpool.cluster.pools.node_group_store import NodeGroupStore
from karpool.cluster.pools.pool_store import PoolStore
from karpool.cluster.problems import UnreadableObject, UnreadableObjects
from karpool.cluster.reservations import reserved_by
from karpool.cluster.snapshot import ClusterFacts, Snapshot
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import OwnerReference
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb
from karpool.packing.tables.room import Room

LeftOut = Callable[[ObjectKey, Pod], bool]


class Cluster:
    """The state of one cluster.

    `left_out` selects pods to ignore, because the caller counts them in another way. `keeps` selects pods to
    keep whole, for callers that decide about each pod (`Snapshot.kept_pods`).

    `expected`: the rows of the room are nodes as they will be after their start, including machines without a
    node, as Karpenter plans. `shares=False` is for imitating a component that does not know shares of
    devices.
    """

    def __init__(
        self,
        aspects: Aspect,
        *,
        market: Market | None = None,
        failures: LaunchFailures | None = None,
        group_failures: LaunchFailures | None = None,
        left_out: LeftOut | None = None,
        keeps: Callable[[Pod], bool] | None = None,
        expected: bool = False,
        shares: bool = True,
    ) -> None:
        self.aspects = aspects | Aspect.ROOM
        self.kinds: Sequence[ClusterKind] = kinds_of(self.aspects)
        self.market = market if market is not None else Market()
        self.failures = failures if failures is not None else LaunchFailures()
        self.group_failures = group_failures if group_failures is not None else LaunchFailures()
        self.room = ClusterRoom(volumes=Aspect.VOLUMES in aspects, devices=shares, dra=Aspect.DRA in aspects)
        self.problems: UnreadableObjects = self.room.problems
        self.listeners: list[Callable[[ClusterKind], None]] = []  # called after objects of a kind changed
        self.changes = 0  # number of changes, including those without effect
        self._left_out = left_out
        self._keeps = keeps
        self._kept = KeptPods()
        self._nodes = StateNodeStore(self.market, self.problems)
        self._pools = PoolStore(self.market, self.failures)
        self._pods = PodDisruptionStore()
        self._waiting = WaitingPodStore()
        self.owners = OwnerStore()
        self._owned_pods = PodsByOwner(self.room.shape_of, self.owners.get)
        self._groups = NodeGroupStore(self.group_failures)
        self._quotas = QuotaStore(self.problems)
        self._daemons = DaemonOverhead()
        self._known_daemons = DaemonOverhead()  # as shown in snapshots
        self._expected = ExpectedRows(self.room, self._daemons) if expected else None
        if self._expected is not None:
            self._nodes.listeners.append(self._expected.change)
        self._budgets = BudgetStore(self.problems)
        self._stock = StockOutEvents(self.failures)
        self._created: dict[str, float] = {}  # claims without a creation time
        self._held = HeldObjects()
        self._buffers = BufferStore()
        self._buffer_pods = self._buffers.pods()  # those in the room
        # Cached, because they are checked for every object and a Flag is slow.
        self._joins_claims = Aspect.NODECLAIMS in aspects
        self._sees_groups = Aspect.NODE_GROUPS in aspects
        self._sees_stock = Aspect.STOCK in aspects
        self._sees_waiting = Aspect.WAITING in aspects
        self._sees_owners = Aspect.OWNERS in aspects
        self._sees_disruption = Aspect.DISRUPTION in aspects
        # Kinds whose changes the room counts, or that no snapshot shows; with DISRUPTION each pod is shown.
        self._counted_elsewhere = {
            kind
            for kind in self.kinds
            if kind.aspects & (Aspect.ROOM | Aspect.OWNERS)
            and not (kind == kinds.PODS and self._sees_disruption)
        }
        self._readers = {kind: self._reader(kind) for kind in self.kinds}
        self._latest: Snapshot | None = None
        self._latest_facts: tuple[object, ClusterFacts] | None = None
        self._other_changes = 0  # changes that room, nodes and pools do not count themselves

    # Reading

    @property
    def version(self) -> int:
        """Increases with every change that a snapshot shows."""
        stores = self._nodes.version + self._pools.version + self._groups.version
        return self.room.version + stores + self._kept.version + self._other_changes

    def snapshot(self, now: float | None = None) -> Snapshot:
        """Return the current state; the same object until something changes.

        With `now`, events that wait for their claim are processed first, and contract periods start and end.
        """
        if now is not None:
            self.market.contracted.see_time(now)
        if now is not None and Aspect.STOCK in self.aspects:
            self._stock.understand(now, self._pools.compiled())
        self._put_buffer_pods()
        room = self.room.snapshot()
        joined, claims = self._nodes.view()
        version, waiting, latest = self.version, self._waiting.view(), self._latest
        if (
            latest is None
            or latest.room is not room
            or latest.version != version
            or latest.waiting_pods is not waiting
        ):
            facts = self._known(room, joined, claims)
            latest = Snapshot(version, room, facts, self.room.devices, self.kept_pods, waiting)
            self._latest = latest
        return latest

    def _put_buffer_pods(self) -> None:
        """Add the pods of capacity buffers to the room as pending pods."""
        before, pods = self._buffer_pods, self._buffers.pods()
        if pods is before:
            return
        for key in before.shapes.keys() - pods.shapes.keys():
            self.room.remove_pod("", key)
        for key, shape in pods.shapes.items():
            if before.shapes.get(key) != shape:
                self.room.put_pod(key, shape)
        self._buffer_pods = pods

    def _known(
        self, room: Room, joined: Mapping[str, StateNode], claims: Mapping[str, StateNode]
    ) -> ClusterFacts:
        """Return the facts; they are reused while only pods change, unless DISRUPTION shows each pod."""
        stores = self._nodes.version, self._pools.version, self._groups.version
        key = stores, self._other_changes, self.market.version
        if Aspect.DISRUPTION in self.aspects or self._latest_facts is None or self._latest_facts[0] != key:
            self._latest_facts = key, self._facts(room, joined, claims)
        return self._latest_facts[1]

    def unreadable(self, kind: ClusterKind) -> int:
        """Return how many objects of a kind exist and cannot be read."""
        if kind == kinds.PODS:
            return self.room.unreadable_pods  # the list of problems is bounded, this count is not
        return sum(problem.kind == kind.resource.kind for problem in self.problems)

    @property
    def kept_pods(self) -> Mapping[ObjectKey, Pod]:
        """The kept pods, without the cost of a snapshot; so is `held`."""
        return self._kept.view()

    def held(self, kind: ClusterKind) -> Mapping[ObjectKey, Any]:
        return self._held.of(kind)

    @property
    def nodes(self) -> StateNodeStore:
        """The current nodes, joined with their claims; the store also has the listeners for changes."""
        self._require(Aspect.NODECLAIMS)
        return self._nodes

    def budgets(self, namespace: str) -> Iterable[CompiledPdb]:
        """Return the current budgets of a namespace."""
        if not kinds.BUDGETS.aspects & self.aspects:
            raise NotWatched(Aspect.BUDGETS)
        return self._budgets.of(namespace)

    def claim(self, name: str) -> ClaimFacts | None:
        return self._nodes.claims.get(name)

    def replicas_of(
        self, namespace: str, api_version: str, kind: str, name: str
    ) -> tuple[Counter[Requests], int]:
        """Return the pods of a workload: those on nodes by their requests, and the number of pending ones."""
        self._require(Aspect.OWNERS)
        return self._owned_pods.of(namespace, api_version, kind, name)

    def workloads(self) -> Iterator[tuple[str, OwnerReference]]:
        """Yield the workloads that own pods, with their namespace, as far as the owners are known."""
        self._require(Aspect.OWNERS)
        return self._owned_pods.workloads()

    def wanting_of(self, namespace: str, api_version: str, kind: str, name: str) -> Counter[Requests]:
        """Return by requests the pods of a workload that an autoscaler should make room for."""
        self._require(Aspect.OWNERS)
        return self._owned_pods.wanting(namespace, api_version, kind, name)

    def _require(self, aspect: Aspect) -> None:
        if aspect not in self.aspects:
            raise NotWatched(aspect)

    # Feeding

    def apply(self, kind: ClusterKind, changes: Sequence[ObjectChange[Any]], now: float) -> None:
        reader = self._readers.get(kind)
        if reader is None:
            raise NotWatched(kind.aspects)
        problems = len(self.problems)
        for change in changes:
            if change.type == DELETED:
                reader.drop(change.key, now)
            elif change.type == UNREADABLE:
                reader.unreadable(change.key, change.raw, Invalid("", "", change.reason), now)
            elif change.object is not None:
                reader.put(change.key, change.object, now)
        self.changes += len(changes)
        if len(self.problems) != problems or kind not in self._counted_elsewhere:
            self._other_changes += 1
        for node in self.room.take_blocked_changes():
            self._other_changes += 1
            self._nodes.block(node, self.room.blocked.get(node, 0))
        for listener in self.listeners:
            listener(kind)

    def load(self, objects: Iterable[Any], now: float) -> list[UnreadableObject]:
        """Load raw objects of any kind, including lists; return the objects that could not be read.

        Objects of kinds that are not watched are ignored.
        """
        before = {id(problem) for problem in self.problems}
        by_name: dict[tuple[str, str], list[ClusterKind]] = {}
        for kind in self.kinds:
            by_name.setdefault((kind.resource.kind, kind.resource.group), []).append(kind)
        for position, raw in enumerate(flattened(objects)):
            name, key = identity(raw)
            if not name:
                who = str(key) or f"number {position + 1}"
                self.problems.add("object", who, Invalid("kind", raw, "is missing"))
                continue
            version = str(raw.get("apiVersion", ""))
            group = version.rpartition("/")[0]
            for kind in by_name.get((name, group), ()) or (
                by_name.get((name, ""), ()) if not version else ()
            ):
                if is_selected(raw, key, kind.selection):
                    self.apply(kind, (change_of_raw(raw, key, kind.struct),), now)
        self._nodes.settle()  # objects that contradict each other are problems, too
        return [problem for problem in self.problems if id(problem) not in before]

    # Readers

    def _reader(self, kind: ClusterKind) -> ObjectReader:
        noted = object_readers.noted_problem(self.problems, kind)
        match kind:
            case kinds.NODES:
                return ObjectReader(self._put_node, self._drop_node, noted)
            case kinds.PODS:
                return ObjectReader(self._put_pod, self._drop_pod, self._hold_pod)
            case kinds.NODECLAIMS:
                return ObjectReader(self._put_claim, self._drop_claim, noted)
            case kinds.NODEPOOLS:
                return object_readers.of_pools(self._pools)
            case _ if kind in kinds.NODE_CLASS_KINDS:
                return object_readers.of_node_classes(self._pools, kind, noted)
            case kinds.DAEMONSETS:
                return object_readers.of_daemon_sets(self._daemons, self.problems, self._daemons_changed)
            case kinds.BUDGETS:
                return object_readers.of_budgets(self._budgets)
            case kinds.STOCK_EVENTS:
                return ObjectReader(
                    lambda key, event, now: self._stock.put(key, event), lambda key, now: None, noted
                )
            case kinds.NODE_GROUP_STATUS:
                return object_readers.of_node_groups(self._groups, noted)
            case kinds.RESOURCE_QUOTAS:
                return object_readers.of_quotas(self._quotas, noted)
            case _ if kind in kinds.OWNED_KINDS:
                return object_readers.of_owners(self.owners, kind, noted)
            case kinds.NAMESPACES:
                return object_readers.of_namespaces(self.room, noted)
            case kinds.CLAIMS:
                return object_readers.of_volume_claims(self.room.volumes, noted)
            case kinds.VOLUMES:
                return object_readers.of_volumes(self.room.volumes, noted)
            case kinds.STORAGE_CLASSES:
                return object_readers.of_storage_classes(self.room.volumes, noted)
            case kinds.CSI_NODES:
                return object_readers.of_csi_nodes(self.room.attach_limits)
            case kinds.VOLUME_ATTACHMENTS:
                return object_readers.of_attachments(self.room.attach_limits)
            case kinds.SCALE_UPS:
                return object_readers.and_then(self._holder(kind), self._reserve_nodes)
            case kinds.CAPACITY_BUFFERS | kinds.CAPACITY_BUFFERS_BETA:
                return object_readers.of_buffers(self._buffers, kind)
            case kinds.POD_TEMPLATES | kinds.DEPLOYMENTS | kinds.REPLICA_SETS | kinds.STATEFUL_SETS:
                return object_readers.of_templates(self._buffers, kind, noted)
            case kinds.NODE_OVERLAYS:
                return object_readers.of_overlays(self.market.overlays)
            case (
                kinds.RESOURCE_SLICES
                | kinds.RESOURCE_CLAIMS
                | kinds.CLAIM_TEMPLATES
                | kinds.DEVICE_CLASSES
                | kinds.DEVICE_TAINT_RULES
            ):
                return object_readers.of_drivers(self.room, kind)
            case kinds.GPU_RESOURCE_QUOTAS:
                return object_readers.unreadable_as_none(self._holder(kind))
            case kinds.GPUS:
                return object_readers.both_readers(object_readers.of_devices(self.room), self._holder(kind))
        return self._holder(kind)

    def _holder(self, kind: ClusterKind) -> ObjectReader:
        return object_readers.holder(self._held, self.problems, kind)

    def _reserve_nodes(self) -> None:
        self._nodes.reserve(*reserved_by(self._held.of(kinds.SCALE_UPS).values()))

    # Nodes and claims

    def _put_node(self, key: ObjectKey, node: Node, now: float) -> None:
        if self._expected is None:
            self.room.upsert_node(node)
        if self._joins_claims or self._sees_groups:
            self.market.learn(node)
        if self._joins_claims or (self._sees_groups and self.market.contracted):  # all are on the bill
            self._nodes.put_node(node)
        if self._sees_groups:
            self._groups.put_node(node_facts(node))

    def _drop_node(self, key: ObjectKey, now: float) -> None:
        if self._expected is None:
            self.room.remove_node(key.name)
        self._nodes.drop_node(key.name)
        self._groups.drop_node(key.name)

    def _put_claim(self, key: ObjectKey, claim: NodeClaim, now: float) -> None:
        self.problems.clear("NodeClaim", str(key))
        before = self._nodes.claims.get(claim.name)
        if claim.provider_id:
            self.market.learn(claim)
        self._nodes.put_claim(claim)
        if not self._sees_stock:
            return
        if not claim.is_registered:
            self._stock.remember(claim, now)
        created = self._nodes.claims[claim.name].created
        since = self._created.setdefault(claim.name, now) if created is None else created
        claim_news.observe(claim, self.failures, since, now)
        if claim.is_deleting and before is not None and not before.is_deleting:
            self._given_up(before, claim, now)

    def _drop_claim(self, key: ObjectKey, now: float) -> None:
        self.problems.clear("NodeClaim", str(key))
        claim = self._nodes.claims.get(key.name)
        self._nodes.drop_claim(key.name)
        if claim is not None and self._sees_stock:
            self._given_up(claim, claim, now)
        self._created.pop(key.name, None)

    def _given_up(self, before: ClaimFacts, claim: NodeClaim | ClaimFacts, now: float) -> None:
        if not before.is_deleting and not before.is_registered:
            claim_news.given_up(
                claim.name,
                before.pool,
                created=self._created.get(claim.name, now) if before.created is None else before.created,
                launched=claim.is_launched,
                failures=self.failures,
                now=now,
            )

    # Pods

    def _put_pod(self, key: ObjectKey, pod: Pod, now: float) -> None:
        if self._left_out is not None and self._left_out(key, pod):
            self._drop_pod(key, now)
            return
        self.room.upsert_pod(pod)
        if self._keeps is not None:
            if self._keeps(pod) and not pod.is_terminal:
                self._kept.put(key, pod)
            else:
                self._kept.drop(key)
        if self._sees_waiting:
            self._waiting.put(key, pod, now)
        if self._sees_owners:
            self._owned_pods.put(key, pod)
        if self._sees_disruption:
            self._pods.put(key, pod)
        if self._expected is not None:
            self._expected.put_pod(str(key), pod)

    def _drop_pod(self, key: ObjectKey, now: float) -> None:
        self.room.remove_pod(key.namespace, key.name)
        self._kept.drop(key)
        self._waiting.drop(key)
        self._owned_pods.drop(key)
        self._pods.drop(key)
        if self._expected is not None:
            self._expected.drop_pod(str(key))

    def _hold_pod(self, key: ObjectKey, raw: bytes, error: Invalid, now: float) -> None:
        self.room.hold_pod(key, raw, error)

    def _daemons_changed(self) -> None:
        self._known_daemons = DaemonOverhead(self._daemons.shapes)
        if self._expected is not None:
            self._expected.change_daemons()

    # Facts

    def _facts(
        self, room: Room, joined: Mapping[str, StateNode], claims: Mapping[str, StateNode]
    ) -> ClusterFacts:
        budgets = self._budgets.all()
        disruption = Aspect.DISRUPTION in self.aspects
        pools = self._pools.compiled()
        unclear = self.market.unclear_pools()
        return ClusterFacts(
            aspects=self.aspects,
            joined=joined,
            claims=claims,
            market=self.market,
            failures=self.failures,
            pools=pools,
            pool_objects=self._pools.objects,
            broken_pools={**self._pools.broken, **unclear},
            usage=self._nodes.usage(),
            starting=self._nodes.starting(),
            leaving=self._nodes.leaving(),
            daemons=self._known_daemons,
            quotas=self._quotas.by_namespace(),
            node_groups=self._groups.view(),
            budgets=budgets,
            pods=self._pods.table(room, budgets) if disruption else None,
            pending=self._pods.pending(room) if disruption else (),
            nominated=self._pods.nominated() if disruption else frozenset(),
            buffers=self._buffer_pods,
            held_claims=self.room.held_claims(),
            held=self._held.view(),
            problems=(
                *self.problems,
                *(f"NodePool {name}: {why}" for name, why in {**self._pools.broken, **unclear}.items()),
                *self._pods.problems(),
                *self._buffer_pods.problems,
                *(buffer.problem for buffer in self._buffer_pods.unclear),
            ),
            blocked=MappingProxyType(dict(self.room.blocked)),
            first_unreadable=self.room.first_unreadable,
            complete=self.room.complete,
        )
