"""Karpenter's NodePool and NodeClaim (karpenter.sh/v1), and what a pool means for placement.

`pool_of` checks what Karpenter's schema and its runtime validation check; a pool that Karpenter would refuse
raises Invalid with the path of the field. Disruption settings are kept as written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from karpool.model import durations, resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import (
    NO_LABELS,
    Condition,
    Int32,
    Int64,
    Labels,
    SelectorRequirement,
    Wire,
    WireObject,
    condition,
)
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.labels import check_key, check_labels, check_value, integer
from karpool.model.requirements import (
    OPERATORS,
    Requirements,
    ValueSet,
    canonical_key,
    combined,
    from_labels,
    value_set,
)
from karpool.model.resources import Resources
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint

NODEPOOL = "karpenter.sh/nodepool"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
REGISTERED = "karpenter.sh/registered"
INITIALIZED = "karpenter.sh/initialized"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
TERMINATION_FINALIZER = "karpenter.sh/termination"
TERMINATION_TIMESTAMP = "karpenter.sh/nodeclaim-termination-timestamp"

ON_DEMAND = "on-demand"
SPOT = "spot"
RESERVED = "reserved"

_CAPACITY_TYPES = {name.replace("-", ""): name for name in (ON_DEMAND, SPOT, RESERVED)}

DISRUPTED = Taint(key="karpenter.sh/disrupted", effect=NO_SCHEDULE)
UNREGISTERED = Taint(key="karpenter.sh/unregistered", effect=NO_EXECUTE)


def capacity_type_named(word: str) -> str:
    """Return the label value for OnDemand, ON_DEMAND, Spot and so on; an unknown word is unchanged."""
    return _CAPACITY_TYPES.get(word.lower().replace("_", "").replace("-", ""), word)


class NodeRequirement(SelectorRequirement, frozen=True):
    """A requirement of a pool or a claim; also allows Gte and Lte."""

    min_values: Int64 | None = None


class NodeClassRef(Wire, frozen=True):
    group: str = ""
    kind: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """The label with the name of the node class on nodes."""
        return f"{self.group}/{self.kind.lower()}"


class TemplateMeta(Wire, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class TemplateSpec(Wire, frozen=True):
    requirements: list[NodeRequirement] | None = None
    node_class_ref: NodeClassRef = NodeClassRef()
    taints: list[Taint] | None = None
    startup_taints: list[Taint] | None = None
    expire_after: str | None = None
    termination_grace_period: str | None = None


class NodeClaimTemplate(Wire, frozen=True):
    metadata: TemplateMeta | None = None
    spec: TemplateSpec = TemplateSpec()


class Budget(Wire, frozen=True):
    nodes: str = "10%"
    schedule: str | None = None
    duration: str | None = None
    reasons: list[str] | None = None


class Disruption(Wire, frozen=True):
    """As written. An explicit empty `budgets` is not the same as none (the default of 10%)."""

    consolidation_policy: str = "WhenEmptyOrUnderutilized"
    consolidate_after: str = "0s"
    budgets: list[Budget] | None = None
    # From the original proposal of Balanced; Karpenter's schemas lack it. Kept as written.
    consolidation_threshold: Any = None


class NodePoolSpec(Wire, frozen=True):
    template: NodeClaimTemplate = NodeClaimTemplate()
    disruption: Disruption | None = None
    limits: QuantityMap | None = None
    weight: Int32 | None = None
    replicas: Int64 | None = None


class NodePoolStatus(Wire, frozen=True):
    resources: QuantityMap | None = None
    nodes: Int64 | None = None
    conditions: list[Condition] | None = None


class NodePool(WireObject, frozen=True):
    spec: NodePoolSpec = NodePoolSpec()
    status: NodePoolStatus | None = None


class ResourceRequests(Wire, frozen=True):
    requests: QuantityMap | None = None


class NodeClaimSpec(Wire, frozen=True):
    requirements: list[NodeRequirement] | None = None
    resources: ResourceRequests | None = None
    node_class_ref: NodeClassRef = NodeClassRef()
    taints: list[Taint] | None = None
    startup_taints: list[Taint] | None = None
    expire_after: str | None = None
    termination_grace_period: str | None = None


class NodeClaimStatus(Wire, frozen=True):
    provider_id: str = msgspec.field(default="", name="providerID")
    node_name: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    capacity: QuantityMap | None = None
    allocatable: QuantityMap | None = None
    last_pod_event_time: str | None = None
    conditions: list[Condition] | None = None


class NodeClaim(WireObject, frozen=True):
    spec: NodeClaimSpec = NodeClaimSpec()
    status: NodeClaimStatus = NodeClaimStatus()

    @property
    def pool_name(self) -> str:
        """The pool of the claim; empty if it has none."""
        return self.labels.get(NODEPOOL, "")

    @property
    def provider_id(self) -> str:
        return self.status.provider_id

    @property
    def is_launched(self) -> bool:
        return self.is_true("Launched")

    @property
    def is_registered(self) -> bool:
        return self.is_true("Registered")

    @property
    def is_initialized(self) -> bool:
        return self.is_true("Initialized")

    @property
    def is_deleting(self) -> bool:
        """Whether no new pod will be placed on its node."""
        return self.metadata.deletion_timestamp is not None or self.is_true("InstanceTerminating")

    def is_true(self, kind: str) -> bool:
        status_condition = condition(self.status.conditions, kind)
        return status_condition is not None and status_condition.status == "True"

    @property
    def taints(self) -> Sequence[Taint]:
        return self.spec.taints or ()


def requested(spec: NodeClaimSpec) -> Resources:
    """Return what the planned pods of a claim and its daemons request. Raises Invalid."""
    try:
        return resources.parse(spec.resources.requests if spec.resources else None)
    except Invalid as error:
        raise error.at("spec.resources.requests") from None


DEFAULT_DISRUPTION = Disruption()
NO_NODE_CLASS = NodeClassRef()


@dataclass(frozen=True, slots=True)
class CompiledPool:
    """A NodePool, checked and compiled. `requirements` are the labels that a new node may have."""

    name: str
    weight: int = 0
    requirements: Requirements = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    annotations: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)  # as resources count; also "nodes"; empty: none
    is_static: bool = False
    ready: bool = True
    deleting: bool = False
    disruption: Disruption = DEFAULT_DISRUPTION
    expire_after_seconds: float | None = None  # None: never
    termination_grace_seconds: float | None = None  # None: no deadline
    node_class_ref: NodeClassRef = NO_NODE_CLASS

    @property
    def is_usable(self) -> bool:
        """Whether Karpenter creates its nodes for pending pods."""
        return self.ready and not self.deleting and not self.is_static


_DEFAULT_EXPIRY = "720h"
_REQUIREMENTS_MAX = 100
_LABELS_MAX = 100
_MIN_VALUES_MAX = 50
_COMPARISONS = ("Gt", "Lt", "Gte", "Lte")
_EFFECTS = (NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE)


def pool_of(pool: NodePool) -> CompiledPool:
    """Compile a pool. Raises Invalid, which names the field."""
    spec, template, meta = pool.spec, pool.spec.template.spec, pool.spec.template.metadata
    ready = condition(pool.status.conditions, "Ready") if pool.status else None
    labels = _labels((meta.labels if meta else None) or NO_LABELS)
    for index, entry in enumerate(template.requirements or ()):
        _refuse_reserved(entry.key, f"spec.template.spec.requirements[{index}].key")
    taints, startup_taints = _taints(template)
    return CompiledPool(
        name=pool.name,
        weight=_weight(spec),
        requirements=combined(
            requirements_of(template.requirements or (), "spec.template.spec.requirements"),
            from_labels({**labels, **_own_labels(pool.name, template.node_class_ref)}),
        ),
        labels=labels,
        annotations=(meta.annotations if meta else None) or NO_LABELS,
        taints=taints,
        startup_taints=startup_taints,
        limits=_limits(spec),
        is_static=spec.replicas is not None,
        ready=ready is None or ready.status == "True",
        deleting=pool.metadata.deletion_timestamp is not None,
        disruption=spec.disruption or DEFAULT_DISRUPTION,
        expire_after_seconds=_duration(template.expire_after or _DEFAULT_EXPIRY, "expireAfter"),
        termination_grace_seconds=_duration(
            template.termination_grace_period or durations.NEVER, "terminationGracePeriod"
        ),
        node_class_ref=template.node_class_ref,
    )


def _own_labels(name: str, node_class: NodeClassRef) -> dict[str, str]:
    labels = {NODEPOOL: name}
    if node_class.group and node_class.kind and node_class.name:
        labels[node_class.label] = node_class.name
    return labels


def requirements_of(entries: Sequence[NodeRequirement], path: str) -> dict[str, ValueSet]:
    """Return the requirements of a pool or a claim: aliases rewritten, repeated keys intersected."""
    if len(entries) > _REQUIREMENTS_MAX:
        raise Invalid(path, len(entries), f"must not have more than {_REQUIREMENTS_MAX} entries")
    result: dict[str, ValueSet] = {}
    for index, entry in enumerate(entries):
        try:
            values = _values(entry)
        except Invalid as error:
            raise error.at(f"{path}[{index}]") from None
        key = canonical_key(entry.key)
        result[key] = result[key] & values if key in result else values
    return result


def _values(entry: NodeRequirement) -> ValueSet:
    check_key(entry.key)
    values, least = entry.values or [], entry.min_values
    if entry.operator not in OPERATORS:
        raise Invalid("operator", entry.operator, f"must be one of {', '.join(sorted(OPERATORS))}")
    if entry.operator in _COMPARISONS and (len(values) != 1 or (integer(values[0]) or 0) < 0):
        raise Invalid("values", values, f"{entry.operator} needs exactly one integer that is not negative")
    for index, value in enumerate(values):
        try:
            check_value(value)
        except Invalid as error:
            raise Invalid(f"values[{index}]", value, error.reason) from None
    if least is not None and not 1 <= least <= _MIN_VALUES_MAX:
        raise Invalid("minValues", least, f"must be from 1 to {_MIN_VALUES_MAX}")
    if entry.operator in ("Exists", "DoesNotExist") or (entry.operator == "NotIn" and not values):
        # Karpenter ignores values here, and an empty NotIn excludes nothing.
        return ValueSet(complement=entry.operator != "DoesNotExist", min_values=least)
    if entry.operator == "In" and values and least is not None and len(values) < least:
        raise Invalid("minValues", least, f"is more than the {len(values)} values that are listed")
    return value_set(entry.operator, values, least)


def _refuse_reserved(key: str, path: str) -> None:
    """Refuse labels that Karpenter sets itself."""
    prefix = key.partition("/")[0]
    if key in (NODEPOOL, HOSTNAME) or (prefix.endswith("karpenter.sh") and key != CAPACITY_TYPE):
        raise Invalid(path, key, "is a label that Karpenter sets itself; remove it from the pool")


def _labels(labels: Labels) -> Labels:
    path = "spec.template.metadata.labels"
    if len(labels) > _LABELS_MAX:
        raise Invalid(path, len(labels), f"must not have more than {_LABELS_MAX} entries")
    for key in labels:
        _refuse_reserved(key, path)
    try:
        check_labels(labels)
    except Invalid as error:
        raise error.at(path) from None
    return labels


def _taints(template: TemplateSpec) -> tuple[tuple[Taint, ...], tuple[Taint, ...]]:
    checked_taints: set[tuple[str, str]] = set()
    for path, taints in (("taints", template.taints), ("startupTaints", template.startup_taints)):
        for index, taint in enumerate(taints or ()):
            try:
                _check_taint(taint, checked_taints)
            except Invalid as error:
                raise error.at(f"spec.template.spec.{path}[{index}]") from None
    return tuple(template.taints or ()), tuple(template.startup_taints or ())


def _check_taint(taint: Taint, checked_taints: set[tuple[str, str]]) -> None:
    check_key(taint.key)
    check_value(taint.value)
    if taint.effect not in _EFFECTS:
        raise Invalid("effect", taint.effect, f"must be one of {', '.join(_EFFECTS)}")
    if (taint.key, taint.effect) in checked_taints:
        raise Invalid("key", taint.key, f"has a second taint with effect {taint.effect}; keep one")
    checked_taints.add((taint.key, taint.effect))


def _weight(spec: NodePoolSpec) -> int:
    if spec.weight is None:
        return 0
    if not 1 <= spec.weight <= 100:
        raise Invalid("spec.weight", spec.weight, "must be from 1 to 100")
    return spec.weight


def _limits(spec: NodePoolSpec) -> Resources:
    try:
        limits = resources.parse_all(spec.limits)
    except Invalid as error:
        raise error.at("spec.limits") from None
    for name, units in limits.items():
        if units < 0:
            raise Invalid(f"spec.limits.{name}", (spec.limits or {})[name], "must not be negative")
    return limits


def _duration(text: str, field_name: str) -> float | None:
    try:
        return durations.seconds_or_never(text)
    except Invalid as error:
        raise error.at(f"spec.template.spec.{field_name}") from None
