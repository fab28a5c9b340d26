"""Moves the pods of removed nodes onto the remaining nodes; every step can be undone.

`remove` closes a node, `place` puts pods on the first nodes, in a given order, that take them, and `undo`
returns to a `mark`. The caller chooses the order: nodes to fill first come first. Only targets are filled.

Room only shrinks between commits, so each shape remembers how far the nodes are full for it (`commit`), and
placing a pod checks only the nodes after that. Shapes that topology restricts are checked against all nodes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.resources import PODS
from karpool.packing.claim_filling import ClaimFilling
from karpool.packing.claim_room import asks_drivers, free_beside_drivers, takes_one
from karpool.packing.dra.pod_claims import DraState
from karpool.packing.feasibility import feasible, ports_conflict
from karpool.packing.new_nodes.offerings import MOST, TOO_MUCH
from karpool.packing.new_nodes.pod_ask import resource_names
from karpool.packing.relocation.domain_presence import DomainPresence, RowRemoval
from karpool.packing.relocation.new_node_topology import host_takes, open_zones
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.device_table import DeviceFilling, DevicesTaken
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import SpreadRule
from karpool.packing.topology.domains import NOWHERE
from karpool.packing.topology.topology import ShapeRules, Topology

# Subtracted from the pod slots of a removed node; no kubelet has as many.
_GONE = 1 << 40
_BLOCK = 1024
Placed = tuple[int, int]  # row, pods


@dataclass(slots=True, eq=False)
class _Asked:
    """One shape. `cursor`: no node before it has taken another pod since the last commit."""

    number: int
    shape: PodShape
    columns: tuple[tuple[Int64s, int], ...]  # free amounts by position, and the units that one pod takes
    admitted: Bools  # by position
    rules: ShapeRules | None
    restricted: bool
    tells: bool  # whether some constraint counts it
    claims: bool  # whether it needs DRA devices
    cursor: int = 0


@dataclass(slots=True)
class _Step:
    """A step that `undo` reverts: pods placed on a position, or (pods = 0) a removed node.

    Pods of a new node have no position, only a zone.
    """

    position: int
    asked: _Asked | None
    pods: int
    devices: tuple[DevicesTaken, ...] = ()
    zone: int | None = None
    before: DraState | None = None  # DRA state before the pods took devices


@dataclass(frozen=True, slots=True)
class RelocationMark:
    kept: int
    cursors: dict[int, int]


def _goes_one_by_one(asked: _Asked) -> bool:
    return asked.restricted or bool(asked.shape.host_ports) or _takes_devices(asked)


def _takes_devices(asked: _Asked) -> bool:
    return asked.claims or asked.shape.devices is not None


class Relocation:
    def __init__(self, snapshot: Room, order: Int64s, targets: Bools, shapes: Iterable[int]) -> None:
        """`order` lists all rows, `targets` says by row which may be filled.

        `shapes` are all shapes that may be placed or removed.
        """
        self.snapshot = snapshot
        self.order = order
        self.position_of: Int64s = np.empty(len(order), dtype=np.int64)
        self.position_of[order] = np.arange(len(order))
        chosen = sorted(set(shapes))
        table = snapshot.shapes
        self.resources = resource_names(table[number] for number in chosen)
        self._free: dict[str, Int64s] = {}
        for name in self.resources:
            whole = snapshot.slots if name == PODS else free_beside_drivers(snapshot, name)
            self._free[name] = np.minimum(whole[order], MOST)
        self.slots = self._free[PODS]
        self.slots[~targets[order]] -= _GONE
        self._topology = self._compile_topology(table[number] for number in chosen)
        self._ports: dict[int, set[HostPort]] = {}
        self._masks: dict[object, Bools] = {}
        # Devices are tracked only if a pod that may move uses shares of them.
        shared = any(table[number].devices is not None for number in chosen)
        self._devices = DeviceFilling(snapshot.devices) if shared and snapshot.devices is not None else None
        self._claims = ClaimFilling(snapshot)
        self._asked = {number: self._ask(number) for number in chosen}
        self._log: list[_Step] = []
        self._kept: list[_Step] = []
        self._removed: list[RowRemoval] = []
        self._removals = 0
        self._presence: dict[int, DomainPresence] = {}
        self._counted: dict[int, list[tuple[ShapeRules, int]]] = {}  # by row, the pods that constraints count

    def _compile_topology(self, shapes: Iterable[PodShape]) -> Topology | None:
        """Compile the constraints; None if no constraint depends on other pods."""
        chosen = list(shapes)
        repelled = self.snapshot.shapes.where("repels", lambda shape: bool(shape.anti_affinity)).any()
        if not repelled and not any(shape.has_topology for shape in chosen):
            return None
        topology = Topology(self.snapshot)
        for shape in chosen:
            topology.rules(shape)
        return topology

    def _ask(self, number: int) -> _Asked:
        shape = self.snapshot.shapes[number]
        columns = [(self.slots, 1)]
        columns += ((self._free[name], min(units, TOO_MUCH)) for name, units in shape.requests)
        rules = self._topology.rules(shape) if self._topology is not None else None
        restricted = rules is not None and any(True for _ in rules.all)
        tells = rules is not None and bool(rules.facet.counted_by or rules.repels)
        claims = asks_drivers(self.snapshot, shape)
        admitted = self._admitted(shape, claims)
        return _Asked(number, shape, tuple(columns), admitted, rules, restricted, tells, claims)

    def _admitted(self, shape: PodShape, claims: bool) -> Bools:
        key = (
            shape.tolerations,
            shape.node_selector,
            shape.node_terms,
            shape.volume_terms,
            shape.host_ports,
            (shape.namespace, shape.resource_claims, shape.requests, shape.extended_asks) if claims else None,
        )
        mask = self._masks.get(key)
        if mask is None:
            mask = feasible(self.snapshot, shape)
            mask = self._masks[key] = (mask & takes_one(self.snapshot, shape) if claims else mask)[self.order]
        return mask

    def free(self, resource: str) -> Int64s:
        """Return free amounts by position; pod slots are negative for removed nodes and non-targets."""
        return self._free[resource]

    def is_restricted(self, number: int) -> bool:
        """Whether topology or devices restrict where a shape may go, besides labels and amounts."""
        asked = self._asked[number]
        return asked.restricted or _takes_devices(asked)

    def counts(self, number: int) -> bool:
        """Whether topology restricts where a pod of the shape goes, or counts it where it is."""
        asked = self._asked[number]
        return asked.rules is not None and (asked.restricted or asked.tells)

    def admits(self, number: int) -> Bools:
        """Return by position whether labels, taints, volumes and ports admit the shape."""
        return self._asked[number].admitted

    def is_full(self, number: int) -> bool:
        """Whether no node takes one more pod of the shape, now or before the next `rewind`."""
        asked = self._asked[number]
        return asked.cursor >= len(self.order) and not _goes_one_by_one(asked)

    # Trial and undo

    def mark(self) -> int:
        return len(self._log)

    def undo(self, mark: int) -> None:
        self._take_back(self._log, mark)

    def _take_back(self, log: list[_Step], mark: int) -> None:
        while len(log) > mark:
            step = log.pop()
            if step.zone is not None and step.asked is not None:
                self._count_in_zone(step.asked, step.zone, -step.pods)
            elif step.asked is None:
                self.slots[step.position] += _GONE
                self._shift_pods(self._removed.pop().row, 1)
            else:
                self._charge(step.asked, step.position, -step.pods)
                for taken in reversed(step.devices):
                    self._give_back(taken, step.position)
                if step.before is not None:
                    self._claims.state = step.before
                if step.asked.shape.host_ports:
                    self._ports[step.position] -= step.asked.shape.host_ports

    def commit(self) -> None:
        """Keep the steps so far until `rewind`."""
        self._kept += self._log
        self._log.clear()

    def save(self) -> RelocationMark:
        """Return a point to `rewind` to. Uncommitted steps are lost then."""
        return RelocationMark(
            len(self._kept), {number: asked.cursor for number, asked in self._asked.items()}
        )

    def rewind(self, saved: RelocationMark) -> None:
        self.undo(0)
        self._take_back(self._kept, saved.kept)
        for number, cursor in saved.cursors.items():
            self._asked[number].cursor = cursor

    def remove(self, row: int, drained_slowly: Iterable[int] = ()) -> None:
        """Close the node: it takes no more pods, and its own pods no longer count.

        For the shapes `drained_slowly`, whose pods are placed while the node still exists, it remains a
        domain without pods: kube-scheduler also spreads over cordoned nodes.
        """
        position = int(self.position_of[row])
        self.slots[position] -= _GONE
        self._removals += 1
        stays_for = frozenset(group for shape in drained_slowly for group in self._spread_over_all(shape))
        self._removed.append(RowRemoval(self._removals, row, stays_for))
        self._shift_pods(row, -1)
        self._log.append(_Step(position, None, 0))

    def _spread_over_all(self, number: int) -> Iterable[int]:
        """Return the groups of the shape's spread constraints that include tainted nodes."""
        rules = self._asked[number].rules
        for rule in rules.own if rules is not None else ():
            if isinstance(rule, SpreadRule) and (
                rule.group.eligible is None or rule.group.eligible.tolerations is None
            ):
                yield id(rule.group)

    def _shift_pods(self, row: int, sign: int) -> None:
        if self._topology is None:
            return
        counted = self._counted.get(row)
        if counted is None:
            pods = Counter(self.snapshot.pods_on(row).values())
            asked = ((self._asked.get(number), count) for number, count in pods.items())
            counted = [
                (shape.rules, count)
                for shape, count in asked
                if shape is not None and shape.rules is not None and shape.tells
            ]
            self._counted[row] = counted
        for rules, count in counted:
            self._topology.shift(rules, row, sign * count)

    def withdraw(self, number: int, row: int, pods: int) -> None:
        """Take pods off a node that they were placed on, because it is about to be removed."""
        self._put(self._asked[number], int(self.position_of[row]), -pods)

    # New nodes

    def new_node_takes(self, pods: Mapping[int, int]) -> bool | None:
        """Whether topology lets these pods share a new node, zones aside; None: not evaluated."""
        return host_takes(self._rules_of(pods))

    def open_zones(self, pods: Mapping[int, int]) -> frozenset[str] | None:
        """Return the zones in which new nodes may take these pods; None: all zones."""
        chosen = self._rules_of(pods)
        for rules in chosen:
            self._follow(rules)
        return open_zones(chosen).zones

    def _rules_of(self, pods: Mapping[int, int]) -> dict[ShapeRules, int]:
        """Return the rules of the pods that topology restricts or counts."""
        rules: dict[ShapeRules, int] = {}
        for number, count in pods.items():
            asked = self._asked[number]
            if asked.rules is not None and (asked.restricted or asked.tells):
                rules[asked.rules] = rules.get(asked.rules, 0) + count
        return rules

    def add_new(self, pods: Mapping[int, int], zone: str) -> None:
        """Count the pods of a new node in its zone from now on."""
        if self._topology is None:
            return
        code = self._topology.axis(ZONE).find(zone)
        for number, count in pods.items() if code is not None else ():
            asked = self._asked[number]
            if asked.tells:
                assert code is not None
                self._count_in_zone(asked, code, count)
                self._log.append(_Step(len(self.order), asked, count, (), code))

    @property
    def expects_new(self) -> bool:
        """Whether pods of new nodes were counted since the last commit."""
        return any(step.zone is not None for step in self._log)

    def _count_in_zone(self, asked: _Asked, zone: int, pods: int) -> None:
        assert self._topology is not None and asked.rules is not None
        self._topology.place_planned(
            asked.rules, lambda axis: zone if axis.key == ZONE else NOWHERE, lambda group: True, pods
        )

    def place(self, number: int, pods: int) -> list[Placed]:
        """Place up to this many pods of a shape; return where they went, fewer if the room ends."""
        asked = self._asked[number]
        if _goes_one_by_one(asked):
            return self._place_one_by_one(asked, pods)
        placed: list[Placed] = []
        start = asked.cursor
        while pods:
            position = self._first(asked, start)
            if position is None:
                position = len(self.order)
            if start == asked.cursor:
                self._advance(asked, position)
            if position == len(self.order):
                break
            taken = pods
            for column, units in asked.columns:
                fit = int(column[position]) // units
                if fit < taken:  # noqa: PLR1730 - calling min() here costs
                    taken = fit
            self._put(asked, position, taken)
            placed.append((int(self.order[position]), taken))
            pods -= taken
            start = position + (pods > 0)
        return placed

    def put(self, number: int, row: int, pods: int) -> bool:
        """Place pods of a shape on one node if labels and resources allow it; topology is not checked."""
        asked, position = self._asked[number], int(self.position_of[row])
        fits = all(int(column[position]) >= units * pods for column, units in asked.columns)
        if not fits or not asked.admitted[position]:
            return False
        demand = asked.shape.devices
        if demand is not None and (self._devices is None or self._devices.room_on(row, demand) < pods):
            return False
        ports = asked.shape.host_ports
        if ports:
            held = self._ports.setdefault(position, set())
            if pods > 1 or ports_conflict(held, ports):
                return False
        before = self._claims.state
        if asked.claims and not self._claims.take(row, asked.shape, pods):
            return False
        if ports:
            self._ports[position] |= ports
        self._put(asked, position, pods, before if asked.claims else None)
        return True

    def allows(self, number: int, row: int) -> bool:
        """Whether topology lets one more pod of a shape onto a node."""
        asked = self._asked[number]
        allowed = self._allowed(asked) if asked.restricted else None
        return allowed is None or bool(allowed[row])

    def _first(self, asked: _Asked, start: int) -> int | None:
        """Return the first position from `start` on that takes one more pod."""
        size, block = len(self.order), _BLOCK
        while start < size:
            end = min(start + block, size)
            mask = asked.admitted[start:end].copy()
            for column, units in asked.columns:
                mask &= column[start:end] >= units
            hit = int(mask.argmax())
            if mask[hit]:
                return start + hit
            start, block = end, block * 4
        return None

    def _advance(self, asked: _Asked, position: int) -> None:
        """Move the cursor to `position`, but not past nodes that only this trial filled or removed."""
        for step in self._log:
            if step.position < position and (step.asked is not None or self._had_room(asked, step.position)):
                position = step.position
        asked.cursor = max(asked.cursor, position)

    def _had_room(self, asked: _Asked, position: int) -> bool:
        """Whether a removed node would take a pod of the shape if it still existed."""
        if not asked.admitted[position]:
            return False
        back = _GONE if self.slots[position] < 0 else 0
        return all(
            column[position] + (back if column is self.slots else 0) >= units
            for column, units in asked.columns
        )

    def _place_one_by_one(self, asked: _Asked, pods: int) -> list[Placed]:
        placed: list[Placed] = []
        for _ in range(pods):
            mask = asked.admitted.copy()
            for column, units in asked.columns:
                mask &= column >= units
            if asked.restricted:
                allowed = self._allowed(asked)
                if allowed is not None:
                    mask &= allowed[self.order]
            if asked.shape.devices is not None:
                if self._devices is None:
                    break
                mask &= self._devices.room(asked.shape.devices, len(self.order))[self.order] > 0
            ports = asked.shape.host_ports
            for position, held in self._ports.items() if ports else ():
                mask[position] = mask[position] and not ports_conflict(held, ports)
            before = self._claims.state
            chosen = self._first_taking(asked, mask)
            if chosen is None:
                break
            self._put(asked, chosen, 1, before if asked.claims else None)
            if ports:
                self._ports.setdefault(chosen, set()).update(ports)
            placed.append((int(self.order[chosen]), 1))
        return placed

    def _first_taking(self, asked: _Asked, mask: Bools) -> int | None:
        """Return the first of these positions that takes the pod; allocate the DRA devices that it needs."""
        if asked.claims:
            positions: list[int] = np.flatnonzero(mask).tolist()
            takes = (at for at in positions if self._claims.take(int(self.order[at]), asked.shape))
            return next(takes, None)
        first = int(mask.argmax()) if len(mask) else 0
        return first if len(mask) and mask[first] else None

    def _allowed(self, asked: _Asked) -> Bools | None:
        assert self._topology is not None and asked.rules is not None
        self._follow(asked.rules)
        return self._topology.allowed(asked.shape)

    def _follow(self, rules: ShapeRules) -> None:
        """Remove the domains of removed nodes."""
        for rule in rules.own:
            if isinstance(rule, SpreadRule):
                group = rule.group
                presence = self._presence.get(id(group))
                if presence is None:
                    presence = self._presence[id(group)] = DomainPresence(group)
                presence.follow(self._removed)

    def _put(self, asked: _Asked, position: int, pods: int, before: DraState | None = None) -> None:
        """Place pods on a position. `before` is the DRA state before these pods took devices."""
        self._charge(asked, position, pods)
        devices = self._take_devices(asked.shape, position, pods) if self._devices is not None else ()
        self._log.append(_Step(position, asked, pods, devices, None, before))

    def _take_devices(self, shape: PodShape, position: int, pods: int) -> tuple[DevicesTaken, ...]:
        assert self._devices is not None
        row = int(self.order[position])
        if shape.devices is None:
            return tuple(self._devices.close_for(row, shape.requests, pods))
        steps = []
        for _ in range(pods):
            taken = self._devices.take(row, shape.devices)
            if taken is not None:
                steps.append(taken)
                self._shift_plugins(taken, position, -1)
        return tuple(steps)

    def _give_back(self, taken: DevicesTaken, position: int) -> None:
        assert self._devices is not None
        self._devices.undo(taken)
        self._shift_plugins(taken, position, 1)

    def _shift_plugins(self, taken: DevicesTaken, position: int, sign: int) -> None:
        """Adjust the plugin's free units: a device with shares on it is no longer a whole unit."""
        for resource, units in taken.of_plugin.items():
            if resource in self._free:
                self._free[resource][position] += sign * units

    def _charge(self, asked: _Asked, position: int, pods: int) -> None:
        for column, units in asked.columns:
            column[position] -= units * pods
        if asked.tells and asked.rules is not None and self._topology is not None:
            self._topology.shift(asked.rules, int(self.order[position]), pods)
