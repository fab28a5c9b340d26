"""A cluster as sums, as Karmada's `resourceSummary` has them, and what could be launched beside it.

A scheduler that divides sums must never find less than an estimate says, so what is free is added up node
by node and what could be launched is a ceiling. Pods that wait are not deducted: estimates do that, exactly.
"""

from collections.abc import Iterable

from karpool.cluster.snapshot import Snapshot
from karpool.estimator.plugins.interface import EstimatorPlugin
from karpool.estimator.plugins.node_autoscaler import HasCeiling
from karpool.model.quantity import INT64_MAX
from karpool.model.resources import ATTACHED_VOLUMES, PODS, Resources, add
from karpool.wire.proto.summary_pb2 import SummarizeResponse


def summarize(snapshot: Snapshot, plugins: Iterable[EstimatorPlugin]) -> SummarizeResponse:
    room = snapshot.room
    allocatable: Resources = {}
    allocated: Resources = {}
    for name in (*room.resources, PODS):
        if name.startswith(ATTACHED_VOLUMES):
            continue  # nobody asks Karmada for these
        free, held = int(room.free(name).sum()), int(room.allocatable(name).sum())
        allocatable[name] = max(held, free)
        allocated[name] = allocatable[name] - free
    potential: Resources = {}
    for plugin in plugins:
        if isinstance(plugin, HasCeiling):
            add(potential, plugin.ceiling(snapshot))
    return SummarizeResponse(
        allocatable=_bounded(allocatable), allocated=_bounded(allocated), potential=_bounded(potential)
    )


def _bounded(amounts: Resources) -> Resources:
    return {name: min(units, INT64_MAX) for name, units in amounts.items()}
