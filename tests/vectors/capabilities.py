"""Importing this registers every kind that something answers."""

from tests.vectors import estimator, estimator_plugins, estimator_wire

__all__ = ["estimator", "estimator_plugins", "estimator_wire"]
