"""Pods that exist and cannot be read: each of them blocks its node.

The requests of such a pod are unknown, so no other pod may be placed on its node, and the node may not be
removed. If its node is unknown, too, it may be on any node.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from karpool.model.kubernetes.pod import TERMINAL_PHASES


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    phase: str | None = None


class _Placed(msgspec.Struct):
    spec: _Spec | None = None


class _Ended(msgspec.Struct):
    status: _Status | None = None


class PodPlace(msgspec.Struct, frozen=True):
    """The place of an unreadable pod. `node` is empty without a node, None if it is unknown."""

    node: str | None
    is_terminal: bool = False


def place_of(raw: bytes) -> PodPlace:
    """Return where an unreadable pod is, as far as its bytes say."""
    try:
        status = msgspec.json.decode(raw, type=_Ended).status
        if status is not None and status.phase in TERMINAL_PHASES:
            return PodPlace("", is_terminal=True)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass  # it may be running
    try:
        spec = msgspec.json.decode(raw, type=_Placed).spec
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return PodPlace(None)
    return PodPlace((spec.node_name or "") if spec is not None else "")


class UnreadablePods:
    """The number of unreadable pods by node. Unbounded: an uncounted pod would look like free room."""

    def __init__(self) -> None:
        self.node_of: dict[str, str | None] = {}  # read-only for callers
        self._per_node: Counter[str] = Counter()

    @property
    def per_node(self) -> Mapping[str, int]:
        return self._per_node

    @property
    def first_of_node(self) -> dict[str, str]:
        """Return by node the pod to name in messages."""
        return {node: pod for pod, node in sorted(self.node_of.items(), reverse=True) if node}

    @property
    def somewhere(self) -> int:
        """The pods whose node is unknown."""
        return sum(node is None for node in self.node_of.values()) if self.node_of else 0

    def __len__(self) -> int:
        return len(self.node_of)

    def __contains__(self, key: str) -> bool:
        return key in self.node_of

    def put(self, key: str, node: str | None) -> set[str]:
        """Add a pod; return the nodes whose count changed."""
        if key in self.node_of and self.node_of[key] == node:
            return set()
        changed = self.drop(key)
        self.node_of[key] = node
        if node:
            self._per_node[node] += 1
            changed ^= {node}
        return changed

    def drop(self, key: str) -> set[str]:
        node = self.node_of.pop(key, None)
        if not node:
            return set()
        self._per_node[node] -= 1
        if not self._per_node[node]:
            del self._per_node[node]
        return {node}
