"""Nodes that Karpool's own records reserve for future pods.

Between the placeholder of a scale-up and the worker that it was created for, a node looks empty and is not.
"""

from collections.abc import Iterable
from typing import Any

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Wire, WireObject, decode


class _Unit(Wire, frozen=True):
    node: str = ""
    claim: str = ""
    ended: str = ""


class _Status(Wire, frozen=True):
    units: list[_Unit] | None = None


class _ScaleUp(WireObject, frozen=True):
    """The fields of a ScaleUp that say which nodes it reserves."""

    status: _Status | None = None


def _read(raw: Any) -> _ScaleUp | None:
    """Read a ScaleUp; None if it is unreadable, which the gpu-scaler, its owner, reports."""
    try:
        return decode(raw, _ScaleUp)
    except Invalid:
        return None


def reserved_by(scale_ups: Iterable[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reserved nodes, and claims without a node yet, by name, each with its record."""
    nodes: dict[str, str] = {}
    claims: dict[str, str] = {}
    for scale_up in sorted(filter(None, map(_read, scale_ups)), key=lambda record: record.name):
        units = (scale_up.status.units if scale_up.status is not None else None) or ()
        for unit in units:
            if not unit.ended:
                nodes[unit.node] = claims[unit.claim] = f"scale-up {scale_up.name}"
    nodes.pop("", None)
    claims.pop("", None)
    return nodes, claims
