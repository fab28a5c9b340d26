"""Plans the capacity of a fleet of Kubernetes clusters.

For notebooks and scripts: `open_cluster` reads a snapshot file or a live context once and answers questions
about it, `simulate` plays a scenario. `karpool.plugins` has what plugins are made of. Everything else is
private and may change with any version.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Imported when somebody asks for it: every command imports this package first. Types are in the stub beside.
_API = {
    "Answer": "karpool.api.answers",
    "CountAnswer": "karpool.api.cluster",
    "ExplainAnswer": "karpool.api.cluster",
    "FitAnswer": "karpool.api.cluster",
    "KarpoolError": "karpool.api.answers",
    "OpenCluster": "karpool.api.cluster",
    "PlanAnswer": "karpool.api.cluster",
    "SimulationAnswer": "karpool.api.simulation",
    "UsageAnswer": "karpool.api.cluster",
    "WhatIfAnswer": "karpool.api.cluster",
    "open_cluster": "karpool.api.cluster",
    "simulate": "karpool.api.simulation",
}
__all__ = ["__version__", *_API]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'karpool' has no attribute {name!r}")
    return getattr(import_module(_API[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
