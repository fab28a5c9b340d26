"""The annotations, labels and cordon that a move sets on nodes, and how they are removed.

A move excludes its nodes from Karpenter's disruption, so that two controllers do not act on one node, and
cordons them later. It protects its new nodes from removal while they are empty. Every mark names its move.
Changes by others are never undone: a node that was cordoned before stays cordoned. Karpenter's own taint is
never used. Pure.
"""

from typing import Any

from karpool.cluster.nodes.node_facts import NodeFacts
from karpool.consolidation.execution.record import DOMAIN
from karpool.model.karpenter.objects import DO_NOT_DISRUPT
from karpool.model.kubernetes.node import Node

MOVE_MARK = f"{DOMAIN}/move"  # annotation of a node: the name of the record
CORDONED = f"{DOMAIN}/cordoned"  # annotation: the move cordoned the node and will uncordon it
PROTECTED = f"{DOMAIN}/protected"  # annotation: the move excluded the node from disruption
# Label of nodes to remove; placeholders avoid them by it. Karpenter refuses pods that name hosts.
LEAVING = f"{DOMAIN}/leaving"
# Label of nodes launched for a move: their capacity is for its pods.
ARRIVED = f"{DOMAIN}/arrived"
Object = dict[str, Any]


def marked_by(node: Node | NodeFacts) -> str:
    """The name of the record that marked the node; empty if none did."""
    return node.annotations.get(MOVE_MARK, "")


def is_marked(node: Node, record: str) -> bool:
    return marked_by(node) == record and node.annotations.get(DO_NOT_DISRUPT) == "true"


def is_cordoned(node: Node, record: str) -> bool:
    return is_marked(node, record) and node.spec.unschedulable


def mark(node: Node, record: str, *, cordon: bool = False, leaving: bool = False) -> Object:
    """A merge patch for exactly this version of the node."""
    annotations: Object = {MOVE_MARK: record}
    if node.annotations.get(DO_NOT_DISRUPT) != "true":
        annotations |= {DO_NOT_DISRUPT: "true", PROTECTED: "true"}
    patch = _patch(node, annotations)
    patch["metadata"]["labels"] = {LEAVING if leaving else ARRIVED: "true"}
    if cordon and not node.spec.unschedulable:
        annotations[CORDONED] = "true"
        patch["spec"] = {"unschedulable": True}
    return patch


def unmark(node: Node) -> Object:
    annotations: Object = {MOVE_MARK: None, PROTECTED: None, CORDONED: None}
    if node.annotations.get(PROTECTED) == "true":
        annotations[DO_NOT_DISRUPT] = None
    patch = _patch(node, annotations)
    if labels := {key: None for key in (LEAVING, ARRIVED) if key in node.labels}:
        patch["metadata"]["labels"] = labels
    if node.annotations.get(CORDONED) == "true":
        patch["spec"] = {"unschedulable": None}
    return patch


def _patch(node: Node, annotations: Object) -> Object:
    meta = node.metadata
    return {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": annotations,
        }
    }
