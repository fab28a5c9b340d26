"""Whether a cluster is one of those an affinity names: placements, and the targets of overrides."""

from typing import Any

from karpool.fleet.karmada.names import Object
from karpool.model.errors import Invalid
from karpool.model.labels import Selector, requirement
from karpool.model.meta import LabelSelector, convert


def matches_cluster(affinity: Object | None, cluster: Object) -> bool:
    """All parts that are given must agree; nothing given agrees with every cluster."""
    if not affinity:
        return True
    name, spec = cluster["metadata"]["name"], cluster.get("spec") or {}
    if name in (affinity.get("exclude") or ()):
        return False
    labels = cluster["metadata"].get("labels") or {}
    if affinity.get("labelSelector") is not None and not selects(affinity["labelSelector"], labels):
        return False
    if affinity.get("fieldSelector") is not None and not _fields_match(affinity["fieldSelector"], spec):
        return False
    names = affinity.get("clusterNames") or ()
    return not names or name in names


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """A label selector in object form; one that cannot be read selects nothing."""
    try:
        return convert(selector, LabelSelector).compile().matches(labels)
    except Invalid:
        return False


def _fields_match(selector: Object, spec: Object) -> bool:
    zones = spec.get("zones") or []
    fields = {key: spec[key] for key in ("provider", "region") if spec.get(key)}
    others = []
    for expression in selector.get("matchExpressions") or ():
        if expression.get("key") != "zone":
            others.append(expression)
        elif not _zones_match(expression, zones):
            return False
    try:
        terms = [requirement(each["key"], each["operator"], each.get("values") or ()) for each in others]
    except Invalid:
        return False
    return Selector(tuple(terms)).matches(fields)


def _zones_match(expression: Any, zones: list[str]) -> bool:
    values = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return any(zone in values for zone in zones)
        case "NotIn":
            return not any(zone in values for zone in zones)
        case "Exists":
            return bool(zones)
        case "DoesNotExist":
            return not zones
    return False
