"""An answer about capacity, for people and for machines."""

from collections.abc import Iterator, Sequence
from typing import Any

from karpool.cli.output.text import NONE, UNKNOWN, columns, printable
from karpool.estimator.capacity import CapacityPlace, CapacityReport, CapacityVerdict
from karpool.estimator.plugins.interface import UNLIMITED
from karpool.model.documents import camel_case, document_of
from karpool.model.infeasible import Infeasible
from karpool.packing.fit_reasons import FitReason, show_count

_HEADER = ("WHERE", "FITS", "REPLICAS", "ROOM", "NEW NODES", "TYPES")
_TYPES_SHOWN = 3


def report_document(report: CapacityReport) -> dict[str, Any]:
    content: dict[str, Any] = document_of(report, old_keys=True)
    content["refusals"] = [_refusal(refusal) for refusal in report.refusals]
    totals = {
        "price_per_hour": report.price_per_hour,
        "list_price_per_hour": report.list_price_per_hour,
        "new_nodes": report.new_nodes,
    }
    return content | camel_case(totals, old_keys=True)


def _refusal(refusal: Infeasible[FitReason]) -> dict[str, Any]:
    return {
        "plugin": refusal.reason.value,
        "reason": refusal.detail,
        "nodes": refusal.count,
        "resolvable": refusal.resolvable,
    }


def places_table(report: CapacityReport, *, wide: bool) -> str:
    """Every reason has a line of its own, the largest group of nodes first."""
    against = sorted(report.refusals, key=lambda refusal: -refusal.count)
    is_listed = report.list_price_per_hour is not None
    header = (*_HEADER, *(("LIST $/H",) if is_listed else ()), "$/H", "WHY NOT MORE")
    rows: list[Sequence[str]] = []
    for index, place in enumerate(report.places):
        reasons = [*place.reasons, *(map(show_count, against) if index == 0 else ())] or [NONE]
        types = place.instance_types if wide else place.instance_types[:_TYPES_SHOWN]
        more = len(place.instance_types) - len(types)
        rows.append(
            (
                place.name,
                place.outlook.value,
                str(place.replicas),
                amount(place.room),
                str(place.nodes) if place.nodes else NONE,
                (",".join(types) + (f" +{more}" if more else "")) or NONE,
                *((price(place, place.list_price_per_hour),) if is_listed else ()),
                price(place, place.price_per_hour),
                reasons[0],
            )
        )
        rows += ((*[""] * (len(header) - 1), reason) for reason in reasons[1:])
    return columns(header, rows)


def summary(report: CapacityReport, name: str, unit: str) -> str:
    held = sum(place.replicas for place in report.places)
    text = f"{printable(name)} {report.verdict.value}: {held} of {report.wanted} {unit}"
    if report.new_nodes:
        total = report.price_per_hour
        cost = "price unknown" if total is None else f"${total:.3f} per hour"
        if report.list_price_per_hour is not None:
            cost += f" (by the list ${report.list_price_per_hour:.3f})"
        text += f", {report.new_nodes} new node{'' if report.new_nodes == 1 else 's'}, {cost}"
    if report.verdict is CapacityVerdict.UNTOLD:
        return f"{text}; it is unknown how many more"
    return f"{text}; at most {amount(report.most)} fit"


def notes(report: CapacityReport) -> Iterator[str]:
    yield from (f"  {limit}" for limit in report.limits)
    yield from (f"  {remark}" for remark in report.remarks)


def price(place: CapacityPlace, per_hour: float | None) -> str:
    if not place.nodes:
        return NONE
    return UNKNOWN if per_hour is None else f"{per_hour:.3f}"


def amount(replicas: int) -> str:
    return "unlimited" if replicas >= UNLIMITED else str(replicas)
