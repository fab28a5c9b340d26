"""The ladder in the plainest words, to be compared with: one offering at a time, no columns."""

from collections.abc import Iterator
from itertools import product

from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, CompiledPool
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.requirements import Requirements, ValueSet
from karpool.model.taints import HARD_EFFECTS, Toleration
from karpool.provisioning.candidates.ladder import CandidateQuery

Node = dict[str, str]


def nodes_of(pool: CompiledPool, type_: InstanceType, offering: Offering) -> Iterator[Node]:
    """The labels that a node of this offering could have; keys that nothing decides are left out."""
    labels = {NODEPOOL: pool.name, INSTANCE_TYPE: type_.name}
    labels |= {ZONE: offering.zone, CAPACITY_TYPE: offering.capacity_type}
    open_: list[list[tuple[str, str]]] = []
    for key, wanted in {**pool.requirements, **type_.requirements}.items():
        if key in labels:
            continue
        if not wanted.complement and wanted.values:
            open_.append([(key, value) for value in sorted(wanted.values)])
    for chosen in product(*open_):
        yield labels | dict(chosen)


def matches(node: Node, wanted: Requirements) -> bool:
    return all(values.admits(node.get(key)) for key, values in wanted.items())


def launchable(
    wish: CandidateQuery, pool: CompiledPool, catalogue: Catalogue, wanted: Requirements
) -> set[str]:
    """Names of the types that the pool may launch for one conjunction of requirements."""
    if pool.is_static or pool.deleting or not pool.ready:
        return set()
    for taint in pool.taints:
        usual = Toleration(key=taint.key, operator="Exists") if taint.key in wish.resources else None
        tolerations = [*wish.tolerations, *([usual] if usual else [])]
        if taint.effect in HARD_EFFECTS and not any(
            toleration.tolerates(taint) for toleration in tolerations
        ):
            return set()
    if any(most < wish.resources.get(name, 0) for name, most in pool.limits.items()):
        return set()
    found = set()
    for type_ in catalogue.types.values():
        needed = {
            name: wish.resources.get(name, 0) + wish.overhead.get(name, 0)
            for name in {*wish.resources, *wish.overhead}
        }
        if any(type_.allocatable.get(name, 0) < units for name, units in needed.items()):
            continue
        for offering in type_.offerings:
            for node in nodes_of(pool, type_, offering):
                if matches(node, pool.requirements) and matches(node, wanted):
                    found.add(type_.name)
    return found


def only(*values: str) -> ValueSet:
    return ValueSet(frozenset(values))
