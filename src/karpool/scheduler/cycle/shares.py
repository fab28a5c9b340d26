"""What each target of a binding shall have: replicas, or sets of components."""

from collections.abc import Iterable

from karpool.model.karmada.binding import Binding, TargetCluster
from karpool.scheduler.cycle.components import is_divided
from karpool.scheduler.promises.promise import Amounts, WorkloadRequirements


def wanted_of(binding: Binding) -> WorkloadRequirements:
    if not binding.components or is_divided(binding):
        return WorkloadRequirements((binding.template.name,), (binding.requirements,))
    components = binding.components
    return WorkloadRequirements(
        tuple(component.name for component in components), tuple(each.requirements for each in components)
    )


def desired_of(binding: Binding, targets: Iterable[TargetCluster]) -> dict[str, Amounts]:
    """How many replicas each target shall have, of each component; targets without any are left out."""
    desired: dict[str, Amounts] = {}
    for target in targets:
        if target.name in desired:
            continue  # the first entry of a name counts
        if not binding.components or is_divided(binding):
            desired[target.name] = (target.replicas,)
        else:
            own = {component.name: component.replicas for component in target.components}
            desired[target.name] = tuple(own.get(each.name, each.replicas) for each in binding.components)
    return {name: amounts for name, amounts in desired.items() if any(amounts)}
