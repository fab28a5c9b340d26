"""CustomResourceDefinitions of embedded clusters: Karpenter's, with capacity buffers, and Karmada's.

They are written for this project from the fields of those APIs, not copies of upstream's files.
"""

import json
from collections.abc import Iterable
from functools import cache
from importlib import resources

import yaml

from karpool_fleet.apiserver.objects.types import Object

KARPENTER = (
    "nodepools.karpenter.sh",
    "nodeclaims.karpenter.sh",
    "kwoknodeclasses.karpenter.kwok.sh",
    "nodeoverlays.karpenter.sh",
    "capacitybuffers.autoscaling.x-k8s.io",
)
KARMADA = (
    "clusters.cluster.karmada.io",
    "propagationpolicies.policy.karmada.io",
    "clusterpropagationpolicies.policy.karmada.io",
    "overridepolicies.policy.karmada.io",
    "clusteroverridepolicies.policy.karmada.io",
    "resourcebindings.work.karmada.io",
    "clusterresourcebindings.work.karmada.io",
    "works.work.karmada.io",
)


def bundled_crds(names: Iterable[str] = (*KARPENTER, *KARMADA)) -> list[Object]:
    """The named definitions, in that order, each a copy of its own; KeyError for an unknown name."""
    texts = _definitions()
    return [json.loads(texts[name]) for name in names]


@cache
def _definitions() -> dict[str, str]:
    """Return the definitions by name, as JSON text: the YAML files share parts through aliases."""
    texts: dict[str, str] = {}
    folder = resources.files("karpool_fleet.apiserver").joinpath("data", "crds")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        for definition in document["items"] if document["kind"] == "List" else [document]:
            texts[definition["metadata"]["name"]] = json.dumps(definition)
    return texts
