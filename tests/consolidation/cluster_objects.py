"""Small Karpenter clusters as objects, for files and for a live API server."""

POOL_LABEL = "karpenter.sh/nodepool"
LONG_AGO = "2026-01-01T00:00:00Z"
SIZES = {"m5.large": ("2", "8Gi"), "m5.xlarge": ("4", "16Gi"), "m5.2xlarge": ("8", "32Gi")}


def pool(name="general", *, types=("m5.large", "m5.xlarge", "m5.2xlarge"), annotations=None, **disruption):
    given = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{"nodes": "100%"}], **disruption}
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
    ]
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "template": {"spec": {"requirements": requirements, "nodeClassRef": reference}},
            "disruption": {"consolidateAfter": "0s", **given},
        },
    }


def node(name, type_="m5.large", *, pool="general", annotations=None):
    """A node and its claim, initialised long ago."""
    cpu, memory = SIZES[type_]
    amounts = {"cpu": cpu, "memory": memory, "pods": "50"}
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/region": "us-east-1",
        "topology.kubernetes.io/zone": "us-east-1a",
        "node.kubernetes.io/instance-type": type_,
        "karpenter.sh/capacity-type": "on-demand",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        POOL_LABEL: pool,
    }
    kinds = ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": LONG_AGO}
        for kind in kinds
    ]
    provider = f"kwok://{name}"
    own = {**labels, "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    return (
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": own, "annotations": annotations or {}},
            "spec": {"providerID": provider},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": f"claim-{name}", "uid": f"uid-{name}", "labels": labels},
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [],
            },
            "status": {
                "providerID": provider,
                "nodeName": name,
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": conditions,
            },
        },
    )


def pod(name, on, cpu="500m", *, annotations=None, labels=None, **spec):
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    started = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "annotations": annotations or {},
            "labels": labels or {"app": "web"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": on,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
            **spec,
        },
        "status": {"phase": "Running", "startTime": LONG_AGO, "conditions": started},
    }


def flat(*parts):
    """Objects, from objects and groups of them."""
    found = []
    for part in parts:
        found += flat(*part) if isinstance(part, tuple | list) else [part]
    return found
