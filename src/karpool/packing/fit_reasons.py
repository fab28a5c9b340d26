"""Why a pod does not fit, counted per cause.

Each node is counted under the first check that it fails, in kube-scheduler's order
of plugins, so the counts add up to the nodes that are ruled out; or, on request,
under every check that it fails.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.resources import show_amount
from karpool.model.taints import UNSCHEDULABLE, Taint, untolerated
from karpool.packing.counting.count import in_play
from karpool.packing.device_room import device_room
from karpool.packing.feasibility import has_label, matches_terms, ports_free
from karpool.packing.tables.columns import Bools
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import SPREAD, SPREAD_LABEL
from karpool.packing.topology.topology import Topology

_LISTED = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    plugin: str
    reason: str
    nodes: int
    resolvable: bool  # pods are in the way, so that eviction or one more such node would help

    def __str__(self) -> str:
        return f"{self.nodes} node{'' if self.nodes == 1 else 's'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Cause:
    plugin: str
    reason: str | Callable[[Bools], str]  # of the nodes that are counted under it
    nodes: Bools
    resolvable: bool | Callable[[Bools], bool] = False


def explain_nodes(snapshot: Room, shape: PodShape, *, all_causes: bool = False) -> list[Refusal]:
    """Every reason for which a node does not take one more pod of this shape; empty when all do."""
    open_nodes = np.ones(snapshot.n, dtype=np.bool_)
    found: list[Refusal] = []
    for check in (_taints, _selector, _affinity, _ports, _room, _devices, _volumes, _topology):
        for cause in check(snapshot, shape):
            nodes = cause.nodes & open_nodes
            if not nodes.any():
                continue
            reason = cause.reason if isinstance(cause.reason, str) else cause.reason(nodes)
            resolvable = cause.resolvable if isinstance(cause.resolvable, bool) else cause.resolvable(nodes)
            found.append(Refusal(cause.plugin, reason, int(nodes.sum()), resolvable))
            if not all_causes:
                open_nodes &= ~nodes
    return _merged(found)


def _merged(refusals: Iterable[Refusal]) -> list[Refusal]:
    """One entry per reason: several constraints may be worded alike."""
    totals: dict[tuple[str, str, bool], int] = {}
    for refusal in refusals:
        key = (refusal.plugin, refusal.reason, refusal.resolvable)
        totals[key] = totals.get(key, 0) + refusal.nodes
    return [
        Refusal(plugin, reason, nodes, resolvable) for (plugin, reason, resolvable), nodes in totals.items()
    ]


def _taints(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    by_taint: dict[Taint, list[int]] = {}
    for code, taints in enumerate(snapshot.taint_sets):
        taint = untolerated(taints, shape.tolerations)
        if taint is not None:
            by_taint.setdefault(taint, []).append(code)
    # A cordoned node's own taint comes first, as that plugin does.
    for taint in sorted(by_taint, key=lambda taint: taint != UNSCHEDULABLE):
        nodes = np.isin(snapshot.taint_codes, by_taint[taint])
        if taint == UNSCHEDULABLE:
            yield _Cause("NodeUnschedulable", "cordoned", nodes)
        else:
            yield _Cause("TaintToleration", f"untolerated taint {taint}", nodes)


def _selector(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    for key, value in shape.node_selector:
        yield _label(snapshot, key, ValueSet(frozenset((value,))))


def _affinity(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    if shape.node_terms is None:
        return
    if len(shape.node_terms) != 1:
        number = len(shape.node_terms)
        reason = (
            f"matches none of {number} node affinity terms"
            if number
            else "the node affinity has no usable term"
        )
        yield _Cause("NodeAffinity", reason, ~matches_terms(snapshot.nodes, shape.node_terms))
        return
    (term,) = shape.node_terms
    for key, wanted in term.labels:
        yield _label(snapshot, key, wanted)
    for key, wanted in term.fields:
        nodes = ~matches_terms(snapshot.nodes, (NodeTerm(fields=((key, wanted),)),))
        yield _Cause("NodeAffinity", f"{key} {_refused(wanted)}", nodes)


def _label(snapshot: Room, key: str, wanted: ValueSet) -> _Cause:
    having = has_label(snapshot.nodes, key, wanted)
    reason = f"label {key} {_refused(wanted)}" if having.any() else f"no node {_sought(key, wanted)}"
    return _Cause("NodeAffinity", reason, ~having)


def _refused(wanted: ValueSet) -> str:
    """What is true of a value that is not wanted."""
    match wanted.operator:
        case "In":
            return f"is not in ({_listed(wanted)})"
        case "NotIn":
            return f"is in ({_listed(wanted)})"
        case "Exists":
            return "is missing"
        case "DoesNotExist":
            return "is present"
    return f"is not {wanted}"


def _sought(key: str, wanted: ValueSet) -> str:
    """What no node does."""
    match wanted.operator:
        case "In":
            return f"has label {key} in ({_listed(wanted)})"
        case "NotIn":
            return f"has label {key} outside ({_listed(wanted)})"
        case "Exists":
            return f"has label {key}"
        case "DoesNotExist":
            return f"is without label {key}"
    return f"has label {key} {wanted}"


def _listed(wanted: ValueSet) -> str:
    return ", ".join(sorted(wanted.values)[:_LISTED]) + (", ..." if len(wanted.values) > _LISTED else "")


def _ports(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    if shape.host_ports:
        ports = ", ".join(sorted(f"{port}/{protocol}" for _, protocol, port in shape.host_ports))
        yield _Cause("NodePorts", f"host port {ports} is taken", ~ports_free(snapshot, shape), True)


def _room(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    offers_pods = snapshot.allocatable("pods")
    yield _Cause(
        "NodeResourcesFit",
        "no free pod slot",
        snapshot.slots < 1,
        lambda nodes: bool(offers_pods[nodes].any()),
    )
    for resource, units in shape.requests:
        yield _short_of(snapshot, resource, units)


def _devices(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    demand = shape.devices
    if demand is None:
        return
    short = device_room(snapshot, demand) < 1
    table = snapshot.devices
    suited = np.zeros(snapshot.n, dtype=np.bool_)
    if table is not None:
        suited[table.node[table.admitted(demand)]] = True
    yield _Cause("NodeResourcesFit", f"no device for {demand}", short & ~suited)
    yield _Cause("NodeResourcesFit", f"devices are taken (asked {demand})", short & suited, True)


def _short_of(snapshot: Room, resource: str, units: int) -> _Cause:
    free, offered = snapshot.free(resource), snapshot.allocatable(resource)

    def reason(nodes: Bools) -> str:
        largest = show_amount(resource, int(free[nodes].max()))
        return f"insufficient {resource} (largest free {largest}, asked {show_amount(resource, units)})"

    return _Cause(
        "NodeResourcesFit", reason, free < units, lambda nodes: bool((offered[nodes] >= units).any())
    )


def _volumes(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    for alternatives in shape.volume_terms:
        nodes = ~matches_terms(snapshot.nodes, alternatives)
        if alternatives:
            yield _Cause("VolumeBinding", "a volume cannot be used there", nodes)
        else:
            yield _Cause("VolumeBinding", "a volume claim of the pod is not ready", nodes)


def _topology(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    if not in_play(snapshot, shape):
        return
    for reason, nodes in Topology(snapshot).refusals(shape):
        plugin = "PodTopologySpread" if reason in (SPREAD, SPREAD_LABEL) else "InterPodAffinity"
        yield _Cause(plugin, reason, nodes, reason != SPREAD_LABEL)
