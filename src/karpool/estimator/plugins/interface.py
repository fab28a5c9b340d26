"""The interface of plugins, and how their answers are merged.

A source adds capacity; a limit caps it. The answer is the minimum of the sum of all sources and every limit.
Sources list the parts of their number, and a part that two of them name is added once: the node plugin and
the autoscaler plugin together never count a node twice. With limits alone this is Karmada's rule, the minimum
of all plugins.

Codes are Karmada's, and one of ours: Unknown, for a plugin that failed in a way that says nothing about the
request. The server returns it as -1, which callers read as "no answer from this cluster" without losing those
of the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from karpool.cluster.aspects import NO_ASPECTS, Aspect
from karpool.estimator.question import EstimateQuestion
from karpool.kube.watched import WatchedKind as Watched
from karpool.wire.requests import RoomParts

UNLIMITED = 2**31 - 1  # no known constraint
CANNOT_TELL = -1
EXISTING_NODES = "existing nodes"


class PluginRole(StrEnum):
    SOURCE = "source"
    LIMIT = "limit"


class EstimateCode(StrEnum):
    SUCCESS = "Success"
    UNSCHEDULABLE = "Unschedulable"
    NOOPERATION = "Nooperation"  # no opinion; the number is ignored
    ERROR = "Error"
    UNKNOWN = "Unknown"


_OPINIONS = (EstimateCode.SUCCESS, EstimateCode.UNSCHEDULABLE)


class ExtensionPoint(StrEnum):
    """The two questions that a plugin may answer, under their names in metrics."""

    REPLICAS = "estimate_replicas"
    COMPONENTS = "estimate_components"


@dataclass(frozen=True, slots=True)
class CapacityPart:
    """Capacity of one kind: that of existing nodes, or what one pool could still launch."""

    name: str  # EXISTING_NODES, or provider/pool
    amount: int
    nodes: int = 0  # that would be launched
    instance_types: tuple[str, ...] = ()
    price_per_hour: float | None = None
    list_price_per_hour: float | None = None  # if it differs: contracts, overlays
    reasons: tuple[str, ...] = ()
    may_pass: bool = False  # the obstacle may pass by itself: a limit, stock, a failure
    is_unlimited: bool = False  # the pool has no limits: the number is our own maximum


@dataclass(frozen=True, slots=True)
class Estimate:
    """A plugin's answer. A source without parts counts as one part under its own name."""

    value: int
    code: EstimateCode = EstimateCode.SUCCESS
    reasons: tuple[str, ...] = ()
    parts: tuple[CapacityPart, ...] = ()


def no_opinion(*reasons: str) -> Estimate:
    return Estimate(UNLIMITED, EstimateCode.NOOPERATION, reasons)


class EstimatorPlugin(Protocol):
    """A plugin has a name, and one or both of `estimate` and `estimate_components`.

    It may also have `role` (by default it is a limit), `aspects`, the parts of the cluster that it needs in
    `question.snapshot`, and `watches`, further kinds that it keeps itself.
    """

    @property
    def name(self) -> str: ...


@runtime_checkable
class EstimatesReplicas(Protocol):
    def estimate(self, question: EstimateQuestion, /) -> Estimate: ...


@runtime_checkable
class EstimatesComponents(Protocol):
    def estimate_components(self, question: EstimateQuestion, /) -> Estimate: ...


def role_of(plugin: EstimatorPlugin) -> PluginRole:
    return PluginRole(getattr(plugin, "role", PluginRole.LIMIT))


def aspects_of(plugin: Any) -> Aspect:
    aspects: Aspect = getattr(plugin, "aspects", NO_ASPECTS)
    return aspects


def watches_of(plugin: Any) -> Sequence[Watched[Any]]:
    return tuple(getattr(plugin, "watches", ()))


def answers_without_nodes(plugin: EstimatorPlugin) -> bool:
    """Whether a source counts more than existing nodes."""
    return role_of(plugin) is PluginRole.SOURCE and bool(getattr(plugin, "sees_new_nodes", False))


@dataclass(frozen=True, slots=True)
class PluginResult:
    plugin: str
    role: PluginRole
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class MergedEstimate:
    """The merged answer and its inputs."""

    value: int
    code: EstimateCode
    reasons: tuple[str, ...] = ()
    verdicts: tuple[PluginResult, ...] = field(default=(), repr=False)
    parts: tuple[CapacityPart, ...] = ()

    @property
    def answer(self) -> int:
        """The number for the wire; an Error has none."""
        match self.code:
            case EstimateCode.UNSCHEDULABLE:
                return 0
            case EstimateCode.UNKNOWN:
                return CANNOT_TELL
        return max(0, min(self.value, UNLIMITED))

    @property
    def room_parts(self) -> RoomParts:
        """The existing part of the answer, and the price of the rest."""
        existing = sum(part.amount for part in self.parts if part.name == EXISTING_NODES)
        bought = [part for part in self.parts if part.nodes and part.amount]
        prices = [part.price_per_hour for part in bought if part.price_per_hour is not None]
        is_priced = bool(bought) and len(prices) == len(bought)
        return RoomParts(
            max(0, min(existing, self.answer)),
            any(part.is_unlimited for part in bought),
            sum(prices) / sum(part.amount for part in bought) if is_priced else None,
        )


# Without nodes, and without a source that counts more than them, there is nothing to ask.
NO_NODES = MergedEstimate(0, EstimateCode.SUCCESS, ("the cluster has no nodes",))


def merge_results(
    verdicts: Sequence[PluginResult], point: ExtensionPoint = ExtensionPoint.REPLICAS
) -> MergedEstimate:
    if not verdicts:
        return MergedEstimate(UNLIMITED, EstimateCode.NOOPERATION, ("plugin results are empty",))
    sources = [verdict.estimate for verdict in verdicts if verdict.role is PluginRole.SOURCE]
    limits = [verdict.estimate for verdict in verdicts if verdict.role is PluginRole.LIMIT]
    parts = added_once(verdict for verdict in verdicts if verdict.role is PluginRole.SOURCE)
    value = UNLIMITED
    if any(source.code in _OPINIONS for source in sources):
        value = min(value, sum(part.amount for part in parts))
    value = min((value, *(estimate.value for estimate in limits if estimate.code in _OPINIONS)))
    code = _code([_code_of_sources(sources)] if sources else [], [limit.code for limit in limits])
    if code is EstimateCode.ERROR and point is ExtensionPoint.REPLICAS:
        value = 0
    reasons = tuple(reason for plugin_result in verdicts for reason in plugin_result.estimate.reasons)
    return MergedEstimate(value, code, reasons, tuple(verdicts), parts)


def added_once(verdicts: Iterable[PluginResult]) -> tuple[CapacityPart, ...]:
    """The parts of all sources, including Unknown ones; of two with the same name the smaller."""
    parts: dict[str, CapacityPart] = {}
    for verdict in verdicts:
        estimate = verdict.estimate
        whole = (CapacityPart(verdict.plugin, estimate.value),) if estimate.code in _OPINIONS else ()
        for part in estimate.parts or whole if estimate.code is not EstimateCode.ERROR else ():
            earlier = parts.get(part.name)
            if earlier is None or part.amount < earlier.amount:
                parts[part.name] = part
    return tuple(parts.values())


def _code_of_sources(sources: Sequence[Estimate]) -> EstimateCode:
    """The sources together are Unschedulable only if none of them has capacity."""
    codes = [source.code for source in sources]
    for worst in (EstimateCode.ERROR, EstimateCode.UNKNOWN):
        if worst in codes:
            return worst
    opinions = [code for code in codes if code in _OPINIONS]
    if not opinions:
        return EstimateCode.NOOPERATION
    return (
        EstimateCode.UNSCHEDULABLE if set(opinions) == {EstimateCode.UNSCHEDULABLE} else EstimateCode.SUCCESS
    )


def _code(sources: Sequence[EstimateCode], limits: Sequence[EstimateCode]) -> EstimateCode:
    codes = [*sources, *limits]
    for worst in (EstimateCode.ERROR, EstimateCode.UNKNOWN, EstimateCode.UNSCHEDULABLE):
        if worst in codes:
            return worst
    return EstimateCode.NOOPERATION if set(codes) == {EstimateCode.NOOPERATION} else EstimateCode.SUCCESS
