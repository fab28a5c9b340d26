"""Executes moves through the API: reads the objects of a record, asks `step` for the next actions, and does
them.

The actuator reads the objects that a step depends on from the API server right before the step, not from a
watch. Capacity, budgets and scores come from a view and arrive as objections. Records and node marks are
written with the resourceVersion that was read, and deletions name the uid, so that a concurrent write fails
and the step is repeated.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from karpool.cluster.pods.unreadable_pods import place_of
from karpool.consolidation.execution.move_history import owner_of
from karpool.consolidation.execution.node_marks import ARRIVED, LEAVING, mark, marked_by, unmark
from karpool.consolidation.execution.record import (
    MovePhase,
    MoveRecord,
    PlaceholderRequest,
    PlanBound,
    from_object,
    selection,
    to_object,
)
from karpool.consolidation.execution.step import (
    Action,
    DeleteClaim,
    ExecutionSettings,
    MarkNode,
    MeasuredSavings,
    MoveObservation,
    RequestNodes,
    RunActions,
    StoreRecord,
    UnmarkNode,
    WaitUntil,
    WithdrawPlaceholder,
    launch_deadline,
    next_step,
)
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import SkippedObject
from karpool.kube.decision_id import decision_scope
from karpool.kube.errors import AlreadyExists, Conflict, Denied, KubeError, NotFound, Rejected
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes import pod_disruption
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    NAMESPACES,
    NODECLAIMS,
    NODES,
    PODS,
    ApiResource,
    ListOptions,
)
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import pod_cost
from karpool.model.requirements import ValueSet
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, RequestPurpose, unit
from karpool.provisioning.placeholders.placeholder import REQUEST, Placeholder
from karpool.provisioning.placeholders.smart_pod import TRIGGER_TYPE, placeholder_of, selector
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from karpool.provisioning.placeholders.writes import DeleteBackoff

log = structlog.get_logger(__name__)

_STEPS_MAX = 16  # steps of one record in a row; more would be a bug and must not delay the other records
T = TypeVar("T")
Changed = Callable[[MoveRecord | None, MoveRecord], None]


@dataclass(frozen=True)
class RecordContext:
    """What the view says about records, by record name. A missing name was not evaluated."""

    stop: Infeasible[ConsolidationReason] | None = None
    closed: Mapping[str, Infeasible[ConsolidationReason]] = field(default_factory=dict)  # pools
    objections: Mapping[str, tuple[Infeasible[ConsolidationReason], ...]] = field(default_factory=dict)
    cordoned: frozenset[str] = frozenset()  # nodes
    waits_for: Mapping[str, str] = field(default_factory=dict)  # the record of another move
    arrived_prices: Mapping[str, float | None] = field(default_factory=dict)
    measured: Mapping[str, MeasuredSavings] = field(default_factory=dict)


class MoveActuator:
    """`check` raises LeadershipLost if this process may no longer write. `redisturbed` counts the pods (by
    controller) that were disturbed shortly before. `changed` is called with every record written.
    """

    def __init__(
        self,
        client: Client,
        smart_pods: SmartPodBackend,
        settings: ExecutionSettings,
        *,
        namespace: str,
        check: Callable[[], None] = lambda: None,
        changed: Changed = lambda before, after: None,
        redisturbed: Callable[[Mapping[str, int]], int] = lambda owners: 0,
    ) -> None:
        self.settings = settings
        self.namespace = namespace
        self.unreadable: list[SkippedObject] = []
        self._client = client
        self._smart_pods = smart_pods
        self._check = check
        self._changed = changed
        self._redisturbed = redisturbed
        self._refusals: dict[
            str, Infeasible[ConsolidationReason]
        ] = {}  # by record: actions that the API server refused
        self._pace = DeleteBackoff()

    # Records

    async def prepare(self) -> None:
        """Create the namespace of records if it does not exist."""
        self._check()
        try:
            await self._client.get(NAMESPACES, self.namespace)
        except NotFound:
            with suppress(AlreadyExists):
                await self._client.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def records(self, *, active: bool = False) -> list[MoveRecord]:
        """List the records from the API server. Records that cannot be read are collected in `unreadable`."""
        page = await self._client.list(CONFIGMAPS, selection(self.namespace, active=active), into=ConfigMap)
        records, bad = [], []
        for config_map in page.items:
            try:
                records.append(from_object(config_map))
            except Invalid as error:
                bad.append(SkippedObject("ConfigMap", config_map.name, str(error)))
        self.unreadable = bad
        return sorted(records, key=lambda record: (record.created, record.name))

    async def begin(
        self,
        move: Move,
        wanted: Sequence[PlaceholderRequest],
        now: float,
        *,
        bound: PlanBound | None = None,
    ) -> MoveRecord | None:
        """Write the record of a new move. Return None if the move is already under way."""
        record = MoveRecord(move, MovePhase.WAITING, now, now, wanted=tuple(wanted), bound=bound)
        self._check()
        try:
            made = await self._client.create(CONFIGMAPS, to_object(record, self.namespace))
        except AlreadyExists:
            return await self._begin_again(record)
        stored = _with_version(record, made)
        self._changed(None, stored)
        return stored

    async def _begin_again(self, record: MoveRecord) -> MoveRecord | None:
        attempt = 1
        stored = await self._client.get(CONFIGMAPS, record.name, namespace=self.namespace, into=ConfigMap)
        try:
            before = from_object(stored)
            if not before.phase.is_over:
                return None
            attempt = before.attempt + 1
        except Invalid as error:
            log.warning("record restarted", record=record.name, reason=str(error))
        meta = stored.metadata
        again = replace(record, attempt=attempt, uid=meta.uid, version=meta.resource_version)
        return await self._store(None, again)

    async def _store(self, before: MoveRecord | None, after: MoveRecord) -> MoveRecord:
        self._check()
        made = await self._client.update(CONFIGMAPS, to_object(after, self.namespace))
        stored = _with_version(after, made)
        self._changed(before, stored)
        return stored

    async def forget(self, records: Iterable[MoveRecord]) -> None:
        for record in records:
            self._check()
            try:
                await self._client.delete(
                    CONFIGMAPS,
                    record.name,
                    namespace=self.namespace,
                    uid=record.uid,
                    resource_version=record.version,
                )
            except (NotFound, Conflict):
                continue

    # Moves

    async def advance(self, record: MoveRecord, seen: RecordContext) -> MoveRecord:
        """Advance the record as far as possible. An API error leaves it in its phase until the next pass."""
        with decision_scope(record.name):
            return await self._advance(record, seen)

    async def _advance(self, record: MoveRecord, seen: RecordContext) -> MoveRecord:
        try:
            for _ in range(_STEPS_MAX):
                world = await self._look(record, seen)
                following = next_step(record, world, self.settings, self._client.clock.now())
                match following:
                    case WaitUntil():
                        return record
                    case StoreRecord(record=after):
                        record = await self._store(record, after)
                        if record.phase.is_over:
                            self._refusals.pop(record.name, None)
                            return record
                    case RunActions(actions=actions):
                        if not await self._act(record, actions):
                            return record
            log.error("move did not finish its steps", record=record.name, phase=str(record.phase))
        except (Conflict, NotFound) as error:
            log.info("move validated", record=record.name, reason=str(error))
        except (Denied, Rejected) as error:
            self._refuse(record, f"the API server refused: {error}")
        return record

    def _refuse(self, record: MoveRecord, message: str) -> None:
        log.warning("move cannot continue", record=record.name, reason=message)
        self._refusals[record.name] = Infeasible(ConsolidationReason.REFUSED, message)

    async def _look(self, record: MoveRecord, seen: RecordContext) -> MoveObservation:
        placeholders = await self._placeholders(record)
        names = dict.fromkeys(
            (*record.nodes, *record.arrived, *(placeholder.node for placeholder in placeholders))
        )
        nodes = await asyncio.gather(*(self._get(NODES, name, Node) for name in names if name))
        claims = await asyncio.gather(
            *(self._get(NODECLAIMS, source_node.claim, NodeClaim) for source_node in record.move.nodes)
        )
        objections = seen.objections.get(record.name)
        owners: Mapping[str, int] = {}
        if record.phase in (MovePhase.CORDONING, MovePhase.DELETING) and objections == ():
            staying = {
                node.name for node in nodes if node is not None and not node.metadata.deletion_timestamp
            }
            objections, owners = await self._last_look(record, staying.intersection(record.going))
        return MoveObservation(
            waits_for=seen.waits_for.get(record.name, ""),
            nodes={node.name: node for node in nodes if node is not None},
            claims={claim.name: claim for claim in claims if claim is not None},
            placeholders=placeholders,
            stop=self._refusals.get(record.name) or seen.stop or _closed(record, seen),
            objections=objections,
            cordon_seen=seen.cordoned.issuperset(record.going),
            owners=owners,
            redisturbed=self._redisturbed(owners) if owners else 0,
            arrived_price=seen.arrived_prices.get(record.name),
            measured=seen.measured.get(record.name),
        )

    async def _get(self, resource: ApiResource, name: str, into: type[T]) -> T | None:
        try:
            return await self._client.get(resource, name, into=into)
        except NotFound:
            return None

    async def _last_look(
        self, record: MoveRecord, names: Iterable[str]
    ) -> tuple[tuple[Infeasible[ConsolidationReason], ...], Mapping[str, int]]:
        """Read the pods on the nodes from the API server: a watch may lag and miss one."""
        planned = {pod.pod for pod in record.move.pods}
        now = self._client.clock.now()
        owners: Counter[str] = Counter()
        why: list[Infeasible[ConsolidationReason]] = []
        for name in names:
            on_node = ListOptions(field_selector=f"spec.nodeName={name}")
            page = await self._client.list(PODS, on_node, into=Pod)
            why += (
                Infeasible(
                    ConsolidationReason.POD_UNREADABLE,
                    f"pod {bad.name} of node {name} is invalid: {bad.reason}",
                    f"pod {bad.name}",
                )
                for bad in page.bad
                if not place_of(bad.raw).is_terminal
            )
            for pod in page.items:
                key = pod.metadata.key
                if pod_disruption.is_active(pod) and pod_disruption.is_protected(
                    pod, pod_disruption.running_seconds(pod, now)
                ):
                    why.append(
                        Infeasible(
                            ConsolidationReason.POD_DO_NOT_DISRUPT,
                            f"pod {key} must not be disrupted",
                            f"pod {key}",
                        )
                    )
                elif not pod_disruption.is_reschedulable(pod):
                    continue
                elif key not in planned:
                    why.append(
                        Infeasible(
                            ConsolidationReason.NEW_POD, f"pod {key} was added to the node", f"pod {key}"
                        )
                    )
                elif pod_cost(pod) > 0:
                    owners[owner_of(pod)] += 1
        return tuple(why), owners

    # Placeholders

    async def _placeholders(self, record: MoveRecord) -> Sequence[Placeholder]:
        if not record.replaces:
            return ()
        await self._list_placeholders(
            f"{selector(RequestPurpose.REPLACEMENT)},{REQUEST}={record.name}", record.name
        )
        return self._smart_pods.placeholders_of(record.name)

    async def _list_placeholders(self, labels: str, request: str = "") -> None:
        """List the placeholders from the API server; the messages of autoscalers come by watch."""
        smart = self._smart_pods
        chosen = ListOptions(namespace=smart.settings.namespace, label_selector=labels)
        listed = (await self._client.list(PODS, chosen, into=Pod)).items
        standing = {
            placeholder.key: pod
            for pod in listed
            if (placeholder := placeholder_of(pod, smart.settings.namespace)) is not None
        }
        for former in smart.placeholders_of(request) if request else smart.placeholders():
            if former.key not in standing:
                smart.drop_pod(former.key)
        for key, pod in standing.items():
            smart.put_pod(key, pod)

    def _ask(self, record: MoveRecord) -> NodeRequest:
        move = record.move
        return NodeRequest(
            request=record.name,
            epoch=record.attempt,
            units=tuple(unit(request.resources) for request in record.wanted),
            candidates=tuple(_candidate(record, index) for index in range(len(record.wanted))),
            purpose=RequestPurpose.REPLACEMENT,
            pool=move.new_nodes[0].pool,
            about=f"replaces {', '.join(move.names)}",
            # Keep off nodes to remove, nodes launched for another move, and nodes with its placeholder.
            requirements={LEAVING: ValueSet(frozenset()), ARRIVED: ValueSet(frozenset())},
            avoid={TRIGGER_TYPE: RequestPurpose.REPLACEMENT.value},
            deadline=launch_deadline(record, self.settings),
        )

    # Acting

    async def _act(self, record: MoveRecord, actions: Iterable[Action]) -> bool:
        """Do the actions; return False if the record must wait for the next pass. Deletes one claim at a
        time, in order.
        """
        for action in actions:
            self._check()
            match action:
                case MarkNode(node=node, cordon=cordon):
                    leaving = node.name in record.nodes
                    patch = mark(node, record.name, cordon=cordon, leaving=leaving)
                    await self._client.patch(NODES, node.name, patch)
                case UnmarkNode(node=node):
                    await self._unmark(node)
                case RequestNodes(indices=indices):
                    await self._request(record, indices)
                case WithdrawPlaceholder(placeholder=placeholder):
                    if not await self._withdraw(placeholder):
                        return False
                case DeleteClaim(source=source):
                    await self._delete(source.claim, source.claim_uid)
        return True

    async def _unmark(self, node: Node) -> None:
        with suppress(NotFound):
            await self._client.patch(NODES, node.name, unmark(node))

    async def _delete(self, claim: str, uid: str) -> None:
        with suppress(NotFound):
            await self._client.delete(NODECLAIMS, claim, uid=uid)

    async def _request(self, record: MoveRecord, indices: Iterable[int]) -> None:
        ask = self._ask(record)
        for index in indices:
            self._check()
            try:
                answer = await self._smart_pods.request(ask, ask.candidates[index], [index])
            except Invalid as error:
                self._refuse(record, str(error))
                return
            if answer.refused:
                self._refuse(record, next(iter(answer.refused.values())).detail)
                return

    async def _withdraw(self, placeholder: Placeholder) -> bool:
        now = self._client.clock.now()
        if not self._pace.is_due(placeholder, now):
            return False
        self._pace.tried(placeholder, now)
        await self._smart_pods.withdraw(placeholder)
        return True

    # Leftovers

    async def sweep(self, marked: Mapping[str, str]) -> None:
        """Remove marks and placeholders without an active move: its record was deleted or cannot be read.

        `marked` (nodes and their records) may be stale, so nodes are read again.
        """
        await self._list_placeholders(selector(RequestPurpose.REPLACEMENT))
        # List records after the placeholders: a placeholder is only created after its record.
        active = {record.name for record in await self.records(active=True)}
        for placeholder in self._smart_pods.placeholders():
            if placeholder.request not in active and placeholder.purpose is RequestPurpose.REPLACEMENT:
                self._check()
                await self._withdraw(placeholder)
        for name in [name for name, record in marked.items() if record not in active]:
            node = await self._get(NODES, name, Node)
            if node is not None and marked_by(node) and marked_by(node) not in active:
                self._check()
                log.info("node annotation removed", node=name, record=marked_by(node))
                try:
                    await self._unmark(node)
                except KubeError as error:
                    log.warning("node annotation not removed", node=name, reason=str(error))


def _closed(record: MoveRecord, seen: RecordContext) -> Infeasible[ConsolidationReason] | None:
    return next((seen.closed[pool] for pool in record.move.pools if pool in seen.closed), None)


def _candidate(record: MoveRecord, index: int) -> NodeCandidate:
    node = record.move.new_nodes[index]
    return NodeCandidate(
        pools=(node.pool,),
        instance_types=record.wanted[index].types
        or tuple(dict.fromkeys(choice.instance_type for choice in node.options)),
        zones=record.wanted[index].zones,
        capacity_types=tuple(dict.fromkeys(c.capacity_type for c in node.options if c.capacity_type)),
        requirements=record.wanted[index].labels,
        tolerations=record.wanted[index].tolerations,
        apart=record.wanted[index].apart,
        price=node.chosen.price_per_hour,
    )


def _with_version(record: MoveRecord, made: Mapping[str, object]) -> MoveRecord:
    meta = made["metadata"]
    assert isinstance(meta, Mapping)
    return replace(record, uid=str(meta["uid"]), version=str(meta["resourceVersion"]))
