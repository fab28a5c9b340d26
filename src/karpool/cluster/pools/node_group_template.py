"""What a new node of a cluster-autoscaler group would be, as far as the cluster shows it.

It is taken from the group's nodes, one template per zone, and kept when the last node is gone. A group that
never had a node can be described in an annotation of the status ConfigMap: `karpool.dev/template.<group>`,
JSON with `instanceType` (of the catalogue) or `allocatable`, and optionally `zones`, `labels` and `taints`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.cluster.nodes.expected import is_ephemeral, node_allocatable
from karpool.cluster.nodes.node_facts import NodeFacts
from karpool.model import resources
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Labels, Wire
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.resources import Resources
from karpool.model.taints import Taint
from karpool.packing.tables.node_table import NodeRow

ANNOTATION = "karpool.dev/template."
# Labels in which clouds name the group of a node. The autoscaler's own name for it may be longer.
GROUP_LABELS = (
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "node.cluster.x-k8s.io/machine-deployment",
)
_ZONE_IN_GROUP = re.compile(r"/zones/([^/]+)/")
_OWN_TAINTS = ("ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler")


class NodeGroupAnnotation(Wire, frozen=True):
    """The content of an annotation."""

    instance_type: str = ""
    allocatable: QuantityMap | None = None
    zones: list[str] | None = None
    labels: dict[str, str] | None = None
    taints: list[Taint] | None = None


@dataclass(frozen=True, slots=True)
class NodeGroupTemplate:
    """`rows` has one entry per zone; which zone the next node gets is unknown."""

    rows: tuple[NodeRow, ...]
    instance_type: str = ""
    price_per_hour: float | None = None


def group_of(labels: Labels, groups: Iterable[str]) -> str:
    """Return the group whose name is, or contains as a part, what the labels of a node say; empty if none."""
    said = {labels[key] for key in GROUP_LABELS if labels.get(key)}
    best = ""
    longest = 0
    for group in groups:
        # GKE has a group per zone for each of its pools, and names the zone in the URL of the group.
        if (zone := _ZONE_IN_GROUP.search(group)) is not None and zone[1] != labels.get(ZONE, zone[1]):
            continue
        for value in said:
            exact = group == value or group.rpartition("/")[2] == value
            size = len(value) + (1 << 16 if exact else 0)
            if size > longest and (exact or f"-{value}-" in f"-{group.rpartition('/')[2]}-"):
                best, longest = group, size
    return best


def row_like(node: NodeFacts, name: str) -> NodeRow:
    """Return a row for another node like this one, after its start. Raises Invalid."""
    taints = [taint for taint in node.taints if not is_ephemeral(taint) and taint.key not in _OWN_TAINTS]
    return NodeRow(name, {**node.labels, HOSTNAME: name}, tuple(taints), node_allocatable(node))


def described(text: str, group: str, catalogue: Catalogue) -> NodeGroupTemplate:
    """Return the template in an annotation. Raises Invalid, which names the annotation."""
    path = f"metadata.annotations[{ANNOTATION}{group}]"
    try:
        said = msgspec.json.decode(text.encode(), type=NodeGroupAnnotation)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(path, text, str(error)) from None
    try:
        room, labels = _room(said, catalogue)
    except Invalid as error:
        raise error.at(path) from None
    zones = said.zones or [""]
    rows = [
        NodeRow(
            f"{group}/{zone}",
            {**labels, **({ZONE: zone} if zone else {}), **(said.labels or {}), HOSTNAME: f"{group}/{zone}"},
            tuple(said.taints or ()),
            room,
        )
        for zone in zones
    ]
    return NodeGroupTemplate(tuple(rows), said.instance_type)


def _room(said: NodeGroupAnnotation, catalogue: Catalogue) -> tuple[Resources, dict[str, str]]:
    if said.allocatable:
        return resources.parse(said.allocatable), {}
    instance_type = catalogue.types.get(said.instance_type)
    if instance_type is None:
        raise Invalid("instanceType", said.instance_type, "is not in the catalogue; give allocatable instead")
    labels = {
        key: next(iter(values.values))
        for key, values in instance_type.requirements.items()
        if not values.complement and len(values.values) == 1
    }
    return dict(instance_type.allocatable), {**labels, INSTANCE_TYPE: said.instance_type}


def annotations_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations by group."""
    return {
        key.removeprefix(ANNOTATION): text
        for key, text in (metadata or {}).items()
        if key.startswith(ANNOTATION) and isinstance(text, str)
    }
