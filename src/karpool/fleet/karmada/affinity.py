"""Affinities of raw objects: the targets of overrides, and the selectors of policies."""

from karpool.fleet.karmada.names import Object
from karpool.model.errors import Invalid
from karpool.model.karmada.affinity import ClusterAffinity, matcher
from karpool.model.karmada.cluster import read_cluster
from karpool.model.meta import LabelSelector, convert


def matches_cluster(affinity: Object | None, cluster: Object) -> bool:
    """All parts that are given must agree; one that cannot be read agrees with no cluster."""
    if not affinity:
        return True
    try:
        matches = matcher(convert(affinity, ClusterAffinity))
    except Invalid:
        return False
    return matches(read_cluster({"metadata": cluster["metadata"], "spec": cluster.get("spec")}))


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """A label selector in object form; one that cannot be read selects nothing."""
    try:
        return convert(selector, LabelSelector).compile().matches(labels)
    except Invalid:
        return False
