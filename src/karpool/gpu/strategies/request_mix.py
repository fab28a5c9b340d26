"""The usual requests: their shapes and frequencies.

Good placement needs a prediction of future requests, and the best one at hand is the past. `RequestMix` is
that prediction, limited to the shapes of most requests; `LearnedMix` keeps one current from observed
requests.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.isolation import SHARED
from karpool.model.devices.request import GpuRequest
from karpool.model.requirements import NodeTerm
from karpool.packing.tables.columns import Int64s
from karpool.packing.tables.device_kinds import DeviceKind

COVERED = 0.95
_REFRESH = 256
_REMEMBERED = 8192
DEVICE_MILLI = 1000.0


@dataclass(frozen=True, slots=True)
class RequestConstraint:
    """Where a request may go, apart from capacity."""

    pool: str = ""
    model: str = ""
    vendor: str = ""
    node_terms: tuple[NodeTerm, ...] | None = None

    def admits(self, kind: DeviceKind) -> bool:
        return (
            self.pool in ("", kind.pool)
            and self.model in ("", kind.model)
            and self.vendor in ("", kind.vendor)
        )

    @property
    def is_free(self) -> bool:
        return not (self.model or self.vendor or self.node_terms is not None)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request without its identity. `count` 0 is a pod that needs no GPU."""

    share: DeviceShare
    whole: bool
    count: int
    cpu_milli: int
    constraint: RequestConstraint


def shape_of(request: GpuRequest) -> RequestShape:
    whole = request.isolation == SHARED
    where = RequestConstraint(request.pool, request.model, request.vendor, request.node_terms)
    share = DeviceShare() if whole or not request.count else request.request
    return RequestShape(
        share, whole, request.count, request.cpu_milli, where if request.count else RequestConstraint()
    )


@dataclass(frozen=True)
class ShapeGroup:
    """Shapes that differ in CPU only, with the likelihood of a request up to each amount."""

    share: DeviceShare
    whole: bool
    count: int
    constraint: RequestConstraint
    cpu_milli: Int64s
    likelihood: npt.NDArray[np.float64]  # one longer: of none, of the first, of the first two, ...


@dataclass(frozen=True)
class RequestMix:
    """Weights add up to one, requests without a GPU included."""

    weights: Mapping[RequestShape, float] = field(default_factory=dict)
    groups: tuple[ShapeGroup, ...] = ()

    def demand(self, typical: DeviceAmount) -> dict[RequestConstraint, float]:
        """By constraint: the requested devices, in thousandths, on devices of this capacity."""
        weights: dict[RequestConstraint, float] = {}
        for shape, weight in self.weights.items():
            if shape.count:
                part = DEVICE_MILLI if shape.whole else part_of_device(shape.share, typical)
                weights[shape.constraint] = weights.get(shape.constraint, 0.0) + weight * shape.count * part
        return weights

    def cpu_per_device_milli(self, typical: DeviceAmount) -> float:
        """The CPU requested with a thousandth of a device."""
        devices = sum(self.demand(typical).values())
        cpu = sum(weight * shape.cpu_milli for shape, weight in self.weights.items() if shape.count)
        return cpu / devices if devices else 0.0


def part_of_device(share: DeviceShare, capacity: DeviceAmount, vram_weight: float = 0.7) -> float:
    """The part of a device that a share takes, in thousandths; a resource that the device lacks does not
    count.
    """
    need = share.on(capacity)
    parts = [
        (weight, need_of / capacity_of)
        for weight, need_of, capacity_of in (
            (vram_weight, need.vram_bytes, capacity.vram_bytes),
            (1 - vram_weight, need.tflops_milli, capacity.tflops_milli),
        )
        if capacity_of
    ]
    total = sum(weight for weight, _ in parts)
    return DEVICE_MILLI * sum(weight * part for weight, part in parts) / total if total else 0.0


def mix_of_counts(counted: Mapping[RequestShape, int], covered: float = COVERED) -> RequestMix:
    """The most frequent shapes, until they make up `covered` of all requests."""
    total, kept, reached = sum(counted.values()), {}, 0
    for shape, number in sorted(counted.items(), key=lambda item: -item[1]):
        kept[shape] = number
        reached += number
        if reached >= covered * total:
            break
    weights = {shape: number / reached for shape, number in kept.items()}
    together: dict[tuple[DeviceShare, bool, int, RequestConstraint], list[tuple[int, float]]] = {}
    for shape, weight in weights.items():
        if shape.count:
            key = (shape.share, shape.whole, shape.count, shape.constraint)
            together.setdefault(key, []).append((shape.cpu_milli, weight))
    return RequestMix(weights, tuple(_group(*key, sorted(members)) for key, members in together.items()))


def _group(
    share: DeviceShare,
    whole: bool,
    count: int,
    constraint: RequestConstraint,
    members: list[tuple[int, float]],
) -> ShapeGroup:
    cpu = np.array([cpu for cpu, _ in members], dtype=np.int64)
    likelihood = np.concatenate(([0.0], np.cumsum([weight for _, weight in members])))
    return ShapeGroup(share, whole, count, constraint, cpu, likelihood)


class LearnedMix:
    """A mix of the requests so far; a repeated request of the same pod does not count twice."""

    def __init__(self) -> None:
        self.mix = RequestMix()
        self._counted: Counter[RequestShape] = Counter()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._since = 0

    def observe(self, request: GpuRequest) -> None:
        if request.uid in self._seen:
            return
        self._seen[request.uid] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        self._counted[shape_of(request)] += 1
        self._since += 1
        # Often while there are few observations, then less and less.
        if self._since >= min(_REFRESH, max(1, self._counted.total() // 4)):
            self._since = 0
            self._forget_a_little()
            self.mix = mix_of_counts(self._counted)

    def _forget_a_little(self) -> None:
        """Reduce the weight of old requests; shapes that do not recur disappear."""
        if self._counted.total() > _REMEMBERED:
            self._counted = Counter({shape: n // 2 for shape, n in self._counted.items() if n // 2})
