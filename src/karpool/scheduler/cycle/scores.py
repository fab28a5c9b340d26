"""How much a cluster is preferred, other things being equal: a sum over plugins.

Karmada has two: locality, 100 where the binding is already, and affinity, always 0.
"""

from collections.abc import Container

NAMES = ("ClusterLocality",)
LOCALITY = 100


def score(cluster: str, targets: Container[str], plugins: frozenset[str]) -> int:
    return LOCALITY if "ClusterLocality" in plugins and cluster in targets else 0
