"""The bill of some machines, written from docs/contracts.md alone: machine by machine, in fractions.

Shares no code with the product. A contract is the document as it is written; a machine is a plain dict with
type, family, cpus, provider, region, zone, capacity_type, and its price on the list or by an overlay.
"""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

Machine = dict[str, Any]
NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
ORDER = ("reservation", "committed-use", "instance-savings-plan", "savings-plan")


def exact(number: Any) -> Fraction:
    return Fraction(str(number))


def in_scope(entry: dict[str, Any], machine: Machine) -> bool:
    if entry.get("provider") and entry["provider"] != machine["provider"]:
        return False
    for plural, single in (
        ("regions", "region"),
        ("zones", "zone"),
        ("families", "family"),
        ("types", "type"),
    ):
        if entry.get(plural) and machine[single] not in entry[plural]:
            return False
    return True


def is_of_account(entry: dict[str, Any], contract: dict[str, Any]) -> bool:
    return not entry.get("accounts") or contract.get("account", "") in entry["accounts"]


def is_in_force(entry: dict[str, Any], now: datetime) -> bool:
    """Days are whole days of UTC, the last one included."""
    start, end = entry.get("start"), entry.get("end")
    if start and now < at(start):
        return False
    if not end:
        return True
    return now < at(end) + (timedelta(days=1) if len(end) == len("2026-12-31") else timedelta())


def at(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def with_places(contract: dict[str, Any], machines: list[Machine], now: datetime) -> list[Machine]:
    """Reserved capacity is billed place by place; machines that fill a place are not billed besides."""
    billed = list(machines)
    for entry in contract.get("commitments", []):
        if entry["kind"] != "capacity-reservation" or not is_of_account(entry, contract):
            continue
        if not is_in_force(entry, now):
            continue
        count = int(entry["count"] - entry.get("usedElsewhere", 0))
        alike = [machine for machine in billed if in_scope(entry, machine)]
        free = max(0, count - sum(machine["capacity_type"] == "reserved" for machine in alike))
        fillers = [machine for machine in alike if machine["capacity_type"] == "on-demand"]
        fillers.sort(key=lambda machine: rate(contract, machine, now))
        for machine in [] if entry.get("targeted") else fillers[:free]:
            billed.remove(machine)
        place = {
            "type": entry["types"][0],
            "family": entry["types"][0].partition(".")[0],
            "cpus": entry["placeCpus"],
            "provider": "aws",
            "region": entry["regions"][0],
            "zone": entry["zones"][0],
            "capacity_type": "on-demand",
            "price": exact(entry["perHour"]) / entry["count"],
            "overlaid": True,
        }
        billed += [place] * count
    return billed


def rate(contract: dict[str, Any], machine: Machine, now: datetime) -> Fraction:
    price = exact(machine["price"])
    if machine.get("overlaid"):
        return price
    for discount in contract.get("discounts", []):
        kinds = discount.get("capacityTypes", ["on-demand"])
        if (
            machine["capacity_type"] in kinds
            and is_in_force(discount, now)
            and is_of_account(discount, contract)
            and in_scope(discount, machine)
        ):
            return price * (100 - exact(discount["percent"])) / 100
    return price


def bill(contract: dict[str, Any], running: list[Machine], now: datetime = NOW) -> Fraction:
    """USD per hour, what commitments cost included."""
    machines = with_places(contract, running, now)
    rates = [rate(contract, machine, now) for machine in machines]
    unpaid = [Fraction(1) for _ in machines]  # the share of each machine that no commitment pays
    total = Fraction(0)
    commitments = [
        entry
        for entry in contract.get("commitments", [])
        if is_of_account(entry, contract) and is_in_force(entry, now) and entry["kind"] in ORDER
    ]
    commitments.sort(key=lambda each: (ORDER.index(each["kind"]), not each.get("zones"), each["name"]))
    smallest_first = sorted(
        range(len(machines)),
        key=lambda index: (
            machines[index]["cpus"],
            machines[index]["type"],
            machines[index]["zone"],
            rates[index],
        ),
    )
    for commitment in commitments:
        total += exact(commitment.get("perHour", 0))
        if "count" in commitment:
            left = exact(commitment["count"])
        elif "cpus" in commitment:
            left = exact(commitment["cpus"])
        else:
            left = exact(commitment["perHour"])
        left -= exact(commitment.get("usedElsewhere", 0))
        for index in smallest_first:
            machine = machines[index]
            if machine["capacity_type"] != "on-demand" or not in_scope(commitment, machine):
                continue
            if "count" in commitment:
                whole = Fraction(1)
            elif "cpus" in commitment:
                whole = exact(machine["cpus"])
            else:
                whole = rates[index] * (100 - exact(commitment["percent"])) / 100
            paid = min(unpaid[index], left / whole)
            unpaid[index] -= paid
            left -= paid * whole
    return total + sum((share * rate for share, rate in zip(unpaid, rates, strict=True)), Fraction(0))
