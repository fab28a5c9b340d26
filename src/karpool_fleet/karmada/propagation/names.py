"""Labels, annotations, finalizers and generated names of Karmada.

They are spelled as upstream, so that tools for a real control plane work here. Permanent ids are derived, not
random: a restarted controller writes the same ones.
"""

import hashlib
from typing import Any

from karpool.model.karmada import names
from karpool.model.kubernetes.api_resources import ApiResource

Object = dict[str, Any]

# The claim on a template: labels hold ids, annotations hold names.
POLICY_ID = names.POLICY_ID
POLICY_NAMESPACE = "propagationpolicy.karmada.io/namespace"
POLICY_NAME = "propagationpolicy.karmada.io/name"
CLUSTER_POLICY_ID = names.CLUSTER_POLICY_ID
CLUSTER_POLICY_NAME = "clusterpropagationpolicy.karmada.io/name"
CLAIM_LABELS = (POLICY_ID, CLUSTER_POLICY_ID)
CLAIM_ANNOTATIONS = (POLICY_NAMESPACE, POLICY_NAME, CLUSTER_POLICY_NAME)

# From a work to its binding.
BINDING_ID = "resourcebinding.karmada.io/permanent-id"
BINDING_NAMESPACE = "resourcebinding.karmada.io/namespace"
BINDING_NAME = "resourcebinding.karmada.io/name"
CLUSTER_BINDING_ID = "clusterresourcebinding.karmada.io/permanent-id"
CLUSTER_BINDING_NAME = "clusterresourcebinding.karmada.io/name"

# From a member's object to its work.
WORK_ID = "work.karmada.io/permanent-id"
WORK_NAMESPACE = "work.karmada.io/namespace"
WORK_NAME = "work.karmada.io/name"
CONFLICT_RESOLUTION = "work.karmada.io/conflict-resolution"
MANAGED = "karmada.io/managed"
TEMPLATE_UID = "resourcetemplate.karmada.io/uid"
TEMPLATE_GENERATION = "resourcetemplate.karmada.io/generation"
MANAGED_LABELS = "resourcetemplate.karmada.io/managed-labels"
MANAGED_ANNOTATIONS = "resourcetemplate.karmada.io/managed-annotations"
RETAIN_REPLICAS = "resourcetemplate.karmada.io/retain-replicas"

APPLIED_PLACEMENT = names.APPLIED_PLACEMENT
APPLIED_OVERRIDES = "policy.karmada.io/applied-overrides"
APPLIED_CLUSTER_OVERRIDES = "policy.karmada.io/applied-cluster-overrides"

CLUSTER_FINALIZER = "karmada.io/cluster-controller"
BINDING_FINALIZER = "karmada.io/binding-controller"
CLUSTER_BINDING_FINALIZER = "karmada.io/cluster-resource-binding-controller"
WORK_FINALIZER = "karmada.io/execution-controller"

NOT_READY = names.NOT_READY
UNREACHABLE = names.UNREACHABLE
TERMINATING = names.TERMINATING

GATHER_SECONDS = 0.1  # how long reports of members are batched

SYSTEM_NAMESPACE = "karmada-system"
LEASE_NAMESPACE = "karmada-cluster"
_SPACE = "karmada-es-"

OVERRIDEPOLICIES = ApiResource("policy.karmada.io", "v1alpha1", "overridepolicies", "OverridePolicy")
CLUSTEROVERRIDEPOLICIES = ApiResource(
    "policy.karmada.io", "v1alpha1", "clusteroverridepolicies", "ClusterOverridePolicy", namespaced=False
)


def execution_space(cluster: str) -> str:
    """Return the namespace of the control plane that holds a member's works."""
    return _SPACE + cluster


def cluster_of(space: str) -> str:
    """Return the member of an execution namespace; empty for any other namespace."""
    return space.removeprefix(_SPACE) if space.startswith(_SPACE) else ""


def is_reserved(namespace: str) -> bool:
    """Whether objects of the namespace are never templates."""
    return namespace.startswith(("karmada-", "kube-"))


binding_name = names.binding_name


# Generated names have no vowels, so that they spell no words.
_SAFE = "bcdfghjklmnpqrstvwxz2456789"


def work_name(kind: str, name: str, namespace: str) -> str:
    """Return the name of a template's work; it is the same in every execution namespace."""
    plain = name.replace(":", ".").lower()
    whole = "-".join(part for part in (namespace, plain, kind) if part).lower()
    number = int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=4).digest(), "big")
    return f"{plain}-{''.join(_SAFE[int(digit)] for digit in str(number))}"


def permanent_id(*parts: str) -> str:
    """Return an id in the form of a UUID; equal parts give equal ids."""
    text = hashlib.blake2b("\x00".join(parts).encode(), digest_size=16).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"
