"""The resource summary of a member, updated with each pod and node.

`allocated` are the requests of pods with a node, `allocating` those of pending pods; `pods` is one of the
resources. Each node counts in the grade of its free resources. The cost of a change does not depend on the
size of the member.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.model import resources
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.resources import PODS, Resources
from karpool_fleet.karmada.propagation.names import Object

_ONE_POD: Resources = {PODS: 1}


class Models:
    """Grades of node sizes, as a Cluster's `spec.resourceModels` gives them."""

    def __init__(self, models: Sequence[Object]) -> None:
        ordered = sorted(models, key=lambda model: int(model["grade"]))
        self.grades = [int(model["grade"]) for model in ordered]
        self._floors: dict[str, list[int]] = {}
        for model in ordered:
            for model_range in model["ranges"]:
                floors = self._floors.setdefault(model_range["name"], [])
                floors.append(resources.amount(model_range["name"], model_range["min"]))

    def grade_of(self, free: Mapping[str, int]) -> int:
        """Return the index of the highest grade whose every resource is free, 0 for less than any."""
        lowest = len(self.grades) - 1
        for name, floors in self._floors.items():
            amount = free.get(name, 0)
            lowest = min(lowest, max(sum(amount >= floor for floor in floors) - 1, 0))
        return max(lowest, 0)


class SummaryBuilder:
    """A sink for the pods and nodes of one member."""

    def __init__(self) -> None:
        self._allocatable: Resources = {}
        self._allocated: Resources = {}
        self._allocating: Resources = {}
        # Allocatable of each node, and whether it is ready.
        self._nodes: dict[str, tuple[Resources, bool]] = {}
        self._ready = 0
        self._used: dict[str, Resources] = {}
        self._pods: dict[ObjectKey, tuple[str, Resources]] = {}
        self._models: Models | None = None
        self._counts: list[int] = []
        self._grade: dict[str, int] = {}
        self._stale: dict[str, None] = {}  # nodes whose grade must be recomputed

    # Updates

    def on_pod(self, change: ObjectChange[Pod]) -> None:
        self._forget_pod(change.key)
        pod = change.object
        if pod is None or change.type == "DELETED" or pod.is_terminal:
            return
        try:
            needs = resources.total((effective_requests(pod), _ONE_POD))
        except Invalid:
            needs = dict(_ONE_POD)
        node = pod.spec.node_name
        self._pods[change.key] = (node, needs)
        if node:
            resources.add(self._allocated, needs)
            resources.add(self._used.setdefault(node, {}), needs)
            self._stale[node] = None
        else:
            resources.add(self._allocating, needs)

    def _forget_pod(self, key: ObjectKey) -> None:
        before = self._pods.pop(key, None)
        if before is None:
            return
        node, needs = before
        taken = {name: -units for name, units in needs.items()}
        if node:
            resources.add(self._allocated, taken)
            resources.add(self._used[node], taken)
            self._stale[node] = None
        else:
            resources.add(self._allocating, taken)

    def on_node(self, change: ObjectChange[Node]) -> None:
        name = change.key.name
        before = self._nodes.pop(name, None)
        if before is not None:
            resources.add(self._allocatable, {resource: -units for resource, units in before[0].items()})
            self._ready -= before[1]
        self._stale[name] = None
        node = change.object
        if node is None or change.type == "DELETED":
            return
        try:
            holds = allocatable(node)
        except Invalid:
            holds = {}
        self._nodes[name] = (holds, node.is_ready)
        self._ready += node.is_ready
        resources.add(self._allocatable, holds)

    # Results

    def nodes(self) -> Object:
        return {"totalNum": len(self._nodes), "readyNum": self._ready}

    def resources(self, models: Sequence[Object]) -> Object:
        """Return the `status.resourceSummary`."""
        told: dict[str, Any] = {
            "allocatable": _shown(self._allocatable),
            "allocating": _shown(self._allocating),
            "allocated": _shown(self._allocated),
        }
        if models:
            told["allocatableModelings"] = self._modelings(models)
        return {key: value for key, value in told.items() if value}

    def set_models(self, models: Models) -> None:
        self._models = models
        self._counts = [0] * len(models.grades)
        self._grade.clear()
        self._stale = dict.fromkeys(self._nodes)

    def _modelings(self, given: Sequence[Object]) -> list[Object]:
        if self._models is None:
            self.set_models(Models(given))
        models = self._models
        assert models is not None
        for name in self._stale:
            if (before := self._grade.pop(name, None)) is not None:
                self._counts[before] -= 1
            free = self._free(name)
            # A node without a free pod slot is not usable.
            if free.get(PODS, 0) > 0:
                self._grade[name] = grade = models.grade_of(free)
                self._counts[grade] += 1
        self._stale.clear()
        pairs = zip(models.grades, self._counts, strict=True)
        return [{"grade": grade, "count": count} for grade, count in pairs]

    def _free(self, name: str) -> Resources:
        """Return what is free on a node; nothing if it is gone."""
        used = self._used.get(name)
        if used is not None and not any(used.values()):
            del self._used[name]
        if name not in self._nodes:
            return {}
        free = dict(self._nodes[name][0])
        resources.add(free, {resource: -units for resource, units in (used or {}).items()})
        return free


def _shown(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: resources.show_amount(name, amounts[name]) for name in sorted(amounts) if amounts[name]}
