"""The NodeClaim Monitor: follows every claim from its creation to Ready, or to its end.

Informers feed it. Claims, nodes and pods are joined by their references: a node has the provider id of the
claim, a bound pod names its node. The end of a deleted claim is derived from its last state and from the
event that names it; events may arrive after the deletion, so the monitor waits a moment before it decides.
Stock-outs and failing pools go into `failures`, from the same objects and events that the estimator reads.
After a restart, deleted claims are known only by their events.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.cluster.market import claim_news
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.stock_outs import OUT_OF_STOCK, StockOutEvents
from karpool.kube.clock import Clock
from karpool.kube.expiring import EVENT_SECONDS, ExpiringMap
from karpool.kube.watched import WatchedKind
from karpool.model.karpenter.objects import NODEPOOL, NodeClaim
from karpool.model.kubernetes.api_resources import EVENTS, NODECLAIMS, NODES, ListOptions, ObjectKey
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.node import Node
from karpool.provisioning.candidates.attempts import STOCK_REST_SECONDS
from karpool.provisioning.claims.claim_progress import (
    ClaimProgress,
    ClaimStage,
    ending_of,
    progress_of,
)

PATIENCE_SECONDS = 10.0
_ENDED_MAX = 2000
_REFUSED_MAX = 5000

OnStage = Callable[[ClaimProgress], None]


@dataclass(frozen=True, slots=True)
class _StockOutNotice:
    at: float
    message: str
    uid: str


class ClaimMonitor:
    """Follows NodeClaims. `on_stage` callbacks run when a claim reaches another stage or is gone."""

    def __init__(self, clock: Clock, failures: LaunchFailures | None = None) -> None:
        self.failures = LaunchFailures(recovery_seconds=STOCK_REST_SECONDS) if failures is None else failures
        self.on_stage: list[OnStage] = []
        self._clock = clock
        self._stock = StockOutEvents(self.failures)
        self._live: dict[str, ClaimProgress] = {}
        self._ended = ExpiringMap[str, ClaimProgress](clock, EVENT_SECONDS, _ENDED_MAX)
        self._refusals = ExpiringMap[str, _StockOutNotice](clock, EVENT_SECONDS, _REFUSED_MAX)  # by claim
        self._claim_with: dict[str, str] = {}  # provider id to claim
        self._nodes: dict[str, tuple[str, str]] = {}  # name to provider id and to the owning claim
        self._node_with: dict[str, str] = {}  # provider id to node
        self._pools: set[str] = set()

    @cached_property
    def watches(self) -> Sequence[WatchedKind[Any]]:
        stock = ListOptions(field_selector=f"reason={OUT_OF_STOCK}")
        return (
            WatchedKind(NODECLAIMS, NodeClaim, PutDropSink(self.put_claim, self.drop_claim), optional=True),
            WatchedKind(NODES, Node, PutDropSink(self.put_node, self.drop_node)),
            WatchedKind(EVENTS, KubeEvent, PutDropSink(self.put_event, lambda key: None), stock),
        )

    # Reading

    def progress(self, claim: str) -> ClaimProgress | None:
        """Return the progress of a claim; None if it is unknown."""
        progress = self._live.get(claim) or self._ended.get(claim)
        if progress is not None:
            return self._judged(progress)
        refusal = self._refusals.get(claim)
        if refusal is None:
            return None
        ended = ClaimProgress(
            claim, refusal.uid, "", ClaimStage.FAILED, refusal.at, ended=refusal.at, gone=True
        )
        return replace(ended, ending=LaunchReason.STOCK_OUT, message=refusal.message)

    def claim_of(self, node: str) -> str:
        """Return the claim of a node; empty if it has none."""
        provider_id, owner = self._nodes.get(node, ("", ""))
        return (self._claim_with.get(provider_id, "") if provider_id else "") or owner

    def _judged(self, progress: ClaimProgress) -> ClaimProgress:
        if progress.ended is None:
            return progress
        refusal = self._refusals.get(progress.claim)
        over = self._clock.now() - progress.ended >= PATIENCE_SECONDS
        ending = ending_of(progress, refusal is not None, over)
        message = (
            refusal.message if refusal is not None and ending is LaunchReason.STOCK_OUT else progress.message
        )
        return replace(progress, ending=ending, message=message)

    # Updates

    def pools_seen(self, names: Collection[str]) -> None:
        """Add pool names, so that an event about an unknown claim can be assigned to a pool."""
        self._pools.update(names)
        self._stock.understand(self._clock.now(), self._pools)

    def put_claim(self, key: ObjectKey, claim: NodeClaim) -> None:
        now = self._clock.now()
        before = self._live.get(claim.name)
        progress = progress_of(claim, now)
        if before is not None and before.uid == progress.uid and before.ended is not None:
            progress = replace(progress, ended=before.ended)  # a time that could not be read must not move
        if before is not None and before.provider_id != progress.provider_id:
            self._claim_with.pop(before.provider_id, None)
        if progress.provider_id:
            self._claim_with[progress.provider_id] = claim.name
            progress = replace(progress, node=progress.node or self._node_with.get(progress.provider_id, ""))
        self._live[claim.name] = progress
        self._ended.pop(claim.name)
        if claim.pool_name:
            self._pools.add(claim.pool_name)
        if not claim.is_registered:
            self._stock.remember(claim, now)
        claim_news.observe(claim, self.failures, progress.created, now)
        if progress.ended is not None and (before is None or before.ended is None):
            self._given_up(progress)
        self._stock.understand(now, self._pools)
        if before is None or before.stage is not progress.stage:
            self._tell(progress)

    def drop_claim(self, key: ObjectKey) -> None:
        progress = self._live.pop(key.name, None)
        if progress is None:
            return
        if self._claim_with.get(progress.provider_id) == key.name:
            del self._claim_with[progress.provider_id]
        if progress.ended is None:
            progress = replace(progress, ended=self._clock.now())
            self._given_up(progress)
        had_node = progress.registered is not None or bool(progress.node)
        progress = replace(progress, gone=True, stage=progress.stage if had_node else ClaimStage.FAILED)
        self._ended.put(key.name, progress)
        self._tell(progress)

    def _given_up(self, progress: ClaimProgress) -> None:
        if progress.registered is None:
            claim_news.given_up(
                progress.claim,
                progress.pool,
                created=progress.created,
                launched=progress.launched is not None,
                failures=self.failures,
                now=progress.created if progress.ended is None else progress.ended,
            )

    def put_node(self, key: ObjectKey, node: Node) -> None:
        owners = node.metadata.owner_references or ()
        owner = next((reference.name for reference in owners if reference.kind == "NodeClaim"), "")
        provider_id = node.spec.provider_id
        if not owner and not provider_id and NODEPOOL not in node.labels:
            return
        self.drop_node(key)
        self._nodes[node.name] = provider_id, owner
        if provider_id:
            self._node_with[provider_id] = node.name
        claim = self._live.get(self.claim_of(node.name))
        if claim is not None and not claim.node:
            self._live[claim.claim] = replace(claim, node=node.name)

    def drop_node(self, key: ObjectKey) -> None:
        provider_id, _ = self._nodes.pop(key.name, ("", ""))
        if provider_id and self._node_with.get(provider_id) == key.name:
            del self._node_with[provider_id]

    def put_event(self, key: ObjectKey, event: KubeEvent) -> None:
        about = event.involved_object
        if event.reason != OUT_OF_STOCK or about.kind != "NodeClaim":
            return
        now = self._clock.now()
        at = now if event.at is None else event.at
        self._refusals.put(about.name, _StockOutNotice(at, event.message, about.uid))
        self._stock.put(key, event)
        self._stock.understand(now, self._pools)

    def tick(self) -> None:
        """Process events that waited too long for their claim."""
        self._stock.understand(self._clock.now(), self._pools)

    def _tell(self, progress: ClaimProgress) -> None:
        for tell in self.on_stage:
            tell(self._judged(progress))
