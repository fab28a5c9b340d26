"""Small clusters of three clouds as files, with the labels that real nodes carry, by who made the nodes.

Written from what the providers document, not from the product: what it ships must fit to these.
"""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
LONG_AGO = "2026-01-01T00:00:00Z"
POOL, CAPACITY_TYPE = "karpenter.sh/nodepool", "karpenter.sh/capacity-type"
# A type that nearly every region sells, its CPUs and GiB; then what some regions have instead.
AWS_TYPES = (("m5.xlarge", 4, 16), ("m6i.xlarge", 4, 16), ("m6g.xlarge", 4, 16), ("m7g.xlarge", 4, 16))
AZURE_TYPES = (("Standard_D4s_v5", 4, 16), ("Standard_D4s_v3", 4, 16), ("Standard_D4s_v4", 4, 16))
GCP_TYPES = (("n2-standard-4", 4, 16), ("e2-standard-4", 4, 16), ("n2d-standard-4", 4, 16))


@dataclass(frozen=True)
class Maker:
    """Who makes nodes: a Karpenter with its pools, or the cloud's own groups under cluster-autoscaler."""

    name: str
    cloud: str
    is_karpenter: bool
    node_class: tuple[str, str] = ("", "")  # group, kind


MAKERS = (
    Maker("karpenter-aws", "aws", True, ("karpenter.k8s.aws", "EC2NodeClass")),
    Maker("eks-auto", "aws", True, ("eks.amazonaws.com", "NodeClass")),
    Maker("eks-managed", "aws", False),
    Maker("karpenter-azure", "azure", True, ("karpenter.azure.com", "AKSNodeClass")),
    Maker("aks", "azure", False),
    Maker("karpenter-gcp", "gcp", True, ("karpenter.k8s.gcp", "GCENodeClass")),
    Maker("gke", "gcp", False),
)
TYPES = {"aws": AWS_TYPES, "azure": AZURE_TYPES, "gcp": GCP_TYPES}


def labels(maker: Maker, kind: str, region: str, zone: str, spot: bool = False) -> dict[str, str]:
    arm = maker.cloud == "aws" and kind.split(".", maxsplit=1)[0].endswith("g")
    return {
        "beta.kubernetes.io/arch": "arm64" if arm else "amd64",
        "beta.kubernetes.io/instance-type": kind,
        "beta.kubernetes.io/os": "linux",
        "failure-domain.beta.kubernetes.io/region": region,
        "failure-domain.beta.kubernetes.io/zone": zone,
        "kubernetes.io/arch": "arm64" if arm else "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": kind,
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": zone,
        **_OWN[maker.name](kind, spot),
    }


def _karpenter(spot: bool) -> dict[str, str]:
    return {
        POOL: "general",
        CAPACITY_TYPE: "spot" if spot else "on-demand",
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
    }


def _karpenter_aws(kind: str, spot: bool, domain: str = "karpenter.k8s.aws") -> dict[str, str]:
    family, _, size = kind.partition(".")
    facts = {
        "category": family[0],
        "family": family,
        "generation": family[1],
        "size": size,
        "cpu": "4",
        "memory": "16384",
    }
    return {
        **_karpenter(spot),
        **{f"{domain}/instance-{key}": value for key, value in facts.items()},
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "k8s.io/cloud-provider-aws": "0123456789abcdef",
    }


def _eks_auto(kind: str, spot: bool) -> dict[str, str]:
    own = _karpenter_aws(kind, spot, "eks.amazonaws.com")
    del own["karpenter.k8s.aws/ec2nodeclass"]
    return {**own, "eks.amazonaws.com/compute-type": "auto", "eks.amazonaws.com/nodeclass": "default"}


def _eks_managed(kind: str, spot: bool) -> dict[str, str]:
    return {
        "eks.amazonaws.com/capacityType": "SPOT" if spot else "ON_DEMAND",
        "eks.amazonaws.com/nodegroup": "workers",
        "eks.amazonaws.com/nodegroup-image": "ami-0123456789abcdef0",
        "eks.amazonaws.com/sourceLaunchTemplateId": "lt-0123456789abcdef0",
    }


def _karpenter_azure(kind: str, spot: bool) -> dict[str, str]:
    return {
        **_karpenter(spot),
        "karpenter.azure.com/sku-name": kind,
        "karpenter.azure.com/sku-family": "D",
        "karpenter.azure.com/sku-cpu": "4",
        "karpenter.azure.com/sku-memory": "16384",
        "karpenter.azure.com/sku-gpu-count": "0",
        "karpenter.azure.com/sku-version": kind[-1],
        "karpenter.azure.com/sku-networking-accelerated": "true",
        "karpenter.azure.com/sku-storage-premium-capable": "true",
        "kubernetes.azure.com/cluster": "MC_group_cluster_region",
        "kubernetes.azure.com/mode": "user",
        "kubernetes.azure.com/os-sku": "Ubuntu",
        "kubernetes.azure.com/scalesetpriority": "spot" if spot else "regular",
    }


def _aks(kind: str, spot: bool) -> dict[str, str]:
    own = {
        "agentpool": "nodepool1",
        "kubernetes.azure.com/agentpool": "nodepool1",
        "kubernetes.azure.com/cluster": "MC_group_cluster_region",
        "kubernetes.azure.com/mode": "system",
        "kubernetes.azure.com/node-image-version": "AKSUbuntu-2204gen2containerd-202607.01.0",
        "kubernetes.azure.com/os-sku": "Ubuntu",
        "kubernetes.azure.com/role": "agent",
        "kubernetes.io/role": "agent",
        "storageprofile": "managed",
        "storagetier": "Premium_LRS",
        "node.kubernetes.io/exclude-from-external-load-balancers": "false",
    }
    return own | ({"kubernetes.azure.com/scalesetpriority": "spot"} if spot else {})


def _karpenter_gcp(kind: str, spot: bool) -> dict[str, str]:
    family, shape, size = kind.split("-")
    facts = {
        "category": family[0],
        "family": family,
        "generation": family[1],
        "shape": shape,
        "size": size,
        "cpu": "4",
        "memory": "16384",
    }
    return {
        **_karpenter(spot),
        **{f"karpenter.k8s.gcp/instance-{key}": value for key, value in facts.items()},
        "karpenter.k8s.gcp/gcenodeclass": "default",
        "topology.gke.io/zone": "",
    }


def _gke(kind: str, spot: bool) -> dict[str, str]:
    own = {
        "cloud.google.com/gke-boot-disk": "pd-balanced",
        "cloud.google.com/gke-container-runtime": "containerd",
        "cloud.google.com/gke-cpu-scaling-level": "4",
        "cloud.google.com/gke-logging-variant": "DEFAULT",
        "cloud.google.com/gke-max-pods-per-node": "110",
        "cloud.google.com/gke-nodepool": "default-pool",
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/gke-provisioning": "spot" if spot else "standard",
        "cloud.google.com/gke-stack-type": "IPV4",
        "cloud.google.com/machine-family": kind.split("-", maxsplit=1)[0],
        "iam.gke.io/gke-metadata-server-enabled": "true",
    }
    return own | ({"cloud.google.com/gke-spot": "true"} if spot else {})


_OWN = {
    "karpenter-aws": _karpenter_aws,
    "eks-auto": _eks_auto,
    "eks-managed": _eks_managed,
    "karpenter-azure": _karpenter_azure,
    "aks": _aks,
    "karpenter-gcp": _karpenter_gcp,
    "gke": _gke,
}


def provider_id(maker: Maker, zone: str, name: str) -> str:
    if maker.cloud == "aws":
        return f"aws:///{zone}/i-{abs(hash(name)) % 16**17:017x}"
    if maker.cloud == "gcp":
        return f"gce://project/{zone}/{name}"
    group = "/subscriptions/0/resourceGroups/mc_group/providers/Microsoft.Compute"
    if maker.is_karpenter:
        return f"azure://{group}/virtualMachines/{name}"
    return f"azure://{group}/virtualMachineScaleSets/aks-nodepool1-12345678-vmss/virtualMachines/{name}"


def node(
    maker: Maker, name: str, kind: str, region: str, zone: str, cpu: int = 4, *, spot: bool = False
) -> list[Object]:
    """And its claim, where Karpenter made it."""
    amounts = {"cpu": f"{cpu * 1000 - 80}m", "memory": "13Gi", "pods": "58", "ephemeral-storage": "17Gi"}
    own, address = labels(maker, kind, region, zone, spot), provider_id(maker, zone, name)
    shown = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**own, "kubernetes.io/hostname": name}},
        "spec": {"providerID": address},
        "status": {
            "allocatable": amounts,
            "capacity": {**amounts, "cpu": str(cpu), "memory": "15Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    if not maker.is_karpenter:
        return [shown]
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": LONG_AGO}
        for kind in ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
    ]
    group, class_kind = maker.node_class
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": f"general-{name}", "uid": f"uid-{name}", "labels": own},
        "spec": {
            "nodeClassRef": {"group": group, "kind": class_kind, "name": "default"},
            "requirements": [],
        },
        "status": {
            "providerID": address,
            "nodeName": name,
            "capacity": shown["status"]["capacity"],
            "allocatable": amounts,
            "conditions": conditions,
        },
    }
    return [shown, claim]


# What people write in a pool of each provider's Karpenter, as its own examples do.
_POOL_REQUIREMENTS = {
    "karpenter-aws": [
        ("karpenter.k8s.aws/instance-category", "In", ["c", "m", "r"]),
        ("karpenter.k8s.aws/instance-generation", "Gt", ["2"]),
    ],
    "eks-auto": [
        ("eks.amazonaws.com/instance-category", "In", ["c", "m", "r"]),
        ("eks.amazonaws.com/instance-generation", "Gt", ["4"]),
    ],
    "karpenter-azure": [("karpenter.azure.com/sku-family", "In", ["D", "E"])],
    "karpenter-gcp": [("karpenter.k8s.gcp/instance-category", "In", ["n", "e", "c"])],
}


def autoscaler(maker: Maker, region: str, zone: str) -> list[Object]:
    """The NodePool, or what cluster-autoscaler writes of its groups."""
    if not maker.is_karpenter:
        return [_autoscaler_status(maker, zone)]
    group, kind = maker.node_class
    requirements = [
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
        *({"key": k, "operator": op, "values": values} for k, op, values in _POOL_REQUIREMENTS[maker.name]),
    ]
    spec = {
        "requirements": requirements,
        "nodeClassRef": {"group": group, "kind": kind, "name": "default"},
        "expireAfter": "720h",
    }
    disruption = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "100%"}],
    }
    return [
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": "general"},
            "spec": {"template": {"spec": spec}, "disruption": disruption},
        }
    ]


def _autoscaler_status(maker: Maker, zone: str) -> Object:
    project = "https://www.googleapis.com/compute/v1/projects/project"
    name = {
        "eks-managed": "eks-workers-1cc0ffee-aaaa-bbbb-cccc-0123456789ab",
        "aks": "aks-nodepool1-12345678-vmss",
        "gke": f"{project}/zones/{zone}/instanceGroups/gke-cluster-default-pool-1a2b3c4d-grp",
    }[maker.name]
    status = f"""\
time: 2026-08-01 10:00:00 +0000 UTC
autoscalerStatus: Running
nodeGroups:
- name: {name}
  health:
    status: Healthy
    nodeCounts: {{registered: {{total: 2, ready: 2}}}}
    cloudProviderTarget: 2
    minSize: 1
    maxSize: 10
  scaleUp: {{status: NoActivity}}
  scaleDown: {{status: NoCandidates}}
"""
    metadata = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"status": status}}


def pod(name: str, on: str, cpu: str = "500m") -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "labels": {"app": "web"}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": on,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {
            "phase": "Running",
            "startTime": LONG_AGO,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO}],
        },
    }
