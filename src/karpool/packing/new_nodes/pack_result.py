"""The result of a packing: nodes to create, pods with a node, pods without one and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import Requirements
from karpool.packing.fit_reasons import FitReason


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod that needs a node. `created` sorts as text (RFC 3339)."""

    name: str
    shape: PodShape
    created: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class LaunchOption:
    """One offering for a node. The price is None if it is unknown."""

    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float | None


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node to create. Any of `options` holds all its pods and daemons; the first is the cheapest.

    There is one option per instance type, by price; types of unknown price come last.
    """

    pool: str
    pods: tuple[str, ...]
    options: tuple[LaunchOption, ...]
    requirements: Requirements = field(hash=False)
    requests: Mapping[str, int] = field(hash=False)  # of its pods and the smallest daemon overhead

    @property
    def chosen(self) -> LaunchOption:
        return self.options[0]


@dataclass(frozen=True, slots=True)
class UnplacedPod:
    pod: str
    reasons: tuple[Infeasible[FitReason], ...]


@dataclass(frozen=True, slots=True)
class PackResult:
    nodes: tuple[PlannedNode, ...] = ()
    placed: Mapping[str, str] = field(default_factory=dict, hash=False)  # pod to existing node
    left: tuple[UnplacedPod, ...] = ()
