"""How many volumes may be attached to nodes, by driver, from their CSINodes.

Each driver that some node limits is a resource of the nodes. A node whose CSINode does not limit a driver, or
that has no CSINode, takes any number, as in kube-scheduler; a node whose CSINode cannot be read takes none.

A volume that no pod of the node uses counts until it is detached, that is while there is a VolumeAttachment;
kube-scheduler counts so, too. An attachment of an unknown driver counts for every driver, and one of an
unknown node counts on every node.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from karpool.cluster.pods.unreadable_pods import place_of
from karpool.cluster.pods.volume_store import VolumeStore
from karpool.cluster.problems import UnreadableObjects
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.volumes import CsiNode, VolumeAttachment, attach_limits
from karpool.model.resources import ATTACHED_VOLUMES
from karpool.packing.tables.node_table import NodeRow

_ANY_NUMBER = 1 << 31


class _NamedDriver(msgspec.Struct):
    name: str


class _DriversOnly(msgspec.Struct):
    drivers: list[_NamedDriver]


class _UnreadableCsiNode(msgspec.Struct):
    spec: _DriversOnly


_CSI_NODE, _ATTACHMENT = "CSINode", "VolumeAttachment"


@dataclass(frozen=True, slots=True)
class AttachedVolume:
    """An attached volume. Empty means unknown; a volume without a name has no known user."""

    node: str = ""
    driver: str = ""
    volume: str = ""


class AttachLimits:
    """The attach limits of nodes. `offer_again` is called with the changed nodes; None: all nodes."""

    def __init__(
        self,
        store: VolumeStore,
        problems: UnreadableObjects,
        offer_again: Callable[[Iterable[str] | None], None],
    ) -> None:
        self.drivers: frozenset[str] = frozenset()  # drivers that some node limits
        self._store = store
        self._problems = problems
        self._offer_again = offer_again
        self._by_node: dict[str, Mapping[str, int] | None] = {}
        self._named: dict[str, tuple[str, ...]] = {}  # node to the drivers that its CSINode limits
        self._nodes_of: Counter[str] = Counter()  # number of nodes by driver
        self._attached: dict[str, AttachedVolume] = {}  # by VolumeAttachment
        # The same by node.
        self._attached_to: defaultdict[str, dict[str, AttachedVolume]] = defaultdict(dict)

    def put_csi_node(self, csi_node: CsiNode) -> None:
        self._problems.clear(_CSI_NODE, csi_node.name)
        self._limit(csi_node.name, attach_limits(csi_node))

    def drop_csi_node(self, name: str) -> None:
        self._problems.clear(_CSI_NODE, name)
        self._limit(name, {})

    def unreadable_csi_node(self, key: ObjectKey, raw: bytes, error: Invalid) -> None:
        self._problems.add(_CSI_NODE, key.name, error)
        self._limit(key.name, None, _drivers_named(raw))

    def _limit(self, node: str, limits: Mapping[str, int] | None, named: Iterable[str] = ()) -> None:
        """Set the limits of a node; None: unreadable, only the drivers are `named`; empty: none."""
        self._nodes_of.subtract(self._named.pop(node, ()))
        self._by_node.pop(node, None)
        if limits is None or limits:
            self._by_node[node] = limits
            self._named[node] = tuple(named if limits is None else limits)
            self._nodes_of.update(self._named[node])
        drivers = frozenset(driver for driver, nodes in self._nodes_of.items() if nodes > 0)
        news, self.drivers = drivers != self.drivers, drivers
        self._store.limit(drivers)
        self._offer_again(None if news else [node])

    def put_attachment(self, attachment: VolumeAttachment) -> None:
        spec = attachment.spec
        if spec.attacher and spec.node_name:
            self._problems.clear(_ATTACHMENT, attachment.name)
        else:
            empty = "spec.nodeName" if spec.attacher else "spec.attacher"
            self._problems.add(_ATTACHMENT, attachment.name, Invalid(empty, "", "is required"))
        volume = spec.source.persistent_volume_name or ""
        self._attach(attachment.name, AttachedVolume(spec.node_name, spec.attacher, volume))

    def drop_attachment(self, name: str) -> None:
        self._problems.clear(_ATTACHMENT, name)
        self._attach(name, None)

    def unreadable_attachment(self, key: ObjectKey, raw: bytes, error: Invalid) -> None:
        self._problems.add(_ATTACHMENT, key.name, error)
        self._attach(key.name, AttachedVolume(place_of(raw).node or ""))

    def _attach(self, name: str, attached: AttachedVolume | None) -> None:
        before = self._attached.pop(name, None)
        if before is not None:
            del self._attached_to[before.node][name]
            if not self._attached_to[before.node]:
                del self._attached_to[before.node]
        if attached is not None:
            self._attached[name] = self._attached_to[attached.node][name] = attached
        if before != attached:
            nodes = {one.node for one in (before, attached) if one is not None}
            self._offer_again(list(self._by_node) if "" in nodes else nodes)

    def with_attachments(self, nodes: set[str]) -> set[str]:
        return nodes & self._attached_to.keys() & self._by_node.keys()

    def limited(self, node: NodeRow) -> NodeRow:
        """Return the node with its attach limits among its allocatable resources."""
        offered = node.allocatable
        if self.drivers or _names_limits(tuple(offered)):
            others = {name: units for name, units in offered.items() if not name.startswith(ATTACHED_VOLUMES)}
            node = replace(node, allocatable={**others, **self._offered(node.name)})
        return node

    def _offered(self, node: str) -> dict[str, int]:
        limits = self._by_node.get(node, {})
        if limits is None:
            return {f"{ATTACHED_VOLUMES}{driver}": 0 for driver in self.drivers}
        kept = self._kept(node) if limits else Counter()
        return {
            f"{ATTACHED_VOLUMES}{driver}": max(limits[driver] - kept[driver] - kept[""], 0)
            if driver in limits
            else _ANY_NUMBER
            for driver in self.drivers
        }

    def _kept(self, node: str) -> Counter[str]:
        """Return by driver the attached volumes that no pod of the node uses."""
        attached = (*self._attached_to.get(node, {}).values(), *self._attached_to.get("", {}).values())
        return Counter(
            one.driver
            for one in attached
            if not (one.node and one.volume and self._store.is_used(one.volume, node))
        )


def _drivers_named(raw: bytes) -> set[str]:
    """Return the drivers of a CSINode whose limits cannot be read."""
    try:
        drivers = msgspec.json.decode(raw, type=_UnreadableCsiNode).spec.drivers
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return set()
    return {driver.name for driver in drivers}


@lru_cache(maxsize=256)  # Nodes offer the same few sets of resources.
def _names_limits(resources: tuple[str, ...]) -> bool:
    return any(name.startswith(ATTACHED_VOLUMES) for name in resources)
