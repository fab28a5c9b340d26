"""The one requirement matcher: conditions on the value of one label.

A `ValueSet` is a finite set of values or the complement of one, with optional
integer bounds. Node affinity, NodePool requirements and instance types all
become value sets, so "does it match" and "can both hold" are asked in one place.

Evaluation against a known label uses `admits`; planning, where a label is still
open, intersects sets with `&`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from karpool.model import labels
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Labels, SelectorRequirement, Wire

OPERATORS = frozenset(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"))
_COMPARISONS = frozenset(("Gt", "Lt", "Gte", "Lte"))


@dataclass(frozen=True, slots=True)
class ValueSet:
    """`values`, or everything but `values`; bounded below and above, both inclusive."""

    values: frozenset[str] = frozenset()
    complement: bool = False
    at_least: int | None = None
    at_most: int | None = None
    min_values: int | None = None

    def admits(self, value: str | None) -> bool:
        """Whether a label with this value (None: no such label) satisfies the requirement."""
        return self.admits_absence if value is None else value in self

    @property
    def admits_absence(self) -> bool:
        """Whether a missing label satisfies it: true for NotIn and DoesNotExist."""
        if self.complement:
            return bool(self.values) and self.at_least is None and self.at_most is None
        return not self.values

    def __contains__(self, value: str) -> bool:
        return (value in self.values) != self.complement and self._in_bounds(value)

    def _in_bounds(self, value: str) -> bool:
        if self.at_least is None and self.at_most is None:
            return True
        number = labels.integer(value)
        if number is None:
            return False
        return (self.at_least is None or number >= self.at_least) and (
            self.at_most is None or number <= self.at_most
        )

    def __and__(self, other: "ValueSet") -> "ValueSet":
        at_least = _tighter(max, self.at_least, other.at_least)
        at_most = _tighter(min, self.at_most, other.at_most)
        min_values = _tighter(max, self.min_values, other.min_values)
        if at_least is not None and at_most is not None and at_least > at_most:
            return ValueSet(min_values=min_values)
        if self.complement and other.complement:
            return ValueSet(self.values | other.values, True, at_least, at_most, min_values)
        if self.complement:
            remaining = other.values - self.values
        elif other.complement:
            remaining = self.values - other.values
        else:
            remaining = self.values & other.values
        bounds = ValueSet(complement=True, at_least=at_least, at_most=at_most)
        return ValueSet(frozenset(value for value in remaining if value in bounds), min_values=min_values)

    def intersects(self, other: "ValueSet") -> bool:
        """Whether one value can satisfy both; also true if both admit absence."""
        both = self & other
        return both.complement or bool(both.values) or (self.admits_absence and other.admits_absence)

    @property
    def operator(self) -> str:
        if self.complement:
            if self.at_least is not None or self.at_most is not None:
                return "Gte" if self.at_least is not None else "Lte"
            return "NotIn" if self.values else "Exists"
        return "In" if self.values else "DoesNotExist"

    def __str__(self) -> str:
        parts = []
        if self.values or self.admits_absence:
            shown = ", ".join(sorted(self.values)[:8]) + (", ..." if len(self.values) > 8 else "")
            parts.append(f"{self.operator} ({shown})" if shown else self.operator)
        if self.at_least is not None:
            parts.append(f">= {self.at_least}")
        if self.at_most is not None:
            parts.append(f"<= {self.at_most}")
        return " and ".join(parts) or "Exists"


def _tighter(choose: Callable[[int, int], int], first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return choose(first, second)


def value_set(operator: str, values: Iterable[str] = (), min_values: int | None = None) -> ValueSet:
    """Return the value set of an operator; raises Invalid if operator or number of values is wrong."""
    chosen = tuple(values)
    if operator in ("In", "NotIn"):
        if not chosen:
            raise Invalid("values", [], f"{operator} needs at least one value")
        return ValueSet(frozenset(chosen), operator == "NotIn", min_values=min_values)
    if operator in ("Exists", "DoesNotExist"):
        if chosen:
            raise Invalid("values", list(chosen), f"{operator} takes no values")
        return ValueSet(complement=operator == "Exists", min_values=min_values)
    if operator not in _COMPARISONS:
        raise Invalid("operator", operator, "must be In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte")
    bound = labels.integer(chosen[0]) if len(chosen) == 1 else None
    if bound is None:
        raise Invalid("values", list(chosen), f"{operator} needs exactly one integer")
    match operator:
        case "Gt":
            return ValueSet(complement=True, at_least=bound + 1, min_values=min_values)
        case "Gte":
            return ValueSet(complement=True, at_least=bound, min_values=min_values)
        case "Lt":
            return ValueSet(complement=True, at_most=bound - 1, min_values=min_values)
    return ValueSet(complement=True, at_most=bound, min_values=min_values)


Requirements = Mapping[str, ValueSet]
"""What is asked of several labels at once; a key that is absent is unconstrained."""

# Old workloads and the volumes of cloud storage drivers use these; Karpenter and its
# providers rewrite them.
_ALIASES = {
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.ebs.csi.aws.com/zone": "topology.kubernetes.io/zone",
    "topology.disk.csi.azure.com/zone": "topology.kubernetes.io/zone",
    "topology.gke.io/zone": "topology.kubernetes.io/zone",
}

# A new node may still take any value of these (karpenter pkg/apis/v1/labels.go).
WELL_KNOWN = frozenset(
    (
        "karpenter.sh/nodepool",
        "karpenter.sh/capacity-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "node.kubernetes.io/windows-build",
    )
)


def canonical_key(key: str) -> str:
    return _ALIASES.get(key, key)


def from_labels(labels: Labels) -> dict[str, ValueSet]:
    """Return each label as a requirement for exactly its value."""
    return {canonical_key(key): ValueSet(frozenset((value,))) for key, value in labels.items()}


def combined(*sets: Requirements) -> dict[str, ValueSet]:
    """Merge requirements: keys united, values intersected."""
    result: dict[str, ValueSet] = {}
    for requirements in sets:
        for key, values in requirements.items():
            result[key] = result[key] & values if key in result else values
    return result


def conflict(
    offered: Requirements, asked: Requirements, open_keys: frozenset[str] = frozenset()
) -> str | None:
    """Return the first key on which `offered` cannot satisfy `wanted`, or None.

    A wanted key that is not offered conflicts, unless its absence is admitted or the key is one of
    `open_keys`.
    """
    for key, values in asked.items():
        have = offered.get(key)
        if have is None:
            if key not in open_keys and not values.admits_absence:
                return key
        elif not have.intersects(values):
            return key
    return None


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Wire, frozen=True):
    node_selector_terms: list[NodeSelectorTerm] | None = None


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One alternative of a node affinity; all its conditions must hold."""

    labels: tuple[tuple[str, ValueSet], ...] = ()
    fields: tuple[tuple[str, ValueSet], ...] = ()


def node_terms_of(selector: NodeSelector | None) -> tuple[NodeTerm, ...] | None:
    """Return the alternatives of a required node affinity; None without an affinity.

    Terms that kube-scheduler cannot parse, and empty ones, match nothing and are left out; an affinity with
    no usable term therefore matches no node.
    """
    if selector is None:
        return None
    terms = (_compile_term(term) for term in selector.node_selector_terms or ())
    return tuple(term for term in terms if term is not None)


def _compile_term(term: NodeSelectorTerm) -> NodeTerm | None:
    if not term.match_expressions and not term.match_fields:
        return None
    try:
        return NodeTerm(
            tuple((entry.key, _affinity_values(entry)) for entry in term.match_expressions or ()),
            tuple((entry.key, _field_values(entry)) for entry in term.match_fields or ()),
        )
    except Invalid:
        return None


def _affinity_values(entry: SelectorRequirement) -> ValueSet:
    if entry.operator in ("Gte", "Lte"):
        raise Invalid("operator", entry.operator, "is Karpenter's; node affinity has Gt and Lt")
    labels.check_key(entry.key)
    for value in entry.values or ():
        labels.check_value(value)
    return value_set(entry.operator, entry.values or ())


def _field_values(entry: SelectorRequirement) -> ValueSet:
    if entry.operator not in ("In", "NotIn") or len(entry.values or ()) != 1:
        raise Invalid("matchFields", entry.operator, "needs In or NotIn with exactly one value")
    return value_set(entry.operator, entry.values or ())
