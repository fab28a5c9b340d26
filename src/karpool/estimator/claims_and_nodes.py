"""Karpenter's claims and their nodes: what each pool uses, and what is still coming up.

Large clusters have thousands of claims that are simply there; of those only what counts
against limits is kept. What claims say about failures is passed on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import structlog

from karpool.cluster.market import claim_news
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.cluster.market.stock_outs import StockOutEvents, listed_values
from karpool.cluster.nodes.expected import counted_capacity
from karpool.cluster.nodes.node_facts import facts_of
from karpool.kube.clock import Clock
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import INITIALIZED, NODEPOOL, UNREGISTERED, NodeClaim, requested
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import INSTANCE_TYPE, Node
from karpool.model.kubernetes.times import moment
from karpool.model.resources import NODES as NODE_COUNT
from karpool.model.resources import Resources, add

log = structlog.get_logger(__name__)

_SAME_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ClaimEntry:
    """`claim` is kept until its node is initialised, and again while it is going."""

    pool: str
    provider_id: str
    going: bool
    registered: bool
    launched: bool
    created: float
    capacity: Resources  # what it takes from limits while no node says better
    claim: NodeClaim | None


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node of some pool, or of some claim. `node` is kept while it is not initialised."""

    provider_id: str
    pool: str
    going: bool
    capacity: Resources | None  # None: not initialised, the claim's counts
    node: Node | None


class NodeClaimStore:
    """`version` rises with every change."""

    def __init__(
        self, market: Market, failures: LaunchFailures, events: StockOutEvents, clock: Clock
    ) -> None:
        self.version = 0
        self.market = market
        self.failures = failures
        self.claims: dict[str, ClaimEntry] = {}
        self.nodes: dict[str, NodeEntry] = {}
        self._events = events
        self._clock = clock
        self._node_of: dict[str, str] = {}  # provider id to node
        self._claim_of: dict[str, str] = {}
        self._unsettled: dict[str, None] = {}  # claims without a finished node, or going
        self._going: dict[str, None] = {}  # nodes
        self._usage: dict[str, Resources] = {}
        self._counted: dict[str, tuple[str, Resources]] = {}
        self._same: dict[frozenset[tuple[str, int]], Resources] = {}

    # Reading

    def usage(self) -> Mapping[str, Resources]:
        """By pool: capacity of nodes and claims that are not going; `nodes` counts them."""
        return self._usage

    @property
    def is_moving(self) -> bool:
        """Whether any node is coming or going."""
        return bool(self._unsettled or self._going)

    def coming(self) -> Iterator[tuple[NodeClaim, Node | None]]:
        """Claims whose node is not there yet, or not ready for use."""
        for claim in self._unsettled:
            fact = self.claims[claim]
            if fact.claim is None or fact.going:
                continue
            name = self._node_of.get(fact.provider_id) if fact.provider_id else None
            node = self.nodes.get(name) if name is not None else None
            if node is None:
                yield fact.claim, None
            elif node.node is not None and not node.going:
                yield fact.claim, node.node

    def going(self) -> list[str]:
        """Nodes that are on their way out."""
        found = list(self._going)
        leaving = (fact.provider_id for fact in map(self.claims.__getitem__, self._unsettled) if fact.going)
        found += (name for name in map(self._node_of.get, leaving) if name is not None)
        return list(dict.fromkeys(found))

    # Hearing

    def put_claim(self, key: ObjectKey, claim: NodeClaim) -> None:
        self.version += 1
        name = claim.name
        before = self.claims.get(name)
        if before is not None and before.provider_id != claim.provider_id:
            self._claim_of.pop(before.provider_id, None)
        if claim.provider_id:
            self._claim_of[claim.provider_id] = name
            self.market.learn(claim)
        created = moment(claim.metadata.creation_timestamp)
        settled = claim.is_initialized and not claim.is_deleting
        amounts = self._capacity(claim, None) if claim.provider_id else self.unlaunched(claim)[1]
        fact = ClaimEntry(
            claim.pool_name,
            claim.provider_id,
            claim.is_deleting,
            claim.is_registered,
            claim.is_launched,
            created if created is not None else self._clock.now(),
            self._shared(amounts),
            None if settled else claim,
        )
        self.claims[name] = fact
        _mark(self._unsettled, name, fact.claim is not None)
        if not claim.is_registered:
            self._events.remember(claim, self._clock.now())
        self._observe(claim, fact, before)
        self._count_claim(name)
        for claim_entry in (before, fact):
            self._count_node_with(claim_entry.provider_id if claim_entry is not None else "")

    def drop_claim(self, key: ObjectKey) -> None:
        fact = self.claims.pop(key.name, None)
        if fact is None:
            return
        self.version += 1
        if self._claim_of.get(fact.provider_id) == key.name:
            del self._claim_of[fact.provider_id]
        self._unsettled.pop(key.name, None)
        self._given_up(key.name, fact, fact)
        self._count_claim(key.name)
        self._count_node_with(fact.provider_id)

    def _observe(self, claim: NodeClaim, fact: ClaimEntry, before: ClaimEntry | None) -> None:
        """What a claim says about its pool."""
        claim_news.observe(claim, self.failures, fact.created, self._clock.now())
        if fact.going and before is not None and not before.going:
            self._given_up(claim.name, before, fact)

    def _given_up(self, name: str, before: ClaimEntry, now: ClaimEntry) -> None:
        if not before.going and not before.registered:
            claim_news.given_up(
                name,
                before.pool,
                created=before.created,
                launched=now.launched,
                failures=self.failures,
                now=self._clock.now(),
            )

    def put_node(self, key: ObjectKey, node: Node) -> None:
        self.market.learn(node)
        provider_id = node.spec.provider_id
        pool = node.labels.get(NODEPOOL, "")
        before = self.nodes.get(node.name)
        initialized = node.labels.get(INITIALIZED) == "true"
        starting = not initialized and (bool(pool) or UNREGISTERED in (node.spec.taints or ()))
        fact = NodeEntry(
            provider_id,
            pool,
            node.metadata.deletion_timestamp is not None,
            self._shared(self._capacity(None, node)) if initialized and pool else None,
            node if starting else None,
        )
        if fact == before:
            return
        self.version += 1
        self.nodes[node.name] = fact
        _mark(self._going, node.name, fact.going)
        if before is not None and before.provider_id != provider_id:
            self._unlink(node.name, before.provider_id)
        if provider_id:
            self._node_of[provider_id] = node.name
        self._count_node(node.name)
        self._count_claim(self._claim_of.get(provider_id, ""))

    def drop_node(self, key: ObjectKey) -> None:
        fact = self.nodes.pop(key.name, None)
        if fact is None:
            return
        self.version += 1
        self._going.pop(key.name, None)
        self._unlink(key.name, fact.provider_id)
        self._count_node(key.name)

    def _unlink(self, node: str, provider_id: str) -> None:
        if self._node_of.get(provider_id) == node:
            del self._node_of[provider_id]
        self._count_claim(self._claim_of.get(provider_id, ""))

    # Usage

    def _count_claim(self, name: str) -> None:
        """With what its node shows, once that is initialised."""
        claim = self.claims.get(name)
        if claim is None:
            self._count(f"c/{name}", "", {})
            return
        node = self.nodes.get(self._node_of.get(claim.provider_id, ""))
        if claim.going or (node is not None and node.going):
            self._count(f"c/{name}", "", {})
            return
        shown = node.capacity if node is not None else None
        self._count(f"c/{name}", claim.pool, claim.capacity if shown is None else shown)

    def _count_node(self, name: str) -> None:
        """A node of a pool whose claim is not known still counts."""
        fact = self.nodes.get(name)
        if fact is None or fact.going or fact.capacity is None or fact.provider_id in self._claim_of:
            self._count(f"n/{name}", "", {})
        else:
            self._count(f"n/{name}", fact.pool, fact.capacity)

    def _count_node_with(self, provider_id: str) -> None:
        if provider_id in self._node_of:
            self._count_node(self._node_of[provider_id])

    def _shared(self, amounts: Resources) -> Resources:
        """With the node itself; one object for all machines that are the same."""
        whole = {**amounts, NODE_COUNT: 1}
        key = frozenset(whole.items())
        if len(self._same) > _SAME_MAX:
            self._same.clear()
        return self._same.setdefault(key, whole)

    def unlaunched(self, claim: NodeClaim) -> tuple[Resources, Resources]:
        """What a claim that has no machine yet will hold at least, and take from limits at most."""
        names = listed_values(claim.spec, INSTANCE_TYPE)
        types = [self.market.catalogue.types[each] for each in names if each in self.market.catalogue.types]
        try:
            least = most = requested(claim.spec)
        except Invalid:
            least = most = {}
        if types:
            keys = {name for each in types for name in each.allocatable}
            least = {name: min(each.allocatable.get(name, 0) for each in types) for name in keys}
            keys = {name for each in types for name in each.capacity}
            most = {
                name: max(instance_type.capacity.get(name, 0) for instance_type in types) for name in keys
            }
        return least, most

    @staticmethod
    def _capacity(claim: NodeClaim | None, node: Node | None) -> Resources:
        try:
            return counted_capacity(*facts_of(claim, node))
        except Invalid as error:
            log.info("capacity not understood", object=(node or claim), reason=str(error))
            return {}

    def _count(self, key: str, pool: str, amounts: Resources) -> None:
        before = self._counted.get(key)
        if before == (pool, amounts) or (before is None and not pool):
            return
        if before is not None:
            add(self._usage[before[0]], {name: -units for name, units in before[1].items()})
            del self._counted[key]
        if pool:
            self._counted[key] = pool, amounts
            add(self._usage.setdefault(pool, {}), amounts)


def _mark(names: dict[str, None], name: str, there: bool) -> None:
    if there:
        names[name] = None
    else:
        names.pop(name, None)
