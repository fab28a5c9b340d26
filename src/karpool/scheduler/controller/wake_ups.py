"""Decides which bindings a change of a cluster affects: which to reschedule, and which may fit now.

A change of identity (labels, spec, deletion) affects every binding whose affinity matches the old or the new
cluster, as in Karmada. A change of capacity or APIs, or a new cluster, affects those that wait for capacity.
"""

from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster, ResourceSummary
from karpool.model.karmada.placement import TIER_NONE


def identity_changed(old: MemberCluster | None, new: MemberCluster | None) -> bool:
    """Whether bindings that have a result must be evaluated again."""
    if old is None or new is None:
        return False
    return (
        old.labels != new.labels
        or old.generation != new.generation
        or (new.is_deleting and not old.is_deleting)
    )


def room_grew(old: MemberCluster | None, new: MemberCluster | None) -> bool:
    """Whether something may fit into `new` that did not fit into `old`."""
    if new is None or new.is_deleting:
        return False
    if old is None:
        return True
    if not new.apis <= old.apis or new.price != old.price or new.is_ready != old.is_ready:
        return True
    return _has_more(old.summary, new.summary) or identity_changed(old, new)


def _has_more(old: ResourceSummary | None, new: ResourceSummary | None) -> bool:
    if new is None or old is new:
        return False
    if old is None or old.grades != new.grades:
        return True
    return any(new.free(name) > old.free(name) for name in new.allocatable)


def concerns(binding: Binding, *clusters: MemberCluster | None) -> bool:
    """Whether a change of identity affects a binding: its affinity matches before or after.

    With several groups the one in use is tested, unless the binding changed since it was chosen.
    """
    placement = binding.placement
    if not placement.has_named_groups:
        groups = placement.groups
    elif binding.observed_generation != binding.generation:
        return True
    else:
        name = binding.observing_affinity_name
        groups = (
            tuple(affinity_group for affinity_group in placement.groups if affinity_group.name == name)
            or placement.groups[:1]
        )
    present = [member_cluster for member_cluster in clusters if member_cluster is not None]
    return any(group.tier(cluster) < TIER_NONE for group in groups for cluster in present)


def may_go_to(binding: Binding, cluster: MemberCluster) -> bool:
    """Whether any group of the placement matches: waiting bindings try them all."""
    return any(group.tier(cluster) < TIER_NONE for group in binding.placement.groups)
