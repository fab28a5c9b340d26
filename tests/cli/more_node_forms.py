"""Nodes as device plugins, labellers and clouds describe them, besides those of the model's fixtures.

Written from what the projects document and from what their users post, not from the product. Of each node:
its labels, annotations and what it offers; then what is to be seen: cards (None: not told), and by resource
the devices, what they are called, MiB of memory, most sharers, and MIG profile or partition.
"""

from typing import Any

HAMI, HAMI_AMD = "hami.io/node-nvidia-register", "hami.io/node-amd-register"
VOLCANO = "volcano.sh/node-vgpu-register"
GKE, EKS = "cloud.google.com/gke-", "eks.amazonaws.com/instance-"
L40S = {
    "nvidia.com/gpu.product": "NVIDIA-L40S",
    "nvidia.com/gpu.memory": "46068",
    "nvidia.com/gpu.count": "4",
}
SHARED_L40S = {**L40S, "nvidia.com/gpu.product": "NVIDIA-L40S-SHARED"}
H100S = ",10,81559,100,NVIDIA-NVIDIA H100 80GB HBM3,0,true"
RTX2080 = "NVIDIA-NVIDIA GeForce RTX 2080 Ti"

Seen = tuple[int | None, dict[str, tuple[int, str, int | None, int | None, str]]]


def form(
    labels: dict[str, str], offered: dict[str, int], seen: Seen, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    return {"labels": labels, "annotations": annotations or {}, "offered": offered, "seen": seen}


def gpus(number: int) -> dict[str, int]:
    return {"nvidia.com/gpu": number}


NODE_FORMS: dict[str, dict[str, Any]] = {
    # HAMi, by the age of the register
    "hami-7-fields": form(
        {},
        gpus(10),
        (1, {"nvidia.com/gpu": (1, RTX2080, 11264, 10, "")}),
        {HAMI: f"a,10,11264,100,{RTX2080},0,true:"},
    ),
    "hami-index-and-mode": form(
        {},
        gpus(20),
        (2, {"nvidia.com/gpu": (2, "H100-SXM5-80GB", 81559, 10, "")}),
        {HAMI: f"a{H100S},6,hami-core:b{H100S},7,hami-core:"},
    ),
    "hami-memory-scaling": form(
        {},
        gpus(10),
        (1, {"nvidia.com/gpu": (1, "H100-SXM5-80GB", 146806, 10, "")}),
        {HAMI: "a,10,146806,100,NVIDIA-NVIDIA H100 80GB HBM3,0,true,0,hami-core:"},
    ),
    "hami-json-mig": form(
        {},
        gpus(7),
        (1, {"nvidia.com/gpu": (1, "A100-PCIE-40GB", 40960, 7, "")}),
        {
            HAMI: '[{"id":"a","count":7,"devmem":40960,"devcore":100,"type":"NVIDIA-NVIDIA A100-PCIE-40GB",'
            '"mode":"mig","health":true,"index":0,"numa":1,"devicevendor":"NVIDIA","custominfo":null}]'
        },
    ),
    "hami-one-unhealthy": form(
        {},
        gpus(10),
        (2, {"nvidia.com/gpu": (1, "T4", 15360, 10, "")}),
        {HAMI: "a,10,15360,100,NVIDIA-Tesla T4,0,false:b,10,15360,100,NVIDIA-Tesla T4,0,true:"},
    ),
    "hami-not-registered-yet": form({}, gpus(10), (0, {}), {HAMI: ""}),
    "hami-two-vendors": form(
        {},
        {"nvidia.com/gpu": 10, "amd.com/gpu": 1},
        (2, {"nvidia.com/gpu": (1, "T4", 15360, 10, ""), "amd.com/gpu": (1, "MI300X", 196592, 1, "")}),
        {
            HAMI: "a,10,15360,100,NVIDIA-Tesla T4,0,true:",
            HAMI_AMD: '[{"id":"b","count":1,"devmem":196592,"devcore":100,"type":"MI300X","health":true}]',
        },
    ),
    # Volcano
    "volcano-5-fields": form(
        {},
        {"volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 32768, "volcano.sh/vgpu-cores": 100},
        (1, {"volcano.sh/vgpu-number": (1, "V100-PCIE-32GB", 32768, 10, "")}),
        {VOLCANO: "a,10,32768,NVIDIA-Tesla V100-PCIE-32GB,true:"},
    ),
    "volcano-mode": form(
        {},
        {"volcano.sh/vgpu-number": 10},
        (2, {"volcano.sh/vgpu-number": (1, "A10", 24576, 10, "")}),
        {VOLCANO: "a,10,24576,NVIDIA-NVIDIA A10,true,hami-core:b,10,24576,NVIDIA-NVIDIA A10,false:"},
    ),
    "volcano-mig": form(
        {},
        {"volcano.sh/vgpu-number": 10},
        (1, {"volcano.sh/vgpu-number": (1, "A100-SXM4-80GB", 81920, 10, "")}),
        {VOLCANO: "a,10,81920,NVIDIA-NVIDIA A100-SXM4-80GB,true,mig,0:"},
    ),
    # NVIDIA's plugin with its feature discovery
    "whole": form(L40S, gpus(4), (4, {"nvidia.com/gpu": (4, "L40S", 46068, 1, "")})),
    "one-sick": form(L40S, gpus(3), (4, {"nvidia.com/gpu": (3, "L40S", 46068, 1, "")})),
    "all-sick": form(L40S, gpus(0), (4, {})),
    "time-slices": form(
        {**SHARED_L40S, "nvidia.com/gpu.replicas": "5", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        gpus(20),
        (4, {"nvidia.com/gpu": (4, "L40S", 46068, 5, "")}),
    ),
    "time-slices-renamed": form(
        {**L40S, "nvidia.com/gpu.replicas": "5", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 20},
        (4, {"nvidia.com/gpu.shared": (4, "L40S", 46068, 5, "")}),
    ),
    "time-slices-renamed-without-replicas": form(
        L40S,
        {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 20},
        (4, {"nvidia.com/gpu.shared": (4, "L40S", 46068, 5, "")}),
    ),
    "one-replica": form(
        {**L40S, "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"},
        gpus(4),
        (4, {"nvidia.com/gpu": (4, "L40S", 46068, 1, "")}),
    ),
    "mps": form(
        {**SHARED_L40S, "nvidia.com/gpu.replicas": "8", "nvidia.com/gpu.sharing-strategy": "mps"},
        gpus(32),
        (4, {"nvidia.com/gpu": (4, "L40S", 46068, 8, "")}),
    ),
    "mig-single-time-slices": form(
        {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED",
            "nvidia.com/gpu.memory": "9728",
            "nvidia.com/gpu.count": "7",
            "nvidia.com/gpu.replicas": "2",
        },
        gpus(14),
        (1, {"nvidia.com/gpu": (7, "H100-SXM5-80GB", 9728, 2, "1g.10gb")}),
    ),
    "mig-single-media": form(
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me", "nvidia.com/gpu.memory": "9728"},
        gpus(1),
        (1, {"nvidia.com/gpu": (1, "A100-SXM4-80GB", 9728, 1, "1g.10gb+me")}),
    ),
    "mig-mixed-beside-whole": form(
        {
            "nvidia.com/gpu.product": "NVIDIA-H200",
            "nvidia.com/gpu.memory": "143771",
            "nvidia.com/gpu.count": "8",
        },
        {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.18gb": 7, "nvidia.com/mig-3g.71gb": 2},
        (
            8,
            {
                "nvidia.com/gpu": (6, "H200-SXM-141GB", 143771, 1, ""),
                "nvidia.com/mig-1g.18gb": (7, "H200-SXM-141GB", 16384, 1, "1g.18gb"),
                "nvidia.com/mig-3g.71gb": (2, "H200-SXM-141GB", 71424, 1, "3g.71gb"),
            },
        ),
    ),
    "virtual-gpu": form(
        {
            "nvidia.com/gpu.product": "GRID-T4-8Q",
            "nvidia.com/gpu.memory": "8192",
            "nvidia.com/gpu.count": "1",
        },
        gpus(1),
        (1, {"nvidia.com/gpu": (1, "GRID-T4-8Q", 8192, 1, "")}),
    ),
    # Clouds
    "eks-auto": form(
        {EKS + "gpu-name": "l4", EKS + "gpu-memory": "22888", EKS + "gpu-count": "1"},
        gpus(1),
        (1, {"nvidia.com/gpu": (1, "L4", 22888, 1, "")}),
    ),
    "eks-auto-neuron": form(
        {EKS + "accelerator-name": "inferentia2"},
        {"aws.amazon.com/neuron": 1, "aws.amazon.com/neuroncore": 2},
        (1, {"aws.amazon.com/neuron": (1, "inferentia2", 32768, 1, "")}),
    ),
    "aks-karpenter": form(
        {"karpenter.azure.com/sku-gpu-name": "A100"},
        gpus(1),
        (1, {"nvidia.com/gpu": (1, "A100", None, 1, "")}),
    ),
    "aks-mig-mixed": form(
        {
            "kubernetes.azure.com/accelerator": "nvidia",
            "node.kubernetes.io/instance-type": "Standard_ND96asr_v4",
        },
        {"nvidia.com/mig-1g.5gb": 56},
        (None, {"nvidia.com/mig-1g.5gb": (56, "", None, 1, "1g.5gb")}),
    ),
    "gke-mig": form(
        {GKE + "accelerator": "nvidia-tesla-a100", GKE + "gpu-partition-size": "1g.5gb"},
        gpus(7),
        (1, {"nvidia.com/gpu": (7, "A100-SXM4-40GB", 4864, 1, "1g.5gb")}),
    ),
    "gke-mig-time-sharing": form(
        {
            GKE + "accelerator": "nvidia-a100-80gb",
            GKE + "gpu-partition-size": "2g.20gb",
            GKE + "gpu-sharing-strategy": "time-sharing",
            GKE + "max-shared-clients-per-gpu": "4",
        },
        gpus(12),
        (1, {"nvidia.com/gpu": (3, "A100-SXM4-80GB", 19968, 4, "2g.20gb")}),
    ),
    "gke-mps": form(
        {
            GKE + "accelerator": "nvidia-l4",
            GKE + "gpu-sharing-strategy": "mps",
            GKE + "max-shared-clients-per-gpu": "10",
        },
        gpus(20),
        (2, {"nvidia.com/gpu": (2, "L4", 23034, 10, "")}),
    ),
    "gke-h100-mega": form(
        {GKE + "accelerator": "nvidia-h100-mega-80gb"},
        gpus(8),
        (8, {"nvidia.com/gpu": (8, "H100-SXM5-80GB", 81559, 1, "")}),
    ),
    # AMD
    "amd-partitions-by-resource": form(
        {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "24G"},
        {"amd.com/cpx_nps4": 64},
        (8, {"amd.com/cpx_nps4": (64, "MI300X", 24576, 1, "cpx_nps4")}),
    ),
    "amd-partitions-by-label": form(
        {
            "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
            "amd.com/compute-memory-partition": "dpx_nps1",
            "amd.com/compute-partitioning-supported": "true",
        },
        {"amd.com/gpu": 16},
        (8, {"amd.com/gpu": (16, "MI300X", None, 1, "dpx_nps1")}),
    ),
    "amd-partitions-by-newer-label": form(
        {
            "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
            "amd.com/gpu.compute-memory-partition": "cpx_nps1",
        },
        {"amd.com/gpu": 64},
        (8, {"amd.com/gpu": (64, "MI300X", None, 1, "cpx_nps1")}),
    ),
    "amd-unknown-model": form(
        {"amd.com/gpu.product-name": "AMD_Instinct_MI999", "amd.com/gpu.vram": "256G"},
        {"amd.com/gpu": 8},
        (8, {"amd.com/gpu": (8, "AMD_Instinct_MI999", 262144, 1, "")}),
    ),
    "amd-values-in-keys": form(
        {"beta.amd.com/gpu.device-id.740f": "4", "beta.amd.com/gpu.vram.64G": "4"},
        {"amd.com/gpu": 4},
        (4, {"amd.com/gpu": (4, "MI210", 65536, 1, "")}),
    ),
    # Neuron and TPU
    "neuron-without-a-label": form(
        {"node.kubernetes.io/instance-type": "inf2.8xlarge"},
        {"aws.amazon.com/neuroncore": 2},
        (1, {"aws.amazon.com/neuroncore": (1, "inferentia2", 32768, 1, "")}),
    ),
    "neuron-cores-of-nobody-knows-what": form(
        {}, {"aws.amazon.com/neuroncore": 2}, (None, {"aws.amazon.com/neuroncore": (2, "", None, 1, "")})
    ),
    "tpu-v4": form(
        {GKE + "tpu-accelerator": "tpu-v4-podslice", GKE + "tpu-topology": "2x2x1"},
        {"google.com/tpu": 4},
        (4, {"google.com/tpu": (4, "tpu-v4", 32768, 1, "")}),
    ),
}
