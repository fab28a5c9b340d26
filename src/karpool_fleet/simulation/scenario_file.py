"""Scenario files: a fleet, its workloads and faults, its controllers, and the variants to compare.

Clusters, Karmada and faults are those of a fleet file. A variant is the whole scenario with some fields
replaced (a merge patch), so that every variant is checked like a file of its own. Errors name the line.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from karpool.model import durations, quantity
from karpool.model.contracts.contract_file import contract_from
from karpool.model.errors import Invalid
from karpool_fleet.cloud.delays import Delay, parse_delay
from karpool_fleet.clusters.controllers import check_controllers
from karpool_fleet.clusters.fleet_file import ClusterSpec, FaultSpec, FleetFile, KarmadaSpec, check_fleet
from karpool_fleet.clusters.strict_file import API_VERSION, located, one_document, parse, read_bytes
from karpool_fleet.simulation.figures import FIGURES

KINDS = ("Deployment", "Job", "Pod")
DURATION_MAX = 366 * 86_400.0
SAMPLES_MAX = 100_000
ARRIVALS_MAX = 1_000_000
WHAT = "a scenario file"
Object = dict[str, Any]


class _Part(msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Wave(_Part, frozen=True):
    """Arrivals vary over time: `low` is the share that is left at the quietest time."""

    period: str = "24h"
    low: float = 0.2
    peak: str = "14h"  # time of the maximum within the period


class ScenarioChoice(_Part, frozen=True):
    requests: dict[str, str]
    weight: float = 1.0


class ScenarioWorkload(_Part, frozen=True):
    """Objects that arrive one after another. `replicas`: one number, or the minimum and the maximum."""

    name: str
    kind: str = "Deployment"
    cluster: str = ""  # "": Karmada if there is one, else the first cluster
    namespace: str = "default"
    start: str = "0s"
    until: str | None = None
    every: str = "exponential(1m)"
    count: int | None = None
    wave: Wave | None = None
    lifetime: str | None = None  # None: for ever
    replicas: int | list[int] = 1
    requests: dict[str, str] = {}
    sizes: list[ScenarioChoice] = []  # instead of requests: one of these, by weight
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    pod: dict[str, Any] = {}  # further fields of the pod spec


class Trace(_Part, frozen=True):
    """Pods of a CSV file. With `speed` 10, ten hours of the trace take one."""

    file: str
    cluster: str = ""
    namespace: str = "default"
    kind: str = "Pod"
    start: str = "0s"  # arrival of the first pod
    skip: str = "0s"  # skipped at the beginning of the trace
    speed: float = 1.0
    limit: int = 1000
    select: dict[str, str] = {}  # required values of columns
    cpu: float = 1.0  # factors of the pods' requests
    memory: float = 1.0
    gpu: str = "nvidia.com/gpu"  # "": without GPUs; "fraction": TensorFusion's annotations
    labels: dict[str, str] = {}
    pod: dict[str, Any] = {}


class Scale(_Part, frozen=True):
    name: str
    replicas: int
    kind: str = "Deployment"
    namespace: str = "default"


class DeleteAction(_Part, frozen=True):
    api_version: str
    kind: str
    name: str
    namespace: str = "default"


class ScenarioAction(_Part, frozen=True):
    """An action of a person at some time; exactly one of apply, scale, delete."""

    at: str
    cluster: str = ""
    apply: dict[str, Any] | None = None
    scale: Scale | None = None
    delete: DeleteAction | None = None


class Variant(_Part, frozen=True):
    name: str
    set: dict[str, Any] = {}


class Expectation(_Part, frozen=True):
    """An expected result; without a variant, of every variant. `least` and `most` are inclusive."""

    figure: str
    variant: str = ""
    least: float | None = None
    most: float | None = None
    why: str = ""


class Scenario(_Part, frozen=True):
    api_version: str = API_VERSION
    kind: str = "Scenario"
    title: str = ""
    description: str = ""
    seed: int = 0
    duration: str = "1h"
    measure_from: str = "0s"
    sample: str = "1m"
    idle_checks: str = "0s"  # check interval of idle watches; 0s: every minute
    stuck_after: str = "5m"  # a pod that is pending for longer was promised room that does not exist
    clusters: list[ClusterSpec] = []
    karmada: KarmadaSpec | None = None
    faults: list[FaultSpec] = []
    controllers: dict[str, dict[str, Any]] = {}
    contract: dict[str, Any] | None = None  # as in docs/contracts.md; one for all clusters
    contract_known: bool = True  # whether controllers know the contract; it is billed in any case
    objects: list[dict[str, Any]] = []  # for Karmada, or without it for the first cluster
    workloads: list[ScenarioWorkload] = []
    traces: list[Trace] = []
    actions: list[ScenarioAction] = []
    variants: list[Variant] = []
    expect: list[Expectation] = []

    @property
    def fleet(self) -> FleetFile:
        return FleetFile(seed=self.seed, clusters=self.clusters, karmada=self.karmada, faults=self.faults)

    @property
    def home(self) -> str:
        """Return the default cluster."""
        return self.karmada.name if self.karmada is not None else self.clusters[0].name

    @property
    def seconds(self) -> float:
        return durations.seconds(self.duration)


class Named(msgspec.Struct, frozen=True):
    """One variant to run; the only one of a scenario without variants is called `result`."""

    name: str
    scenario: Scenario


def read_scenario(path: Path) -> list[Named]:
    """Read every variant of a file. Raises FleetError."""
    return parse_scenario(read_bytes(path, WHAT), str(path))


def parse_scenario(data: bytes, where: str = "scenario file") -> list[Named]:
    """Parse every variant. Raises FleetError for any invalid input."""
    base = parse(data, where, WHAT, Scenario, check_scenario)
    document = one_document(data, where, WHAT)
    if not base.variants:
        return [Named("result", base)]
    return list(_variants(data, where, document, base))


def _variants(data: bytes, where: str, document: Object, base: Scenario) -> Iterator[Named]:
    for index, variant in enumerate(base.variants):
        path = f"variants[{index}].set"
        try:
            scenario = msgspec.convert(merged(document, variant.set), Scenario)
            check_scenario(scenario)
        except msgspec.ValidationError as error:
            raise located(data, where, path, f"with it, the scenario is wrong: {error}") from None
        except Invalid as error:
            raise located(data, where, path, f"with it, the scenario is wrong: {error}") from None
        yield Named(variant.name, scenario)


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386): objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def check_scenario(scenario: Scenario) -> None:
    """Check what types cannot express. Raises Invalid with the path."""
    if scenario.api_version != API_VERSION or scenario.kind != "Scenario":
        raise Invalid("kind", f"{scenario.api_version} {scenario.kind}", f"must be {API_VERSION} Scenario")
    duration = _seconds("duration", scenario.duration)
    if not 1 <= duration <= DURATION_MAX:
        raise Invalid("duration", scenario.duration, "must be from 1s to 366 days")
    if _seconds("measureFrom", scenario.measure_from) >= duration:
        raise Invalid("measureFrom", scenario.measure_from, "must be before the end")
    if duration / max(_seconds("sample", scenario.sample), 1e-9) > SAMPLES_MAX:
        raise Invalid("sample", scenario.sample, f"must give at most {SAMPLES_MAX} samples")
    _seconds("stuckAfter", scenario.stuck_after)
    _seconds("idleChecks", scenario.idle_checks)
    check_fleet(scenario.fleet)
    _at("controllers", partial(check_controllers, scenario.controllers))
    if scenario.contract is not None:
        _at("contract", partial(contract_from, scenario.contract))
    for name in ("scheduler", "descheduler"):
        if name in scenario.controllers and scenario.karmada is None:
            raise Invalid(f"controllers.{name}", name, "needs Karmada; add `karmada: {}`")
    clusters = {cluster.name for cluster in scenario.clusters}
    if scenario.karmada is not None:
        clusters.add(scenario.karmada.name)
    names: set[str] = set()
    for index, workload in enumerate(scenario.workloads):
        _at(f"workloads[{index}]", partial(_check_workload, workload, clusters, names))
    for index, trace in enumerate(scenario.traces):
        _at(f"traces[{index}]", partial(_check_trace, trace, clusters))
    for index, action in enumerate(scenario.actions):
        _at(f"actions[{index}]", partial(_check_action, action, clusters))
    _check_names(scenario)


def _check_names(scenario: Scenario) -> None:
    variants: set[str] = set()
    for index, variant in enumerate(scenario.variants):
        if not variant.name or variant.name in variants:
            raise Invalid(f"variants[{index}].name", variant.name, "must be there, and only once")
        variants.add(variant.name)
        if "variants" in variant.set or "expect" in variant.set:
            raise Invalid(f"variants[{index}].set", "variants", "a variant cannot change variants or expect")
    for index, expectation in enumerate(scenario.expect):
        if expectation.figure not in FIGURES:
            raise Invalid(
                f"expect[{index}].figure",
                expectation.figure,
                f"is not a figure; there are {', '.join(FIGURES)}",
            )
        if expectation.variant and expectation.variant not in variants:
            raise Invalid(f"expect[{index}].variant", expectation.variant, "is not one of the variants")
        if expectation.least is None and expectation.most is None:
            raise Invalid(f"expect[{index}]", expectation.figure, "needs least, most or both")


def _check_workload(workload: ScenarioWorkload, clusters: set[str], names: set[str]) -> None:
    if not workload.name or workload.name in names:
        raise Invalid("name", workload.name, "must be there, and only once")
    names.add(workload.name)
    _check_target(workload.cluster, clusters)
    if workload.kind not in KINDS:
        raise Invalid("kind", workload.kind, f"must be one of {', '.join(KINDS)}")
    _seconds("start", workload.start)
    if workload.until is not None:
        _seconds("until", workload.until)
    every = _delay("every", workload.every)
    if every.a <= 0:
        raise Invalid("every", workload.every, "must be longer than 0s")
    if workload.lifetime is not None:
        _delay("lifetime", workload.lifetime)
    if workload.count is not None and not 0 <= workload.count <= ARRIVALS_MAX:
        raise Invalid("count", workload.count, f"must be from 0 to {ARRIVALS_MAX}")
    if (wave := workload.wave) is not None:
        if not 0 <= wave.low <= 1 or _seconds("wave.period", wave.period) <= 0:
            raise Invalid("wave.low", wave.low, "must be from 0 to 1, and the period longer than 0s")
        _seconds("wave.peak", wave.peak)
    bounds = [workload.replicas] if isinstance(workload.replicas, int) else workload.replicas
    if not 1 <= len(bounds) <= 2 or bounds[0] < 0 or bounds[-1] < bounds[0] or bounds[-1] > 10_000:
        raise Invalid("replicas", workload.replicas, "must be a number, or the least and the most")
    for amounts in (workload.requests, *(size.requests for size in workload.sizes)):
        for resource, amount in amounts.items():
            _at(f"requests.{resource}", partial(quantity.milli_value, amount))
    if any(size.weight <= 0 for size in workload.sizes):
        raise Invalid("sizes", "weight", "must be above 0")


def _check_trace(trace: Trace, clusters: set[str]) -> None:
    _check_target(trace.cluster, clusters)
    if trace.kind not in KINDS:
        raise Invalid("kind", trace.kind, f"must be one of {', '.join(KINDS)}")
    _seconds("start", trace.start)
    _seconds("skip", trace.skip)
    for name in ("speed", "cpu", "memory"):
        if not 0 < getattr(trace, name) <= 1e6:
            raise Invalid(name, getattr(trace, name), "must be above 0")
    if not 1 <= trace.limit <= ARRIVALS_MAX:
        raise Invalid("limit", trace.limit, f"must be from 1 to {ARRIVALS_MAX}")


def _check_action(action: ScenarioAction, clusters: set[str]) -> None:
    _seconds("at", action.at)
    _check_target(action.cluster, clusters)
    actions = [name for name in ("apply", "scale", "delete") if getattr(action, name) is not None]
    if len(actions) != 1:
        raise Invalid("", " and ".join(actions) or "nothing", "exactly one of apply, scale, delete is needed")
    if action.apply is not None and not (
        action.apply.get("kind")
        and action.apply.get("apiVersion")
        and isinstance(action.apply.get("metadata"), dict)
        and action.apply["metadata"].get("name")
    ):
        raise Invalid("apply", action.apply.get("kind"), "needs apiVersion, kind and metadata.name")
    if action.scale is not None and action.scale.replicas < 0:
        raise Invalid("scale.replicas", action.scale.replicas, "must not be negative")


def _check_target(cluster: str, clusters: set[str]) -> None:
    if cluster and cluster not in clusters:
        raise Invalid("cluster", cluster, f"is not one of {', '.join(sorted(clusters))}")


def _at(path: str, check: Callable[[], object]) -> None:
    try:
        check()
    except Invalid as error:
        raise error.at(path) from None


def _seconds(path: str, text: str) -> float:
    try:
        amount = durations.seconds(text)
    except Invalid:
        amount = -1.0
    if amount < 0:
        raise Invalid(path, text, "must be a duration like 90s, 5m or 6h")
    return amount


def _delay(path: str, text: str) -> Delay:
    try:
        return parse_delay(text)
    except Invalid as error:
        raise Invalid(path, text, error.reason) from None
