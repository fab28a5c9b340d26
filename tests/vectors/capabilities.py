"""Importing this registers every kind that something answers."""

from tests.vectors import (
    consolidation,
    consolidation_candidates,
    consolidation_limits,
    dra,
    estimator,
    estimator_plugins,
    estimator_wire,
    gpu,
    gpu_expansion,
    gpu_ledger,
    scheduler,
)

__all__ = [
    "consolidation",
    "consolidation_candidates",
    "consolidation_limits",
    "dra",
    "estimator",
    "estimator_plugins",
    "estimator_wire",
    "gpu",
    "gpu_expansion",
    "gpu_ledger",
    "scheduler",
]
