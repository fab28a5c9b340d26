"""Nodes joined with their claims, one change at a time, and the usage of each pool's limits.

A node finds its claim by provider ID, else by `status.nodeName` of the claim, else by its owner reference. A
claim belongs to one node: the one it names, or the first by name; other nodes stay without a claim and are
reported. The join does not depend on the order of arrival. It is computed on demand, once for all changes
since the last one, or at once if there are listeners.

An initialized node counts against limits with what it shows; before that its claim counts, and a claim
without a machine counts as the largest type it may become. Nodes that are being removed do not count.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from karpool.cluster.market.market import Market
from karpool.cluster.nodes.expected import counted_capacity, unlaunched
from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts, SharedValues, claim_facts, node_facts
from karpool.cluster.nodes.state_node import NodeStage, StateNode
from karpool.cluster.problems import UnreadableObjects
from karpool.model.catalogue.catalogue import capacity_type_of
from karpool.model.contracts.contract import BilledKind
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NODEPOOL, NodeClaim
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION, ZONE, Node
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.resources import NODES as NODE_COUNT
from karpool.model.resources import Resources, add

_SAME_MAX = 10_000
_PRICED = (INSTANCE_TYPE, NODEPOOL, REGION)
_NO_CLAIM = ""
_NO_PRICES = (None, None, None)  # for a machine of unknown type

StateNodeListener = Callable[[StateNode | None, StateNode | None], None]  # before, after


class StateNodeStore:
    def __init__(self, market: Market, problems: UnreadableObjects) -> None:
        self._version = 0
        self.listeners: list[StateNodeListener] = []
        self.market = market
        self.claims: dict[str, ClaimFacts] = {}
        self._problems = problems
        self._shared_values = SharedValues()
        self._nodes: dict[str, NodeFacts] = {}
        self._joined: dict[str, StateNode] = {}  # by node
        self._waiting: dict[str, StateNode] = {}  # claims without a node, by claim
        self._claim_of: dict[str, str] = {}  # node to the claim that it refers to
        self._nodes_of: dict[str, set[str]] = {}  # claim to the nodes that refer to it
        self._claims_with: dict[str, set[str]] = {}  # provider id, or `node/NAME`, to claims
        self._nodes_with: dict[str, set[str]] = {}  # provider id, or `claim/NAME`, to nodes
        self._starting: dict[str, None] = {}  # nodes with a claim that are not yet ready for pods
        self._leaving: dict[str, None] = {}
        self._blocked: dict[str, int] = {}
        # Changes since the last join, in order of arrival: plans must not depend on hashes of names.
        self._new_nodes: dict[str, None] = {}
        self._new_claims: dict[str, None] = {}
        self._reserved: dict[str, str] = {}  # by node
        self._reserved_claims: dict[str, str] = {}
        self._priced = market.version
        self._billed = -1  # the version whose machines are on the bill
        self._learnt_from = -1  # the version whose nodes were used to learn prices
        self._usage: dict[str, Resources] = {}
        self._counted: dict[str, tuple[str, Resources]] = {}
        self._same: dict[frozenset[tuple[str, int]], Resources] = {}
        self._capacities: dict[int, tuple[QuantityMap, Resources]] = {}  # by identity of shared values
        self._prices: dict[tuple[str | None, ...], tuple[float | None, float | None, BilledKind | None]] = {}
        self._price_version: object = None
        self._shared = self._usage_shared = False

    # Reading

    @property
    def version(self) -> int:
        """Increases with every change of a joined node."""
        self.settle()
        return self._version

    def of_claim(self, name: str) -> StateNode | None:
        """Return a claim, joined with its node if it has one."""
        self.settle()
        return self._joined.get(self._holder(name)) or self._waiting.get(name)

    def claim_with(self, provider_id: str) -> str:
        """Return the claim with a provider ID, whether or not its node exists; empty if there is none."""
        return min(self._claims_with.get(provider_id, ()), default="") if provider_id else ""

    def nodes_with(self, provider_id: str) -> list[str]:
        """Return the nodes with a provider ID, by name; more than one is an error in the cluster."""
        return sorted(self._nodes_with.get(provider_id, ())) if provider_id else []

    def without_node(self) -> Iterable[StateNode]:
        """Return the claims without a node, in no order."""
        self.settle()
        return self._waiting.values()

    def view(self) -> tuple[Mapping[str, StateNode], Mapping[str, StateNode]]:
        """Return nodes by name, and claims without a node by name; both are immutable."""
        self._price_anew()
        contracted = self.market.contracted
        if contracted.source and (contracted.wants_nodes or self._learnt_from != self._version):
            contracted.see_nodes(
                self.market.priced_node(node.name, node.labels, node.provider_id, node.annotations)
                for node in self._nodes.values()
            )
            self._price_anew()
            self._learnt_from = self._version
        if contracted and (self._billed != self._version or contracted.wants_fleet):
            contracted.see_fleet(self._fleet())
            self._price_anew()
        self._billed = self._version
        self._shared = True
        return MappingProxyType(self._joined), MappingProxyType(self._waiting)

    def _price_anew(self) -> None:
        """Join again after a price change, together with pending changes."""
        if self._priced != self.market.version:
            self._priced = self.market.version
            self._new_nodes |= dict.fromkeys(self._nodes)
            self._new_claims |= dict.fromkeys(self.claims)
        self.settle()

    def starting(self) -> tuple[StateNode, ...]:
        """Return the nodes with a claim that are not yet ready for pods."""
        self.settle()
        return tuple(self._joined[name] for name in self._starting)

    def leaving(self) -> tuple[str, ...]:
        """Return the nodes that are being removed."""
        self.settle()
        return tuple(self._leaving)

    def usage(self) -> Mapping[str, Resources]:
        """Return by pool the capacity of nodes and claims that stay; `nodes` counts them."""
        self.settle()
        self._usage_shared = True
        return self._usage

    # Updates

    def put_node(self, node: Node) -> None:
        name = node.name
        facts = node_facts(node, self._shared_values, self.market.contracted.source.annotation)
        before = self._nodes.get(name)
        if facts == before:
            return  # a heartbeat
        self._nodes[name] = facts
        if before is None or _links_of_node(before) != _links_of_node(facts):
            self._unindex(self._nodes_with, _links_of_node(before), name)
            for link in _links_of_node(facts):
                self._nodes_with.setdefault(link, set()).add(name)
        self._heard(node=name)

    def drop_node(self, name: str) -> None:
        node = self._nodes.pop(name, None)
        if node is None:
            return
        self._unindex(self._nodes_with, _links_of_node(node), name)
        self._heard(node=name)

    def put_claim(self, claim: NodeClaim) -> None:
        name = claim.name
        facts = claim_facts(claim, self._shared_values)
        before = self.claims.get(name)
        if facts == before:
            return
        self.claims[name] = facts
        old, new = _links_of_claim(before), _links_of_claim(facts)
        if old != new or before is None:
            self._unindex(self._claims_with, old, name)
            for link in new:
                self._claims_with.setdefault(link, set()).add(name)
            if old:
                self._new_nodes.update(dict.fromkeys(self._nodes_that_may_be_of(name, old)))
        self._heard(claim=name)

    def drop_claim(self, name: str) -> None:
        claim = self.claims.pop(name, None)
        if claim is None:
            return
        links = _links_of_claim(claim)
        self._unindex(self._claims_with, links, name)
        self._new_nodes.update(dict.fromkeys(self._nodes_that_may_be_of(name, links)))
        self._heard(claim=name)

    def block(self, name: str, pods: int) -> None:
        """Set how many pods on a node cannot be read."""
        if self._blocked.get(name, 0) != pods:
            self._blocked[name] = pods
            self._heard(node=name)

    def reserve(self, nodes: Mapping[str, str], claims: Mapping[str, str]) -> None:
        """Set all reserved nodes and claims, each with the record that reserves it."""
        for name in sorted({name for name, _ in self._reserved.items() ^ nodes.items()}):
            self._new_nodes[name] = None
        for claim in sorted({claim for claim, _ in self._reserved_claims.items() ^ claims.items()}):
            self._new_claims[claim] = None
        self._reserved, self._reserved_claims = dict(nodes), dict(claims)
        self._heard()

    # Joining

    def _heard(self, *, node: str = "", claim: str = "") -> None:
        if node:
            self._new_nodes[node] = None
        if claim:
            self._new_claims[claim] = None
        if self.listeners:
            self.settle()

    def settle(self) -> None:
        """Join the changes since the last call."""
        if not self._new_nodes and not self._new_claims:
            return
        nodes, claims = self._new_nodes, self._new_claims
        self._new_nodes, self._new_claims = {}, {}
        for claim in claims:
            links = _links_of_claim(self.claims.get(claim))
            nodes.update(dict.fromkeys(self._nodes_that_may_be_of(claim, links)))
        claims.update(self._rejoin(nodes))
        for claim in claims:
            nodes.update(dict.fromkeys(sorted(self._nodes_of.get(claim, ()))))
        self._refresh(nodes)
        self._refresh_claims(claims)

    def _nodes_that_may_be_of(self, claim: str, links: Iterable[str]) -> list[str]:
        """Return the nodes that a claim has, and those that its links lead to."""
        nodes = {*self._nodes_of.get(claim, ()), *self._nodes_with.get(f"claim/{claim}", ())}
        for link in links:
            nodes |= self._nodes_with.get(link, set())
            name = link.removeprefix("node/")
            if name != link and name in self._nodes:
                nodes.add(name)
        return sorted(nodes)

    def _sought(self, name: str) -> str:
        """Return the claim that a node refers to; empty if there is none."""
        node = self._nodes.get(name)
        if node is None:
            return _NO_CLAIM
        provider = node.provider_id
        for link in (*((provider,) if provider else ()), f"node/{name}"):
            if claims := self._claims_with.get(link):
                return min(claims)
        owners = (link.removeprefix("claim/") for link in _links_of_node(node) if link.startswith("claim/"))
        return next((owner for owner in owners if owner in self.claims), _NO_CLAIM)

    def _rejoin(self, names: Iterable[str]) -> dict[str, None]:
        """Update the claims of these nodes; return the claims that they had or have."""
        touched: dict[str, None] = {}
        for name in names:
            before, now = self._claim_of.get(name, _NO_CLAIM), self._sought(name)
            if before != now:
                if before:
                    self._unindex(self._nodes_of, (before,), name)
                if now:
                    self._nodes_of.setdefault(now, set()).add(name)
                    self._claim_of[name] = now
                else:
                    self._claim_of.pop(name, None)
            touched[before] = touched[now] = None
        touched.pop(_NO_CLAIM, None)
        return touched

    def _holder(self, claim: str) -> str:
        """Return the node that a claim belongs to; empty if there is none."""
        nodes = self._nodes_of.get(claim)
        if not nodes:
            return ""
        named = self.claims[claim].node_name if claim in self.claims else ""
        return named if named in nodes else min(nodes)

    def _refresh(self, names: Iterable[str]) -> None:
        for name in list(names):
            node = self._nodes.get(name)
            self._problems.clear("Node capacity", name)
            if node is None:
                if name in self._joined:
                    self._own()
                    self._tell(self._joined.pop(name), None)
                _mark(self._starting, name, False)
                _mark(self._leaving, name, False)
                self._problems.clear("Node claim", name)
                self._count(f"n/{name}", "", {})
                continue
            sought = self._claim_of.get(name, _NO_CLAIM)
            mine = bool(sought) and self._holder(sought) == name
            claim = self.claims.get(sought) if mine else None
            if sought and not mine:
                reason = f"is the claim of node {self._holder(sought)}; this one stands alone"
                self._problems.add("Node claim", name, Invalid("", sought, reason))
            else:
                self._problems.clear("Node claim", name)
            reserved = self._reserved.get(name) or self._reserved_claims.get(sought, "")
            prices = self._prices_of(node.labels, node.provider_id)
            joined = StateNode(node, claim, prices[0], self._blocked.get(name, 0), reserved, *prices[1:])
            before = self._joined.get(name)
            if before != joined:
                self._own()
                self._joined[name] = joined
                stage = joined.stage
                is_expected = claim is not None and claim.initialized_at is None
                _mark(self._starting, name, stage is NodeStage.STARTING and is_expected)
                _mark(self._leaving, name, stage is NodeStage.LEAVING)
                self._tell(before, joined)
            self._count_node(self._joined[name])

    def _refresh_claims(self, names: Iterable[str]) -> None:
        for name in list(names):
            claim = self.claims.get(name)
            self._problems.clear("NodeClaim capacity", name)
            if claim is None or self._holder(name):
                if name in self._waiting:
                    self._own()
                    self._tell(self._waiting.pop(name), None)
                self._count(f"c/{name}", "", {})
                continue
            price, listed, billed = self._prices_of(claim.labels, claim.provider_id)
            waiting = self._waiting.get(name)
            joined = StateNode(None, claim, price, list_price_per_hour=listed, billed=billed)
            if waiting != joined:
                self._own()
                self._waiting[name] = joined
                self._tell(waiting, joined)
            leaving = joined.is_leaving
            self._count(f"c/{name}", "" if leaving else joined.pool, self._claimed(claim))

    def _prices_of(
        self, labels: Labels, provider_id: str
    ) -> tuple[float | None, float | None, BilledKind | None]:
        """Return what the machine adds to the bill, its list price, and how it is billed under a contract.

        Results are cached by the labels that make a difference, because most nodes are alike.
        """
        if INSTANCE_TYPE not in labels:
            return _NO_PRICES
        zone = labels.get(ZONE)
        if not zone:
            return self._priced_anew(labels, provider_id)
        key = zone, capacity_type_of(labels), *map(labels.get, _PRICED)
        version = self.market.version
        if self._price_version != version or len(self._prices) > _SAME_MAX:
            self._price_version = version
            self._prices.clear()
        if key not in self._prices:
            self._prices[key] = self._priced_anew(labels, provider_id)
        return self._prices[key]

    def _priced_anew(
        self, labels: Labels, provider_id: str
    ) -> tuple[float | None, float | None, BilledKind | None]:
        market = self.market
        listed = market.list_price(labels, provider_id)
        if not market.contracted:
            return (market.price(labels, provider_id) if market.overlays else listed), listed, None
        kind = market.billed(labels, provider_id)
        return (None if kind is None else market.contracted.price(kind)), listed, kind

    def _fleet(self) -> Counter[BilledKind]:
        machines = (*self._joined.values(), *self._waiting.values())
        return Counter(
            machine.billed for machine in machines if machine.billed is not None and not machine.is_leaving
        )

    def _own(self) -> None:
        """Copy before a write, because snapshots keep the current maps."""
        self._version += 1
        if self._shared:
            self._joined, self._waiting = dict(self._joined), dict(self._waiting)
            self._shared = False

    def _tell(self, before: StateNode | None, after: StateNode | None) -> None:
        for listener in self.listeners:
            listener(before, after)

    @staticmethod
    def _unindex(index: dict[str, set[str]], links: Iterable[str], name: str) -> None:
        for link in links:
            if link in index:
                index[link].discard(name)
                if not index[link]:
                    del index[link]

    # Usage

    def _count_node(self, joined: StateNode) -> None:
        node, claim = joined.node, joined.claim
        assert node is not None
        pool = joined.pool
        if joined.is_leaving or not pool or (claim is None and not joined.is_initialized):
            amounts: Resources = {}
            pool = ""
        elif joined.is_initialized or claim is None:
            amounts = self._capacity(None, node)
        else:
            amounts = self._claimed(claim)
        self._count(f"n/{node.name}", pool, amounts)

    def _claimed(self, claim: ClaimFacts) -> Resources:
        if claim.provider_id:
            return self._capacity(claim, None)
        return self._equal(unlaunched(claim, self.market.catalogue_of(claim.labels.get(NODEPOOL, "")))[1])

    def _capacity(self, claim: ClaimFacts | None, node: NodeFacts | None) -> Resources:
        counted = node or claim
        assert counted is not None
        capacity = self._capacities.get(id(counted.capacity))
        if capacity is not None:
            return capacity[1]
        try:
            amounts = self._equal(counted_capacity(claim, node))
            if len(self._capacities) > _SAME_MAX:
                self._capacities.clear()
            self._capacities[id(counted.capacity)] = counted.capacity, amounts
            return amounts
        except Invalid as error:
            if node is not None:
                self._problems.add("Node capacity", node.name, error)
            elif claim is not None:
                self._problems.add("NodeClaim capacity", claim.name, error)
            return self._equal({})

    def _equal(self, amounts: Resources) -> Resources:
        """Return the amounts plus one node, as one object for all equal amounts."""
        whole = {**{name: units for name, units in amounts.items() if units}, NODE_COUNT: 1}
        if len(self._same) > _SAME_MAX:
            self._same.clear()
        return self._same.setdefault(frozenset(whole.items()), whole)

    def _count(self, key: str, pool: str, amounts: Resources) -> None:
        before = self._counted.get(key)
        if before == (pool, amounts) or (before is None and not pool):
            return
        if self._usage_shared:
            self._usage = {used_by: dict(used) for used_by, used in self._usage.items()}
            self._usage_shared = False
        if before is not None:
            used = self._usage[before[0]]
            for name, units in before[1].items():
                used[name] -= units
                if not used[name]:
                    del used[name]
            if not used:
                del self._usage[before[0]]
            del self._counted[key]
        if pool:
            self._counted[key] = pool, amounts
            add(self._usage.setdefault(pool, {}), amounts)


def _mark(names: dict[str, None], name: str, there: bool) -> None:
    if there:
        names[name] = None
    else:
        names.pop(name, None)


def _links_of_node(node: NodeFacts | None) -> tuple[str, ...]:
    """Return the links by which a claim may be found: the provider ID first, then owners."""
    if node is None:
        return ()
    named = tuple([f"claim/{owner}" for owner in node.owners])
    return (node.provider_id, *named) if node.provider_id else named


def _links_of_claim(claim: ClaimFacts | None) -> tuple[str, ...]:
    if claim is None:
        return ()
    named = (f"node/{claim.node_name}",) if claim.node_name else ()
    return (claim.provider_id, *named) if claim.provider_id else named
