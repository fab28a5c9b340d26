"""Resizes a worker's share in place.

Both amounts are checked on every device, then the quota; all changes are made or none. A worker that outgrows
its device would have to move, which is not done here.
"""

from dataclasses import dataclass, replace

from karpool.gpu.allocation.allocation import DeviceAllocation, HeldShare
from karpool.gpu.allocation.ledger import DeviceLedger
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.isolation import PARTITIONED, SHARED
from karpool.model.infeasible import Infeasible


@dataclass(frozen=True, slots=True)
class ResizedAllocation:
    """The change of the amounts on each device."""

    uid: str
    request_delta: DeviceAmount
    limit_delta: DeviceAmount


def resize(
    ledger: DeviceLedger, uid: str, request: DeviceShare, limit: DeviceShare, *, dry_run: bool = False
) -> ResizedAllocation | NoDevice:
    entry = ledger.committed.get(uid)
    if entry is None:
        return no_device(DeviceReason.NOT_ASSUMED, f"{uid} has no allocation to change")
    if entry.request.isolation == PARTITIONED:
        return no_device(
            DeviceReason.EXCEEDS_DEVICE,
            f"{entry.request.key} has a hardware partition, which cannot be resized",
        )
    taken = _resized(ledger, entry, request)
    if isinstance(taken, Infeasible):
        return taken
    changed = replace(entry.request, request=request, limit=limit)
    charge = ledger.charge(changed, taken)
    refused = ledger.quotas.check_change(entry.request.namespace, entry.charge, charge)
    if refused is not None:
        return refused
    if not dry_run:
        ledger.replace_committed(replace(entry, request=changed, taken=taken, charge=charge))
    return ResizedAllocation(uid, charge.request - entry.charge.request, charge.limit - entry.charge.limit)


def _resized(
    ledger: DeviceLedger, entry: DeviceAllocation, request: DeviceShare
) -> tuple[HeldShare, ...] | NoDevice:
    taken = []
    for share in entry.taken:
        row = ledger.table.find(share.device)
        if row is None:
            return no_device(DeviceReason.UNKNOWN_GPU, f"GPU {share.device} no longer exists")
        capacity, free = ledger.table.capacity(row), ledger.table.free_balance(row)
        need = request.on(capacity)
        whole = entry.request.isolation == SHARED
        room = capacity if whole else free + share.amount
        # A smaller request is always allowed, even if the device shrank and its pods hold too much.
        if not (room.covers(need) or share.amount.covers(need)):
            return no_device(
                DeviceReason.EXCEEDS_DEVICE,
                f"GPU {share.device} has {free} left beside the {share.amount} of {entry.request.key}; "
                f"{need} do not fit, the worker has to move",
            )
        taken.append(share if whole else replace(share, amount=need))
    return tuple(taken)
