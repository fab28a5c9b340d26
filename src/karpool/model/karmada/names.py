"""Labels, annotations and names that schedulers share with the rest of Karmada, as upstream spells them."""

POLICY_ID = "propagationpolicy.karmada.io/permanent-id"
CLUSTER_POLICY_ID = "clusterpropagationpolicy.karmada.io/permanent-id"
MANAGED_BY = "binding.karmada.io/managed-by"
# A binding without any of these only has dependencies and is not scheduled.
SCHEDULED_LABELS = (POLICY_ID, CLUSTER_POLICY_ID, MANAGED_BY)

APPLIED_PLACEMENT = "policy.karmada.io/applied-placement"

NOT_READY = "cluster.karmada.io/not-ready"
UNREACHABLE = "cluster.karmada.io/unreachable"
TERMINATING = "cluster.karmada.io/terminating"

DEFAULT_SCHEDULER = "default-scheduler"
RESOURCE_BINDING = "ResourceBinding"
CLUSTER_RESOURCE_BINDING = "ClusterResourceBinding"


def binding_name(kind: str, name: str) -> str:
    """Return the name of the binding of a template."""
    return f"{name.replace(':', '.')}-{kind}".lower()
