"""Promise a namespace no more replicas than its annotation allows.

    metadata:
      annotations:
        example.com/replica-ceiling: "10"

A limit: it takes part in the minimum, and has no opinion about namespaces without
the annotation. The annotations come from a watch, so a request costs no API call.
"""

from collections.abc import Sequence

from karpool.plugins import (
    NAMESPACES,
    Estimate,
    EstimateCode,
    EstimateQuestion,
    ObjectChange,
    PluginRole,
    PluginSettings,
    WatchedKind,
    WireObject,
    no_opinion,
)

ANNOTATION = "example.com/replica-ceiling"


class Namespace(WireObject, frozen=True):
    """Only the metadata is read."""


class Ceilings:
    """The ceiling of each namespace that has one; told of every change."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def apply(self, changes: Sequence[ObjectChange[Namespace]], /) -> None:
        for change in changes:
            text = change.object.annotations.get(ANNOTATION, "") if change.object else ""
            if change.type != "DELETED" and text.isdecimal():
                self.known[change.key.name] = int(text)
            else:
                self.known.pop(change.key.name, None)


class NamespaceCeiling:
    """Made once per cluster, with the estimator's settings."""

    name = "NamespaceCeiling"
    role = PluginRole.LIMIT

    def __init__(self, settings: PluginSettings) -> None:
        self._ceilings = Ceilings()
        self.watches = (WatchedKind(NAMESPACES, Namespace, self._ceilings),)

    def estimate(self, question: EstimateQuestion) -> Estimate:
        return self._capped(question.request.namespace)

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        return self._capped(question.request.namespace)

    def _capped(self, namespace: str) -> Estimate:
        ceiling = self._ceilings.known.get(namespace)
        if ceiling is None:
            return no_opinion(f"namespace {namespace} has no {ANNOTATION}")
        if not ceiling:
            return Estimate(0, EstimateCode.UNSCHEDULABLE, (f"{ANNOTATION} of namespace {namespace} is 0",))
        return Estimate(ceiling)
