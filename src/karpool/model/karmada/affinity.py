"""Matches clusters with an affinity: of placements, static weights, or override targets.

`matcher` compiles an affinity once; an unreadable part matches nothing, as upstream. Use `check` to report
that to a person.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Labels, LabelSelector, SelectorRequirement, Wire
from karpool.model.labels import LabelMatcher, LabelRequirement, requirement

ZONE = "zone"


class AffinitySubject(Protocol):
    """The fields of a cluster that an affinity reads."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Labels: ...
    @property
    def provider(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def zones(self) -> Sequence[str]: ...


class FieldSelector(Wire, frozen=True):
    match_expressions: list[SelectorRequirement] | None = None


class ClusterAffinity(Wire, frozen=True):
    label_selector: LabelSelector | None = None
    field_selector: FieldSelector | None = None
    cluster_names: list[str] | None = None
    exclude: list[str] | None = None

    def check(self, path: str) -> None:
        """Raise Invalid for a selector that cannot be read and so matches nothing."""
        try:
            if self.label_selector is not None:
                self.label_selector.compile()
        except Invalid as error:
            raise error.at(f"{path}.labelSelector") from None
        for index, entry in enumerate(_expressions(self.field_selector)):
            try:
                _field_requirement(entry)
            except Invalid as error:
                raise error.at(f"{path}.fieldSelector.matchExpressions[{index}]") from None


Matcher = Callable[[AffinitySubject], bool]


def matcher(affinity: ClusterAffinity | None) -> Matcher:
    """Return a matcher: all given parts must match; without parts, every cluster matches."""
    if affinity is None:
        return _everything
    excluded, named = frozenset(affinity.exclude or ()), frozenset(affinity.cluster_names or ())
    checks: list[Matcher] = []
    if excluded:
        checks.append(lambda cluster: cluster.name not in excluded)
    if named:
        checks.append(lambda cluster: cluster.name in named)
    try:
        if affinity.label_selector is not None:
            selector = affinity.label_selector.compile()
            checks.append(lambda cluster: selector.matches(cluster.labels))
        checks += _field_checks(_expressions(affinity.field_selector))
    except Invalid:
        return _nothing
    if not checks:
        return _everything
    if len(checks) == 1:
        return checks[0]
    return lambda cluster: all(check(cluster) for check in checks)


def _everything(_: AffinitySubject) -> bool:
    return True


def _nothing(_: AffinitySubject) -> bool:
    return False


def _expressions(selector: FieldSelector | None) -> Sequence[SelectorRequirement]:
    return (selector.match_expressions or ()) if selector else ()


def _field_checks(expressions: Sequence[SelectorRequirement]) -> list[Matcher]:
    checks: list[Matcher] = []
    others: list[LabelRequirement] = []
    for entry in expressions:
        if entry.key == ZONE:
            checks.append(_zone_check(entry.operator, frozenset(entry.values or ())))
        else:
            others.append(_field_requirement(entry))
    if others:
        selector = LabelMatcher(tuple(others))
        checks.append(lambda cluster: selector.matches(_fields(cluster)))
    return checks


def _field_requirement(entry: SelectorRequirement) -> LabelRequirement:
    if entry.operator in ("Gt", "Lt"):
        raise Invalid("operator", entry.operator, "must be In, NotIn, Exists or DoesNotExist")
    return requirement(entry.key, entry.operator, entry.values or ())


def _fields(cluster: AffinitySubject) -> Labels:
    pairs = (("provider", cluster.provider), ("region", cluster.region))
    return {key: value for key, value in pairs if value}


def _zone_check(operator: str, values: frozenset[str]) -> Matcher:
    match operator:
        case "In":
            return lambda cluster: not values.isdisjoint(cluster.zones)
        case "NotIn":
            return lambda cluster: values.isdisjoint(cluster.zones)
        case "Exists":
            return lambda cluster: bool(cluster.zones)
        case "DoesNotExist":
            return lambda cluster: not cluster.zones
    return _nothing
