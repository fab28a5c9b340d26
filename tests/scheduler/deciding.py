"""A whole scheduling decision in one go, without estimators."""

from collections.abc import Mapping, Sequence

from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.cycle.decision import UNKNOWN, ClusterAvailability, SchedulingDecision, SchedulingMode
from karpool.scheduler.cycle.plugins import AffinityPeers
from karpool.scheduler.cycle.schedule import DEFAULTS, NeedsEstimates, decide, plan_cycle
from karpool.scheduler.cycle.settings import SchedulingSettings


def schedule(
    binding: Binding,
    clusters: Sequence[MemberCluster],
    availability: Mapping[str, ClusterAvailability],
    settings: SchedulingSettings = DEFAULTS,
    *,
    peers: AffinityPeers | None = None,
    mode: SchedulingMode = SchedulingMode.STEADY,
) -> SchedulingDecision:
    """In one go. Clusters without an entry are taken to have room for all, as Karmada does."""
    plan = plan_cycle(binding, clusters, settings, peers=peers, mode=mode)
    known = dict(availability)
    while isinstance(step := decide(plan, known), NeedsEstimates):
        unknown = ClusterAvailability(binding.replicas, UNKNOWN)
        known.update((cluster.name, unknown) for cluster in step.clusters)
    return step
