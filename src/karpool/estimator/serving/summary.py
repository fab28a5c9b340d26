"""A cluster as sums, as in Karmada's `resourceSummary`, and what could be launched in addition.

A scheduler that divides sums must never find less than an estimate says, so free amounts are added up node by
node and launchable amounts are an upper bound. Pending pods are not deducted: estimates do that, exactly.
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
            continue  # Karmada is not asked for these
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
