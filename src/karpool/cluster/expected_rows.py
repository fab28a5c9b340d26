"""Feeds a room with nodes as they will be after their start, instead of as they are.

A claim with a machine is a row before its node exists (`expected.row_name`). The requests of daemons that
belong on a row and do not run there yet are subtracted.
"""

from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.nodes.expected import DaemonOverhead, expected_row, row_name
from karpool.cluster.nodes.state_node import StateNode
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod


class ExpectedRows:
    def __init__(self, room: ClusterRoom, daemons: DaemonOverhead) -> None:
        self._room = room
        self._daemons = daemons
        self._nodes: dict[str, StateNode] = {}  # by row
        self._running: dict[str, dict[str, ObjectKey]] = {}  # by row: pods of daemons, and their DaemonSets
        self._row_of: dict[str, str] = {}  # rows of those pods

    def change(self, before: StateNode | None, after: StateNode | None) -> None:
        if after is not None and _has_machine(after):
            name = row_name(after.claim, after.node)
            self._nodes[name] = after
            self._offer(name)
        elif (state := after or before) is not None:
            name = row_name(state.claim, state.node)
            if self._nodes.pop(name, None) is not None:
                self._room.remove_node(name)

    def change_daemons(self) -> None:
        for name in self._nodes:
            self._offer(name)

    def put_pod(self, key: str, pod: Pod) -> None:
        owners = pod.metadata.owner_references or ()
        daemon = next((owner.name for owner in owners if owner.kind == "DaemonSet"), "")
        if not daemon or not pod.spec.node_name or pod.is_terminal:
            self.drop_pod(key)
        elif self._row_of.get(key) != pod.spec.node_name:
            self.drop_pod(key)
            self._row_of[key] = pod.spec.node_name
            running = self._running.setdefault(pod.spec.node_name, {})
            running[key] = ObjectKey(pod.metadata.namespace, daemon)
            self._offer(pod.spec.node_name)

    def drop_pod(self, key: str) -> None:
        name = self._row_of.pop(key, None)
        if name is not None:
            del self._running[name][key]
            if not self._running[name]:
                del self._running[name]
            self._offer(name)

    def _offer(self, name: str) -> None:
        state = self._nodes.get(name)
        if state is None:
            return
        try:
            row = expected_row(state.claim, state.node)
        except Invalid as error:
            self._room.problems.add("Node", name, error)
            return
        self._room.problems.clear("Node", name)
        if self._daemons.shapes:
            row = self._daemons.less(row, set(self._running.get(name, {}).values()))
        self._room.put_node(row)


def _has_machine(state: StateNode) -> bool:
    return state.node is not None or (state.claim is not None and bool(state.claim.provider_id))
