"""Pods that Karpenter buys nothing for: those with claims, or that say too much about their node. Pure.

A host name cannot be known before the machine is there, so nothing may be said about it, not even which
it must not be; the same goes for fields of nodes and for Karpenter's own labels.
"""

from collections.abc import Iterator

from karpool.model.karpenter.objects import NODEPOOL
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod import Pod
from karpool.model.requirements import WELL_KNOWN, NodeSelectorTerm, canonical_key

_DOMAIN = "karpenter.sh"


def refuses_pools(pod: Pod) -> bool:
    """Pods that ask to be on nodes of no pool are none of Karpenter's business."""
    return any(
        entry.key == NODEPOOL and entry.operator == "DoesNotExist"
        for term in _terms(pod)
        for entry in term.match_expressions or ()
    )


def refusal(pod: Pod) -> str:
    """Why the pod is ignored; empty: it is not. Claims are ignored unless Karpenter is told otherwise
    (`--ignore-dra-requests=false`, which is not imitated)."""
    if pod.spec.resource_claims:
        return "pod has Dynamic Resource Allocation requirements, which are not supported"
    if any(term.match_fields is not None for term in _terms(pod)):
        return "node selector term with matchFields is not supported"
    keys = [*(pod.spec.node_selector or ())]
    keys += [entry.key for term in _terms(pod) for entry in term.match_expressions or ()]
    restricted = next((key for key in keys if is_restricted(key)), None)
    return f"using label {restricted} is not allowed" if restricted is not None else ""


def is_restricted(key: str) -> bool:
    if canonical_key(key) in WELL_KNOWN:
        return False
    domain = key.rpartition("/")[0]
    return key == HOSTNAME or domain == _DOMAIN or domain.endswith(f".{_DOMAIN}")


def _terms(pod: Pod) -> Iterator[NodeSelectorTerm]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    yield from (required.node_selector_terms if required else None) or ()
