"""Importing this registers every kind that something answers."""

from tests.vectors import estimator

__all__ = ["estimator"]
