"""What all Kubernetes objects have in common, and how they are decoded.

Structs are partial: unused fields are dropped on decoding, so a decoded object is never written back. Go
sends null for nil slices and maps, hence the optional collections; accessors return an empty one instead.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from karpool.model.errors import Invalid
from karpool.model.labels import LabelMatcher, LabelRequirement, requirement

Labels = Mapping[str, str]
NO_LABELS: Labels = {}
T = TypeVar("T")

# The limit of the API, so that no larger value reaches the integer columns.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Wire(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Base of all structs that cross the wire."""


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Int64 = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: Int64 | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None  # of nodes
    observed_generation: Int64 = 0


class SelectorRequirement(Wire, frozen=True):
    """One entry of `matchExpressions`, in label selectors and in node selectors."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None

    def compile(self) -> LabelMatcher:
        """Compile the entry. Raises Invalid, which names the entry."""
        terms = [
            LabelRequirement(key, "In", frozenset((value,)))
            for key, value in sorted((self.match_labels or {}).items())
        ]
        for index, entry in enumerate(self.match_expressions or ()):
            if entry.operator in ("Gt", "Lt"):
                raise Invalid(
                    f"matchExpressions[{index}].operator",
                    entry.operator,
                    "must be In, NotIn, Exists or DoesNotExist",
                )
            try:
                terms.append(requirement(entry.key, entry.operator, entry.values or ()))
            except Invalid as error:
                raise error.at(f"matchExpressions[{index}]") from None
        return LabelMatcher(tuple(terms))


class WireObject(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def labels(self) -> Labels:
        return self.metadata.labels or NO_LABELS

    @property
    def annotations(self) -> Labels:
        return self.metadata.annotations or NO_LABELS


def condition(conditions: list[Condition] | None, kind: str) -> Condition | None:
    for condition in conditions or ():  # half the time of a generator, and called a million times
        if condition.type == kind:
            return condition
    return None


def decode(raw: Any, into: type[T]) -> T:
    """Decode a JSON or YAML object into a struct; raises Invalid with the path from msgspec."""
    try:
        return msgspec.convert(raw, into, strict=False)
    except msgspec.ValidationError as error:
        place = _ERROR_PLACE.search(str(error))
        path = place["path"].strip(".") if place else ""
        message = str(error)[: place.start()] if place else str(error)
        if place and place["key"]:
            message = f"a key is wrong: {message}"
        raise Invalid(path or into.__name__, _shown(raw, path), message) from None
    except RecursionError:
        raise Invalid(into.__name__, raw, "is nested too deeply") from None


# How msgspec ends its messages: "... - at `$.spec.priority`", "... - at `key` in `$.metadata.labels`".
_ERROR_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>.*)`\Z", re.DOTALL)


def _shown(raw: Any, path: str) -> object:
    """Return the value at a msgspec path, as far as it can be followed."""
    for step in path.replace("[", ".[").split("."):
        if step.startswith("[") and isinstance(raw, list) and step[1:-1].isdigit():
            raw = raw[int(step[1:-1])]
        elif isinstance(raw, dict) and step in raw:
            raw = raw[step]
    return raw
