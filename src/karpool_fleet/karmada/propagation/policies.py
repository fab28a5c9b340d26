"""Chooses the policy of a template: matching, priorities, claims and preemption.

A namespaced policy comes before a cluster-wide one. Among equals the explicit priority decides, then the
exactness of the match, then the name of the policy. A template stays with the policy that claimed it, unless
another may preempt it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from karpool_fleet.karmada.propagation.affinity import selects
from karpool_fleet.karmada.propagation.names import (
    CLUSTER_POLICY_ID,
    CLUSTER_POLICY_NAME,
    POLICY_ID,
    POLICY_NAME,
    POLICY_NAMESPACE,
    Object,
)

MISMATCH, MATCH_ALL, MATCH_LABELS, MATCH_NAME = range(4)


@dataclass(frozen=True, slots=True)
class Claim:
    """The policy that a template is claimed by."""

    namespace: str  # empty for a cluster-wide policy
    name: str
    id: str

    @property
    def labels(self) -> dict[str, str]:
        return {POLICY_ID if self.namespace else CLUSTER_POLICY_ID: self.id}

    @property
    def annotations(self) -> dict[str, str]:
        if not self.namespace:
            return {CLUSTER_POLICY_NAME: self.name}
        return {POLICY_NAMESPACE: self.namespace, POLICY_NAME: self.name}


def claim_by(policy: Object) -> Claim:
    meta = policy["metadata"]
    namespace = meta.get("namespace", "")
    labels = meta.get("labels") or {}
    # Upstream generates the id at admission; the uid of the policy serves the same purpose.
    ident = labels.get(POLICY_ID if namespace else CLUSTER_POLICY_ID) or meta["uid"]
    return Claim(namespace, meta["name"], ident)


def claim_on(template: Object) -> Claim | None:
    labels = template["metadata"].get("labels") or {}
    notes = template["metadata"].get("annotations") or {}
    if labels.get(POLICY_ID):
        return Claim(notes.get(POLICY_NAMESPACE, ""), notes.get(POLICY_NAME, ""), labels[POLICY_ID])
    if labels.get(CLUSTER_POLICY_ID):
        return Claim("", notes.get(CLUSTER_POLICY_NAME, ""), labels[CLUSTER_POLICY_ID])
    return None


def match(selector: Object, template: Object, policy_namespace: str) -> int:
    """Return how exactly a resource selector matches a template.

    With a name, the label selector is ignored.
    """
    meta = template["metadata"]
    if (selector["apiVersion"], selector["kind"]) != (template["apiVersion"], template["kind"]):
        return MISMATCH
    # A namespaced policy applies to its own namespace only, whatever its selectors say.
    if policy_namespace and meta.get("namespace", "") != policy_namespace:
        return MISMATCH
    if selector.get("namespace") and selector["namespace"] != meta.get("namespace", ""):
        return MISMATCH
    if selector.get("name"):
        return MATCH_NAME if selector["name"] == meta["name"] else MISMATCH
    if selector.get("labelSelector") is not None:
        is_selected = selects(selector["labelSelector"], meta.get("labels") or {})
        return MATCH_LABELS if is_selected else MISMATCH
    return MATCH_ALL


def match_policy(policy: Object, template: Object) -> int:
    """The best match among a policy's selectors."""
    namespace = policy["metadata"].get("namespace", "")
    selectors = policy["spec"].get("resourceSelectors") or ()
    return max((match(selector, template, namespace) for selector in selectors), default=MISMATCH)


def priority_of(policy: Object) -> int:
    return int(policy["spec"].get("priority") or 0)


def is_live(policy: Object) -> bool:
    return "deletionTimestamp" not in policy["metadata"]


def best(policies: Iterable[Object], template: Object) -> Object | None:
    """Return the first policy among those that match the template."""
    matching = [
        ((-priority_of(policy), -exact, policy["metadata"]["name"]), policy)
        for policy in policies
        if is_live(policy) and (exact := match_policy(policy, template)) > MISMATCH
    ]
    return min(matching, key=lambda pair: pair[0])[1] if matching else None


def choose(
    template: Object, claimed: Object | None, own: Iterable[Object], wide: Iterable[Object]
) -> Object | None:
    """Return the policy of a template.

    `claimed` is the policy of its claim, `own` are those of its namespace, `wide` the cluster-wide ones.
    """
    own, wide = list(own), list(wide)
    if claimed is None or not is_live(claimed) or match_policy(claimed, template) == MISMATCH:
        return best(own, template) or best(wide, template)
    taking = (policy for policy in own if _may_preempt(policy, claimed))
    taking_wide = (policy for policy in wide if _may_preempt(policy, claimed))
    return best(taking, template) or best(taking_wide, template) or claimed


def _may_preempt(policy: Object, claimed: Object) -> bool:
    if policy["spec"].get("preemption") != "Always":
        return False
    namespaced, held = (bool(obj["metadata"].get("namespace")) for obj in (policy, claimed))
    if namespaced and not held:
        return True
    return namespaced == held and priority_of(policy) > priority_of(claimed)


def placement_of(policy: Object) -> Object:
    """Return the placement with the defaults of upstream's admission."""
    placement: Object = dict(policy["spec"].get("placement") or {})
    replicas = placement.get("replicaScheduling")
    if replicas is not None:
        replicas = {"replicaSchedulingType": "Divided", **replicas}
        if replicas["replicaSchedulingType"] == "Divided":
            replicas.setdefault("replicaDivisionPreference", "Weighted")
        placement["replicaScheduling"] = replicas
    if placement.get("spreadConstraints"):
        placement["spreadConstraints"] = [
            _spread(constraint) for constraint in placement["spreadConstraints"]
        ]
    return placement


def _spread(constraint: Object) -> Object:
    filled = dict(constraint)
    if not filled.get("spreadByField") and not filled.get("spreadByLabel"):
        filled["spreadByField"] = "cluster"
    if not filled.get("minGroups"):
        filled["minGroups"] = 1
    return filled
