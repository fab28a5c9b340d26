"""Node groups of cluster-autoscaler: sizes and back-off from its status ConfigMap, machines from nodes.

What a group launches is taken from its present or past nodes, one per zone (`node_group_template`). A status
that cannot be parsed changes nothing, and the problem is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.nodes.node_facts import NodeFacts
from karpool.cluster.pools import node_group_status
from karpool.cluster.pools.node_group_status import NodeGroupStatus
from karpool.cluster.pools.node_group_template import (
    NodeGroupTemplate,
    annotations_of,
    described,
    group_of,
    row_like,
)
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE

# Nodes without a group may be named by the next status; more than this many add nothing new.
_UNMATCHED_MAX = 1000


@dataclass(frozen=True)
class NodeGroups:
    """The node groups.

    `examples` has by group and zone one of its nodes that was ready. `problem` says why the last status could
    not be parsed.
    """

    groups: Mapping[str, NodeGroupStatus] = field(default_factory=dict)
    examples: Mapping[str, Mapping[str, NodeFacts]] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def template(self, group: str, catalogue: Catalogue) -> tuple[NodeGroupTemplate | None, str]:
        """Return what a new node would be, or why that is unknown."""
        try:
            if group in self.described:
                return described(self.described[group], group, catalogue), ""
            if examples := self.examples.get(group):
                rows = [row_like(node, f"{group}/{zone}") for zone, node in sorted(examples.items())]
                first = next(iter(examples.values()))
                return NodeGroupTemplate(tuple(rows), first.labels.get(INSTANCE_TYPE, "")), ""
        except Invalid as error:
            return None, str(error)
        return None, "its nodes are unknown, because none was ever seen"


class NodeGroupStore:
    """`version` increases with every change. `failures` are those of groups, not of pools."""

    def __init__(self, failures: LaunchFailures) -> None:
        self.version = 0
        self._failures = failures
        self._groups: dict[str, NodeGroupStatus] = {}
        self._described: dict[str, str] = {}
        self._problem = ""
        self._examples: dict[str, dict[str, NodeFacts]] = {}
        self._unmatched: dict[str, NodeFacts] = {}

    def view(self) -> NodeGroups:
        examples = {group: dict(by_zone) for group, by_zone in self._examples.items()}
        return NodeGroups(dict(self._groups), examples, dict(self._described), self._problem)

    def put_status(self, status: ConfigMap, now: float) -> None:
        self.version += 1
        try:
            groups = node_group_status.parse((status.data or {}).get("status", ""))
        except Invalid as error:
            self._problem = str(error)  # the last state stays
            return
        self._problem = ""
        for group in groups:
            before = self._groups.get(group.name)
            if before is not None and group.target > before.target:
                self._failures.claimed(group.name, now)
            if before is not None and group.registered > before.registered:
                self._failures.succeeded(group.name, None, now)
            self._failures.pool_seen(group.name, (group.min_size, group.max_size), now)
        for name in self._groups.keys() - {group.name for group in groups}:
            self._failures.pool_gone(name)
        self._groups = {group.name: group for group in groups}
        self._described = annotations_of(status.metadata.annotations or {})
        for node in list(self._unmatched.values()):
            self.put_node(node)

    def drop_status(self) -> None:
        self.version += 1
        self._groups = {}

    def put_node(self, node: NodeFacts) -> None:
        group = group_of(node.labels, self._groups)
        if not group:
            if len(self._unmatched) < _UNMATCHED_MAX:
                self._unmatched[node.name] = node
            return
        self._unmatched.pop(node.name, None)
        by_zone = self._examples.setdefault(group, {})
        zone = node.labels.get(ZONE, "")
        if node.is_ready and by_zone.get(zone) != node:
            by_zone[zone] = node
            self.version += 1

    def drop_node(self, name: str) -> None:
        self._unmatched.pop(name, None)
