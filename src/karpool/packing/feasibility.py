"""Which nodes a pod may run on, ignoring resources and other pods.

This is the only implementation of node selectors, node affinity, taints, volume topology and host ports. Each
check is a mask over the nodes, computed once per distinct label value or taint set and cached in the node
table, so that it survives pod events and is shared by overlays. Resources are in `count`, topology is in
`topology`.
"""

from collections.abc import Iterable

import numpy as np

from karpool.model.kubernetes.pod_shape import HostPort, Pairs, PodShape
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.taints import Toleration, untolerated
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.node_table import NodeTable
from karpool.packing.tables.room import Room

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - the wildcard as the API spells it


def feasible(snapshot: Room, shape: PodShape) -> Bools:
    """Return the nodes that pass every check of this module.

    O(nodes) the first time, a lookup afterwards. Resource claims are checked in `claim_room`.
    """
    mask = admitted(snapshot.nodes, shape)
    return mask & ports_free(snapshot, shape) if shape.host_ports else mask


def admitted(nodes: NodeTable, shape: PodShape) -> Bools:
    """Return the nodes that pass the checks that pods cannot change: all but host ports."""
    key = ("admitted", shape.tolerations, shape.node_selector, shape.node_terms, shape.volume_terms)

    def compute(table: NodeTable) -> Bools:
        mask = tolerates(table, shape.tolerations)
        if shape.node_selector:
            mask = mask & matches_selector(table, shape.node_selector)
        if shape.node_terms is not None:
            mask = mask & matches_terms(table, shape.node_terms)
        for alternatives in shape.volume_terms:
            mask = mask & matches_terms(table, alternatives)
        return mask

    return nodes.per_node(key, compute)


def selected(snapshot: Room, shape: PodShape) -> Bools:
    """Return the nodes that the node selector and the required node affinity of the pod select."""
    mask = matches_selector(snapshot.nodes, shape.node_selector)
    return mask if shape.node_terms is None else mask & matches_terms(snapshot.nodes, shape.node_terms)


def tolerates(nodes: NodeTable, tolerations: tuple[Toleration, ...]) -> Bools:
    """Return the nodes without an untolerated hard taint; a cordoned node counts as tainted."""

    def compute(table: NodeTable) -> Bools:
        by_set = np.array(
            [untolerated(taints, tolerations) is None for taints in table.taint_sets], dtype=np.bool_
        )
        return by_set.take(table.taint_codes)

    return nodes.per_node(("tolerates", tolerations), compute)


def matches_selector(nodes: NodeTable, pairs: Pairs) -> Bools:
    """Return the nodes with all these labels."""
    mask = np.ones(nodes.n, dtype=np.bool_)
    for key, value in pairs:
        mask &= has_label(nodes, key, ValueSet(frozenset((value,))))
    return mask


def matches_terms(nodes: NodeTable, alternatives: Iterable[NodeTerm]) -> Bools:
    """Return the nodes that satisfy at least one term; without terms, no node does."""
    mask = np.zeros(nodes.n, dtype=np.bool_)
    for term in alternatives:
        mask |= _matches_term(nodes, term)
    return mask


def _matches_term(nodes: NodeTable, term: NodeTerm) -> Bools:
    mask = np.ones(nodes.n, dtype=np.bool_)
    for key, value_set in term.labels:
        mask &= has_label(nodes, key, value_set)
    for key, value_set in term.fields:
        mask &= _has_field(nodes, key, value_set)
    return mask


def has_label(nodes: NodeTable, key: str, value_set: ValueSet) -> Bools:
    """Return the nodes whose value of a label, or lack of it, is admitted."""
    return nodes.per_node(("label", key, value_set), lambda table: table.label(key).select(value_set))


def _has_field(nodes: NodeTable, key: str, value_set: ValueSet) -> Bools:
    if key != "metadata.name":
        # Other fields read as empty strings, in kube-scheduler as here.
        return np.full(nodes.n, "" in value_set, dtype=np.bool_)
    mask = np.full(nodes.n, value_set.complement, dtype=np.bool_)
    for name in value_set.values:
        for row in nodes.rows_named(name):
            mask[row] = not value_set.complement
    return mask


def preference(nodes: NodeTable, shape: PodShape) -> Int64s:
    """Return the score of each node: the summed weights of the preferred node affinity."""
    weight = np.zeros(nodes.n, dtype=np.int64)
    for preferred in shape.preferred_nodes:
        weight += preferred.weight * matches_terms(nodes, (preferred.term,))
    return weight


def ports_free(snapshot: Room, shape: PodShape) -> Bools:
    """Return the nodes where the host ports of the pod are free."""
    mask = np.ones(snapshot.n, dtype=np.bool_)
    if not shape.host_ports:
        return mask
    bound = snapshot.bound
    in_the_way = snapshot.shapes.where(
        ("ports", shape.host_ports), lambda other: ports_conflict(other.host_ports, shape.host_ports)
    )
    mask[bound.node[in_the_way[bound.shape]]] = False
    return mask


def ports_conflict(held: Iterable[HostPort], asked: Iterable[HostPort]) -> bool:
    asked = tuple(asked)
    return any(
        protocol == other_protocol
        and port == other_port
        and (address == other_address or ANY_ADDRESS in (address, other_address))
        for address, protocol, port in held
        for other_address, other_protocol, other_port in asked
    )
