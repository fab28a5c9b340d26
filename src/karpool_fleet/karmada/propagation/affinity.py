"""Affinities of raw objects: the targets of overrides and the selectors of policies."""

from karpool.model.errors import Invalid
from karpool.model.karmada.affinity import ClusterAffinity, matcher
from karpool.model.karmada.member_cluster import read_cluster
from karpool.model.kubernetes.meta import LabelSelector, decode
from karpool_fleet.karmada.propagation.names import Object


def matches_cluster(affinity: Object | None, cluster: Object) -> bool:
    """Whether a cluster matches all given parts; a part that cannot be read matches no cluster."""
    if not affinity:
        return True
    try:
        matches = matcher(decode(affinity, ClusterAffinity))
    except Invalid:
        return False
    return matches(read_cluster({"metadata": cluster["metadata"], "spec": cluster.get("spec")}))


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Match a label selector in object form; one that cannot be read selects nothing."""
    try:
        return decode(selector, LabelSelector).compile().matches(labels)
    except Invalid:
        return False
