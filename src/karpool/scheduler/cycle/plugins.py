"""The plugins of a scheduling cycle: filters of the feasible clusters, and scores of the preferred ones.

Filters run in a fixed order, and the first that refuses gives the reason. Neither readiness nor capacity is
filtered: readiness acts through taints, capacity later.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from karpool.model.infeasible import Infeasible
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.karmada.names import binding_name
from karpool.model.karmada.placement import TIER_NONE, AffinityGroup
from karpool.model.taints import untolerated
from karpool.scheduler.cycle.decision import NotScheduled, ScheduleReason
from karpool.scheduler.cycle.installed_plugins import InstalledPlugin

Check = Callable[[MemberCluster], str]  # returns the reason to refuse, or ""
Score = Callable[[MemberCluster], int]

NO_API = "cluster(s) did not have the API resource"
NO_MATCH = "cluster(s) did not match the placement cluster affinity constraint"
EVICTING = "cluster(s) is in the process of eviction"
WITHOUT_FRIENDS = "ResourceBinding with the same affinity group does not target this cluster"
WITH_FOES = "cluster already has workload with the same anti-affinity group"
_PROPERTIES = {"provider": "provider", "region": "region", "zone": "zones"}


@dataclass(frozen=True, slots=True)
class AffinityPeers:
    """The clusters of bindings of the same groups: `friends` None if there are none yet."""

    friends: frozenset[str] | None = None
    foes: frozenset[str] = frozenset()


def peers_of(binding: Binding, others: Iterable[Binding]) -> AffinityPeers:
    """`others`: bindings of the namespace, each in its newest known version; may include `binding`."""
    own_name = binding_name(binding.template.kind, binding.template.name)
    friends: frozenset[str] | None = None
    foes: set[str] = set()
    for other in others:
        if other.key.name == own_name or other.key.namespace != binding.key.namespace or not other.targets:
            continue
        places = frozenset(target.name for target in other.targets)
        if binding.affinity_group and other.affinity_group == binding.affinity_group:
            friends = places if friends is None else friends & places
        if binding.anti_affinity_group and other.anti_affinity_group == binding.anti_affinity_group:
            foes |= places
    return AffinityPeers(friends, frozenset(foes))


def filter_clusters(
    clusters: Iterable[MemberCluster], checks: Sequence[tuple[str, Check]]
) -> tuple[list[MemberCluster], list[NotScheduled]]:
    """The clusters that pass every check, and the others with the first reason, without deleted ones."""
    passed: list[MemberCluster] = []
    refused: list[NotScheduled] = []
    for cluster in clusters:
        if cluster.is_deleting:
            continue
        for plugin, check in checks:
            if reason := check(cluster):
                refused.append(_refusal(plugin, reason, cluster))
                break
        else:
            passed.append(cluster)
    return passed, refused


def _refusal(plugin: str, reason: str, cluster: MemberCluster) -> NotScheduled:
    if plugin in FILTERS:
        return Infeasible(ScheduleReason(plugin), reason, cluster.name)
    return Infeasible(ScheduleReason.PLUGIN, f"plugin {plugin}: {reason}", cluster.name)


def fit_error(clusters: int, refused: Iterable[NotScheduled]) -> str:
    """Why no cluster is left, counted by reason."""
    counts: dict[str, int] = {}
    for refusal in refused:
        counts[refusal.detail] = counts.get(refusal.detail, 0) + 1
    shown = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items())) or "no cluster exists"
    return f"0/{clusters} clusters are available: {shown}."


def checks_for(
    binding: Binding,
    group: AffinityGroup,
    plugins: frozenset[str],
    peers: AffinityPeers | None,
    others: Sequence[InstalledPlugin] = (),
) -> list[tuple[str, Check]]:
    """The filters that can refuse anything for this binding, those of other packages last. `peers` None:
    their gate is off.
    """
    targets = frozenset(target.name for target in binding.targets)
    made = {
        "APIEnablement": _has_api(binding, targets),
        "TaintToleration": _tolerates(binding, targets),
        "ClusterAffinity": _matches(binding, group),
        "SpreadConstraint": _has_properties(binding),
        "ClusterEviction": _is_not_evicting(binding),
        "WorkloadAffinity": _with_friends(peers, targets),
        "WorkloadAntiAffinity": _without_foes(peers, targets),
    }
    checks = [(name, check) for name, check in made.items() if check is not None and name in plugins]
    return [
        *checks,
        *((plugin.name, partial(plugin.refusal, binding)) for plugin in others if plugin.filters),
    ]


FILTERS = (
    "APIEnablement",
    "TaintToleration",
    "ClusterAffinity",
    "SpreadConstraint",
    "ClusterEviction",
    "WorkloadAffinity",
    "WorkloadAntiAffinity",
)


def _has_api(binding: Binding, targets: frozenset[str]) -> Check:
    served = (binding.template.api_version, binding.template.kind)
    return lambda cluster: "" if served in cluster.apis or cluster.name in targets else NO_API


def _tolerates(binding: Binding, targets: frozenset[str]) -> Check:
    """Check taints. On current targets the taint manager decides about eviction, so they pass."""
    tolerations = binding.placement.tolerations

    def check(cluster: MemberCluster) -> str:
        if not cluster.taints or cluster.name in targets:
            return ""
        taint = untolerated(cluster.taints, tolerations)
        return "" if taint is None else f"cluster(s) had untolerated taint {{{taint}}}"

    return check


def _matches(binding: Binding, group: AffinityGroup) -> Check:
    if binding.is_workload and group.overflow:
        return lambda cluster: NO_MATCH if group.tier(cluster) == TIER_NONE else ""
    return lambda cluster: "" if group.matches(cluster) else NO_MATCH


def _has_properties(binding: Binding) -> Check | None:
    fields = [
        constraint.by_field for constraint in binding.placement.spread if constraint.by_field in _PROPERTIES
    ]
    if not fields:
        return None

    def check(cluster: MemberCluster) -> str:
        has = {"provider": cluster.provider, "region": cluster.region, "zone": cluster.zones}
        missing = next((field for field in fields if not has[field]), None)
        return f"cluster(s) did not have {_PROPERTIES[missing]} property" if missing else ""

    return check


def _is_not_evicting(binding: Binding) -> Check | None:
    if not binding.evicting:
        return None
    return lambda cluster: EVICTING if cluster.name in binding.evicting else ""


def _with_friends(peers: AffinityPeers | None, targets: frozenset[str]) -> Check | None:
    if peers is None or peers.friends is None:
        return None
    friends = peers.friends
    return lambda cluster: "" if cluster.name in friends or cluster.name in targets else WITHOUT_FRIENDS


def _without_foes(peers: AffinityPeers | None, targets: frozenset[str]) -> Check | None:
    if peers is None or not peers.foes:
        return None
    foes = peers.foes
    return lambda cluster: WITH_FOES if cluster.name in foes and cluster.name not in targets else ""


# Scores

SCORES = ("ClusterLocality",)
LOCALITY = 100  # as in Karmada; its other score, of the affinity, is always 0


def scores_for(
    binding: Binding,
    targets: Container[str],
    plugins: frozenset[str],
    others: Sequence[InstalledPlugin] = (),
) -> list[tuple[str, Score]]:
    """The scores of this binding. Our own one prefers its current clusters."""
    scores: list[tuple[str, Score]] = []
    if "ClusterLocality" in plugins:
        scores.append(("ClusterLocality", lambda cluster: LOCALITY if cluster.name in targets else 0))
    return [*scores, *((plugin.name, partial(plugin.score, binding)) for plugin in others if plugin.scores)]
