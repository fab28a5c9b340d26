"""Why a pod does not fit, with the number of nodes per reason.

Each node is counted under the first check that it fails, in the order of kube-scheduler's plugins, so that
the counts add up to the nodes that are ruled out; or, on request, under every check that it fails.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from karpool.model.infeasible import Infeasible, Reason
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.model.resources import ATTACHED_VOLUMES, show_amount
from karpool.model.taints import UNSCHEDULABLE, Taint, untolerated
from karpool.packing.claim_room import asks_drivers, claim_room, free_beside_drivers, why_not
from karpool.packing.counting.count import in_play
from karpool.packing.device_room import device_room
from karpool.packing.feasibility import has_label, matches_terms, ports_free
from karpool.packing.tables.columns import Bools
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import SPREAD, SPREAD_LABEL
from karpool.packing.topology.topology import Topology

_LISTED = 8
_EXPLAINED = 64  # limits the nodes that are searched one by one for the reason of a failed claim
INSUFFICIENT = "insufficient "  # prefix of the text about a resource that does not suffice
CLAIMS_UNKNOWN = "cannot tell: resource claims"


class FitReason(Reason):
    """Why a node takes no pod, named after kube-scheduler's plugins, or why a pool launches no node."""

    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    TAINT_TOLERATION = "TaintToleration"
    NODE_AFFINITY = "NodeAffinity"
    NODE_PORTS = "NodePorts"
    NODE_RESOURCES_FIT = "NodeResourcesFit"
    VOLUME_BINDING = "VolumeBinding"
    POD_TOPOLOGY_SPREAD = "PodTopologySpread"
    INTER_POD_AFFINITY = "InterPodAffinity"
    DYNAMIC_RESOURCES = "DynamicResources"

    POOL_UNUSABLE = "pool"
    POOL_TAINT = "taint"
    POOL_REQUIREMENT = "requirement"
    STOCK = "stock"  # STOCK and LIMIT may pass without a change of the pod
    RESOURCES = "resources"
    LIMIT = "limit"
    HOST_PORTS = "host ports"
    TOPOLOGY = "topology"
    MIN_VALUES = "minValues"


def show_count(infeasible: Infeasible[FitReason]) -> str:
    """Return the reason with the number of nodes that it rules out."""
    return f"{infeasible.count} node{'' if infeasible.count == 1 else 's'}: {infeasible.detail}"


@dataclass(frozen=True, slots=True)
class _Cause:
    reason: FitReason
    detail: str | Callable[[Bools], str]  # the nodes counted under it
    nodes: Bools
    resolvable: bool | Callable[[Bools], bool] = False


def explain_nodes(
    snapshot: Room, shape: PodShape, *, all_causes: bool = False
) -> list[Infeasible[FitReason]]:
    """Return every reason why a node takes no more pods of this shape; empty if all nodes take one."""
    open_nodes = np.ones(snapshot.n, dtype=np.bool_)
    causes: list[Infeasible[FitReason]] = []
    for check in (_taints, _selector, _affinity, _ports, _room, _devices, _volumes, _claims, _topology):
        for cause in check(snapshot, shape):
            nodes = cause.nodes & open_nodes
            if not nodes.any():
                continue
            detail = cause.detail if isinstance(cause.detail, str) else cause.detail(nodes)
            resolvable = cause.resolvable if isinstance(cause.resolvable, bool) else cause.resolvable(nodes)
            causes.append(Infeasible(cause.reason, detail, count=int(nodes.sum()), resolvable=resolvable))
            if not all_causes:
                open_nodes &= ~nodes
    return _merged(causes)


def _merged(refusals: Iterable[Infeasible[FitReason]]) -> list[Infeasible[FitReason]]:
    """Merge reasons with the same text: several constraints may have the same wording."""
    counts: dict[Infeasible[FitReason], int] = {}
    for infeasible in refusals:
        key = structs.replace(infeasible, count=0)
        counts[key] = counts.get(key, 0) + infeasible.count
    return [structs.replace(infeasible, count=count) for infeasible, count in counts.items()]


def _taints(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    by_taint: dict[Taint, list[int]] = {}
    for code, taints in enumerate(snapshot.taint_sets):
        taint = untolerated(taints, shape.tolerations)
        if taint is not None:
            by_taint.setdefault(taint, []).append(code)
    # The taint of a cordoned node comes first, because its plugin runs first.
    for taint in sorted(by_taint, key=lambda taint: taint != UNSCHEDULABLE):
        nodes = np.isin(snapshot.taint_codes, by_taint[taint])
        if taint == UNSCHEDULABLE:
            yield _Cause(FitReason.NODE_UNSCHEDULABLE, "cordoned", nodes)
        else:
            yield _Cause(FitReason.TAINT_TOLERATION, f"untolerated taint {taint}", nodes)


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
        yield _Cause(FitReason.NODE_AFFINITY, reason, ~matches_terms(snapshot.nodes, shape.node_terms))
        return
    (term,) = shape.node_terms
    for key, value_set in term.labels:
        yield _label(snapshot, key, value_set)
    for key, value_set in term.fields:
        nodes = ~matches_terms(snapshot.nodes, (NodeTerm(fields=((key, value_set),)),))
        yield _Cause(FitReason.NODE_AFFINITY, f"{key} {_refused(value_set)}", nodes)


def _label(snapshot: Room, key: str, value_set: ValueSet) -> _Cause:
    having = has_label(snapshot.nodes, key, value_set)
    reason = f"label {key} {_refused(value_set)}" if having.any() else f"no node {_sought(key, value_set)}"
    return _Cause(FitReason.NODE_AFFINITY, reason, ~having)


def _refused(value_set: ValueSet) -> str:
    """Describe a value that the set does not admit."""
    match value_set.operator:
        case "In":
            return f"is not in ({_listed(value_set)})"
        case "NotIn":
            return f"is in ({_listed(value_set)})"
        case "Exists":
            return "is missing"
        case "DoesNotExist":
            return "is present"
    return f"is not {value_set}"


def _sought(key: str, value_set: ValueSet) -> str:
    """Describe what no node has."""
    match value_set.operator:
        case "In":
            return f"has label {key} in ({_listed(value_set)})"
        case "NotIn":
            return f"has label {key} outside ({_listed(value_set)})"
        case "Exists":
            return f"has label {key}"
        case "DoesNotExist":
            return f"is without label {key}"
    return f"has label {key} {value_set}"


def _listed(value_set: ValueSet) -> str:
    return ", ".join(sorted(value_set.values)[:_LISTED]) + (
        ", ..." if len(value_set.values) > _LISTED else ""
    )


def _ports(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    if shape.host_ports:
        ports = ", ".join(sorted(f"{port}/{protocol}" for _, protocol, port in shape.host_ports))
        yield _Cause(FitReason.NODE_PORTS, f"host port {ports} is taken", ~ports_free(snapshot, shape), True)


def _room(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    offers_pods = snapshot.allocatable("pods")
    yield _Cause(
        FitReason.NODE_RESOURCES_FIT,
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
    yield _Cause(FitReason.NODE_RESOURCES_FIT, f"no device for {demand}", short & ~suited)
    yield _Cause(FitReason.NODE_RESOURCES_FIT, f"devices are taken (asked {demand})", short & suited, True)


def _short_of(snapshot: Room, resource: str, units: int) -> _Cause:
    free, offered = free_beside_drivers(snapshot, resource), snapshot.allocatable(resource)

    def reason(nodes: Bools) -> str:
        if resource.startswith(ATTACHED_VOLUMES):
            driver = resource.removeprefix(ATTACHED_VOLUMES)
            most = int(free[nodes].max())
            return f"too many volumes of {driver} are attached (room for {most}, asked {units})"
        largest = show_amount(resource, int(free[nodes].max()))
        return f"{INSUFFICIENT}{resource} (largest free {largest}, asked {show_amount(resource, units)})"

    return _Cause(
        FitReason.NODE_RESOURCES_FIT,
        reason,
        free < units,
        lambda nodes: bool((offered[nodes] >= units).any()),
    )


def _volumes(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    for alternatives in shape.volume_terms:
        nodes = ~matches_terms(snapshot.nodes, alternatives)
        if alternatives:
            yield _Cause(FitReason.VOLUME_BINDING, "a volume cannot be used there", nodes)
        else:
            yield _Cause(FitReason.VOLUME_BINDING, "a volume claim of the pod is not ready", nodes)


def _claims(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    if not asks_drivers(snapshot, shape):
        return
    short = claim_room(snapshot, shape) < 1
    by_reason: dict[str, list[int]] = {}
    for row in np.flatnonzero(short)[:_EXPLAINED].tolist():
        outcome = why_not(snapshot, shape, row)
        reason = CLAIMS_UNKNOWN if outcome is None else outcome.reason or "devices are taken"
        by_reason.setdefault(reason, []).append(row)
    for reason, rows in by_reason.items():
        nodes = np.zeros(snapshot.n, dtype=np.bool_)
        nodes[rows] = True
        yield _Cause(FitReason.DYNAMIC_RESOURCES, reason, nodes, True)
    yield _Cause(FitReason.DYNAMIC_RESOURCES, "no device for its resource claims", short, True)


def _topology(snapshot: Room, shape: PodShape) -> Iterator[_Cause]:
    if not in_play(snapshot, shape):
        return
    for detail, nodes in Topology(snapshot).refusals(shape):
        spread = detail in (SPREAD, SPREAD_LABEL)
        reason = FitReason.POD_TOPOLOGY_SPREAD if spread else FitReason.INTER_POD_AFFINITY
        yield _Cause(reason, detail, nodes, detail != SPREAD_LABEL)
