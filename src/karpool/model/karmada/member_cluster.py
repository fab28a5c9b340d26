"""A member cluster as a scheduler sees it: its identity, its APIs, its resources.

`read_cluster` never refuses a cluster, because a missing cluster would lose its replicas. An unreadable part
is left out, counts as nothing, and is listed in `problems`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Condition, Int64, Labels, ObjectMeta, Wire, condition, decode
from karpool.model.resources import Resources
from karpool.model.taints import HARD_EFFECTS, Taint

T = TypeVar("T")

# Our own label: the cost of one unit of capacity, in any unit that all clusters share.
PRICE = "karpool.dev/price"


class _Enabled(Wire, frozen=True):
    name: str = ""
    kind: str = ""


class _ApiEnablement(Wire, frozen=True):
    group_version: str = ""
    resources: list[_Enabled] | None = None


class _Range(Wire, frozen=True):
    name: str = ""
    min: str | int | float = 0


class _Model(Wire, frozen=True):
    grade: Int64 = 0
    ranges: list[_Range] | None = None


class _Modeling(Wire, frozen=True):
    grade: Int64 = 0
    count: Int64 = 0


class _Spec(Wire, frozen=True):
    sync_mode: str = ""
    provider: str = ""
    region: str = ""
    zones: list[str] | None = None


@dataclass(frozen=True, slots=True)
class NodeGrade:
    """The number of nodes with at least this much free."""

    grade: int
    floor: Mapping[str, int]
    count: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ResourceSummary:
    """`status.resourceSummary`: `allocated` is bound to nodes, `allocating` is pending.

    Immutable, and compared by identity, like the cluster.
    """

    allocatable: Mapping[str, int] = field(default_factory=dict)
    allocated: Mapping[str, int] = field(default_factory=dict)
    allocating: Mapping[str, int] = field(default_factory=dict)
    has_modelings: bool = False  # the member reports nodes by grade
    grades: tuple[NodeGrade, ...] | None = None  # ascending; None: the cluster has no models
    _free: Mapping[str, int] = field(init=False)  # cached, because every decision reads it

    def __post_init__(self) -> None:
        names = {*self.allocatable, *self.allocated, *self.allocating}
        free = {
            name: self.allocatable.get(name, 0) - self.allocated.get(name, 0) - self.allocating.get(name, 0)
            for name in names
        }
        object.__setattr__(self, "_free", free)

    @property
    def has_models(self) -> bool:
        return self.has_modelings and self.grades is not None

    def free(self, name: str) -> int:
        return self._free.get(name, 0)


@dataclass(frozen=True, slots=True, eq=False)
class MemberCluster:
    """Immutable, and compared by identity: a new version is a new object."""

    name: str
    labels: Labels = field(default_factory=dict)
    resource_version: str = ""
    generation: int = 0
    is_deleting: bool = False
    sync_mode: str = "Push"
    provider: str = ""
    region: str = ""
    zones: tuple[str, ...] = ()
    taints: tuple[Taint, ...] = ()  # those that keep workloads away
    apis: frozenset[tuple[str, str]] = frozenset()  # (apiVersion, kind)
    is_ready: bool | None = None
    summary: ResourceSummary | None = None
    price: float | None = None
    problems: tuple[str, ...] = ()


def read_cluster(raw: Mapping[str, Any]) -> MemberCluster:
    reading = _Reading(raw)
    meta = reading.part("metadata", ObjectMeta, ObjectMeta())
    spec = reading.part("spec", _Spec, _Spec())
    conditions = reading.part("status.conditions", list[Condition], [])
    taints = reading.part("spec.taints", list[Taint], [])
    enablements = reading.part("status.apiEnablements", list[_ApiEnablement], [])
    ready = condition(conditions, "Ready")
    return MemberCluster(
        name=meta.name,
        labels=meta.labels or {},
        resource_version=meta.resource_version,
        generation=meta.generation,
        is_deleting=meta.deletion_timestamp is not None,
        sync_mode=spec.sync_mode or "Push",
        provider=spec.provider,
        region=spec.region,
        zones=tuple(spec.zones or ()),
        taints=tuple(taint for taint in taints if taint.effect in HARD_EFFECTS),
        apis=frozenset(
            (served.group_version, resource.kind)
            for served in enablements
            for resource in served.resources or ()
        ),
        is_ready=None if ready is None else ready.status == "True",
        summary=reading.checked("status.resourceSummary", lambda: _summary(reading), None),
        price=reading.checked(f"metadata.annotations.{PRICE}", lambda: _price(meta), None),
        problems=tuple(reading.problems),
    )


class _Reading:
    """Reads the parts of one object, each on its own."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.problems: list[str] = []

    def part(self, path: str, into: type[T], otherwise: T) -> T:
        field = self.find(path)
        if field is None:
            return otherwise
        return self.checked(path, lambda: _converted(field, into), otherwise)

    def find(self, path: str) -> Any:
        field: Any = self._raw
        for step in path.split("."):
            field = field.get(step) if isinstance(field, Mapping) else None
        return field

    def checked(self, path: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except Invalid as error:
            problem = error if error.path.startswith(path) else error.at(path)
            self.problems.append(str(problem))
            return otherwise


def _converted(field: object, into: type[T]) -> T:
    """Return the converted value. Raises Invalid, with an empty path if the whole value is wrong."""
    try:
        return decode(field, into)
    except Invalid as error:
        whole = error.path == into.__name__
        raise Invalid("" if whole else error.path, error.value, error.reason) from None


def _summary(reading: _Reading) -> ResourceSummary | None:
    raw = reading.find("status.resourceSummary")
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise Invalid("", raw, "must be an object")
    modelings = decode(raw.get("allocatableModelings") or [], list[_Modeling])
    models = decode(reading.find("spec.resourceModels") or [], list[_Model])
    return ResourceSummary(
        allocatable=_amounts(raw, "allocatable"),
        allocated=_amounts(raw, "allocated"),
        allocating=_amounts(raw, "allocating"),
        has_modelings=bool(modelings),
        grades=_grades(models, modelings) if models else None,
    )


def _amounts(raw: Mapping[str, Any], name: str) -> Resources:
    quantities = raw.get(name) or {}
    if not isinstance(quantities, Mapping):
        raise Invalid(name, quantities, "must map names of resources to quantities")
    try:
        return resources.parse_all(quantities)
    except Invalid as error:
        raise error.at(name) from None


def _grades(models: Sequence[_Model], modelings: Sequence[_Modeling]) -> tuple[NodeGrade, ...]:
    counts: dict[int, int] = {}
    for modeling in modelings:
        counts[modeling.grade] = counts.get(modeling.grade, 0) + max(modeling.count, 0)
    floors = {model.grade: _floor(model) for model in models}
    return tuple(NodeGrade(grade, floors[grade], counts.get(grade, 0)) for grade in sorted(floors))


def _floor(model: _Model) -> Resources:
    return {
        grade_range.name: resources.amount(grade_range.name, grade_range.min)
        for grade_range in model.ranges or ()
    }


def _price(meta: ObjectMeta) -> float | None:
    text = (meta.annotations or {}).get(PRICE)
    if text is None:
        return None
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e12:
        raise Invalid("", text, "must be a number that is not negative")
    return price
