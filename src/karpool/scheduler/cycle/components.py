"""Converts replicas and components of a binding into its result.

Replicas are divided. Workloads of several pod templates go as a complete set to one cluster. Anything else
only has target clusters.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from karpool.model.karmada.binding import Binding, TargetCluster, TargetComponent
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.promises.promise import Amounts, WorkloadRequirements


def places_sets(binding: Binding, settings: SchedulingSettings) -> bool:
    """Whether complete sets are counted and placed; otherwise components are ignored."""
    return bool(
        settings.multiple_pod_templates and binding.components and binding.placement.wants_one_cluster
    )


def is_divided(binding: Binding) -> bool:
    """Whether replicas are divided; plain resources and component workloads only have target clusters."""
    return (binding.replicas > 0 or binding.requirements is not None) and len(binding.components) <= 1


def targets_for(
    binding: Binding, settings: SchedulingSettings, replicas: Mapping[str, int], chosen: Sequence[str]
) -> tuple[TargetCluster, ...]:
    """The targets in the order of the current result, then by name: an unchanged result is an
    unchanged list.
    """
    if is_divided(binding):
        targets = {name: TargetCluster(name, count) for name, count in replicas.items() if count}
        if settings.propagate_empty:
            targets.update((name, TargetCluster(name)) for name in chosen if name not in targets)
    else:
        targets = {cluster.name: cluster for cluster in _whole_targets(chosen, binding, settings)}
    before: dict[str, int] = {}
    for place, target in enumerate(binding.targets):
        before.setdefault(target.name, place)
    last = len(binding.targets)
    return tuple(targets[name] for name in sorted(targets, key=lambda name: (before.get(name, last), name)))


def _whole_targets(
    names: Iterable[str], binding: Binding, settings: SchedulingSettings
) -> list[TargetCluster]:
    """Targets without replicas; those of a set list their components."""
    parts: tuple[TargetComponent, ...] = ()
    if places_sets(binding, settings) and len(binding.components) > 1:
        parts = tuple(TargetComponent(component.name, component.replicas) for component in binding.components)
    return [TargetCluster(name, 0, parts) for name in names]


def workload_of(binding: Binding) -> WorkloadRequirements:
    if not binding.components or is_divided(binding):
        return WorkloadRequirements((binding.template.name,), (binding.requirements,))
    components = binding.components
    return WorkloadRequirements(
        tuple(component.name for component in components),
        tuple(component.requirements for component in components),
    )


def desired_of(binding: Binding, targets: Iterable[TargetCluster]) -> dict[str, Amounts]:
    """Desired replicas of each component by target; targets without any are left out."""
    desired: dict[str, Amounts] = {}
    for target in targets:
        if target.name in desired:
            continue  # the first entry of a name counts
        if not binding.components or is_divided(binding):
            desired[target.name] = _one(target.replicas)
        else:
            replicas_by_component = {component.name: component.replicas for component in target.components}
            desired[target.name] = tuple(
                replicas_by_component.get(component.name, component.replicas)
                for component in binding.components
            )
    return {name: amounts for name, amounts in desired.items() if any(amounts)}


@lru_cache(1024)
def _one(replicas: int) -> Amounts:
    """The amounts of a single component; cached, because there are thousands and most are equal."""
    return (replicas,)
