"""Pods for which Karpenter launches no node: those with claims, or with unsupported node constraints. Pure.

A host name is not known before the machine exists, so a pod may not constrain it, not even by exclusion; the
same goes for node fields and for Karpenter's own labels.
"""

from collections.abc import Iterator

from karpool.model.karpenter.objects import NODEPOOL
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod import Pod
from karpool.model.requirements import WELL_KNOWN, NodeSelectorTerm, canonical_key

_DOMAIN = "karpenter.sh"


def refuses_pools(pod: Pod) -> bool:
    """Whether a pod requires nodes of no pool; Karpenter ignores it."""
    return any(
        entry.key == NODEPOOL and entry.operator == "DoesNotExist"
        for term in _terms(pod)
        for entry in term.match_expressions or ()
    )


def refusal(pod: Pod) -> str:
    """Return why the pod is ignored, or an empty text.

    Pods with claims are ignored, as by default upstream (`--ignore-dra-requests=false` is not simulated).
    """
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
