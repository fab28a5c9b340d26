"""Finds unneeded nodes: utilization is low and all their pods fit elsewhere. Pure.

Nodes are checked one after another; the room that the pods of one node would use is taken for the next, so
that all unneeded nodes can be removed together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb, blocking_budget, is_daemon, is_mirror
from karpool.model.resources import CPU, GPU, MEMORY
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool.packing.tables.room import PodPlacement, Room
from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
SYSTEM = "kube-system"

Budgets = Callable[[str], Iterable[CompiledPdb]]  # takes a namespace


def utilization(snapshot: Room) -> npt.NDArray[np.float64]:
    """Return the larger utilization of cpu and memory; on nodes with GPUs, that of the GPUs alone."""

    def used(resource: str) -> npt.NDArray[np.float64]:
        offered, free = snapshot.allocatable(resource), snapshot.free(resource)
        return np.where(offered > 0, (offered - free) / np.maximum(offered, 1), 0.0)

    plain = np.maximum(used(CPU), used(MEMORY))
    return np.where(snapshot.allocatable(GPU) > 0, used(GPU), plain)


def moves(pod: Pod) -> bool:
    """Whether the pod needs another node when its node is removed."""
    return not (is_daemon(pod) or is_mirror(pod) or pod.is_terminal or pod.is_terminating)


def keeps_node(pod: Pod, budgets: Budgets) -> str | None:
    """Return why this pod keeps its node, or None."""
    wish = pod.annotations.get(SAFE_TO_EVICT, "")
    if wish == "false":
        return f"is annotated {SAFE_TO_EVICT}: false"
    if wish != "true":
        owners = pod.metadata.owner_references or ()
        if not any(owner.controller for owner in owners):
            return "has no controller that would replace it"
        if name := _local_volume(pod):
            return f"has local storage, volume {name}"
        in_system = pod.metadata.namespace == SYSTEM
        if in_system and not any(budget.selects(pod) for budget in budgets(SYSTEM)):
            return "is a system pod without a disruption budget"
    return blocking_budget(pod, budgets(pod.metadata.namespace))


def _local_volume(pod: Pod) -> str | None:
    safe = pod.annotations.get(SAFE_LOCAL_VOLUMES, "").split(",")
    for volume in pod.spec.volumes or ():
        on_disk = volume.empty_dir is not None and volume.empty_dir.get("medium") != "Memory"
        if (on_disk or volume.host_path is not None) and volume.name not in safe:
            return volume.name
    return None


@dataclass
class Unneeded:
    """Unneeded nodes with the names of the pods that would move, and why others stay.

    `crowded` are other nodes whose pods may move and fit nowhere else.
    """

    pods: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    crowded: list[str] = field(default_factory=list)


def find_unneeded(
    snapshot: Room,
    candidates: Sequence[Node],
    pods_on: Callable[[str], Mapping[str, Pod]],
    budgets: Budgets,
    *,
    catalogue: Catalogue,
    settings: AutoscalerSettings,
) -> Unneeded:
    """Find unneeded nodes. `candidates` are tried in order; pods are named `namespace/name`."""
    unneeded = Unneeded()
    used = dict(zip(snapshot.names, utilization(snapshot).tolist(), strict=True))
    left, tried = snapshot, 0
    for node in candidates:
        movers = {name: pod for name, pod in pods_on(node.name).items() if moves(pod)}
        if reason := _stays(node, movers, used, budgets, settings):
            unneeded.kept[node.name] = reason
            continue
        if movers:
            tried += 1
            if tried > settings.non_empty_candidates_count:
                break
        after = _without(left, node.name, movers, catalogue)
        if isinstance(after, str):
            unneeded.kept[node.name] = f"pod {after} has no other place"
            unneeded.crowded.append(node.name)
        else:
            left = after
            unneeded.pods[node.name] = tuple(movers)
    return unneeded


def _stays(
    node: Node,
    movers: Mapping[str, Pod],
    used: Mapping[str, float],
    budgets: Budgets,
    settings: AutoscalerSettings,
) -> str | None:
    if node.annotations.get(SCALE_DOWN_DISABLED) == "true":
        return f"is annotated {SCALE_DOWN_DISABLED}"
    if node.name not in used:
        return "its resources cannot be read"
    if movers and used[node.name] >= settings.utilization_threshold:
        return f"is used to {used[node.name]:.0%}"
    for name, pod in movers.items():
        if reason := keeps_node(pod, budgets):
            return f"pod {name} {reason}"
    return None


def _without(snapshot: Room, node: str, movers: Mapping[str, Pod], catalogue: Catalogue) -> Room | str:
    """Return the cluster without this node, with its pods elsewhere; or the pod that fits nowhere."""
    row = snapshot.find(node)
    assert row is not None
    shapes = {name: snapshot.shapes[code] for name, code in snapshot.pods_on(row).items() if name in movers}
    rest = snapshot.without((node,))
    packing = pack_new_nodes(
        rest,
        [
            PendingPod(name, shape, movers[name].metadata.creation_timestamp or "", movers[name].metadata.uid)
            for name, shape in shapes.items()
        ],
        (),
        catalogue,
    )
    if packing.left:
        return packing.left[0].pod
    placements = []
    for name, target in packing.placed.items():
        position = rest.find(target)
        assert position is not None
        placements.append(PodPlacement(position, shapes[name]))
    return rest.minus(placements)
