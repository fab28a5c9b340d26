"""Change what a worker has, in place.

Both dimensions are checked on every device, then the quota, then it is done: all of
it or nothing. A worker that outgrows its device has to move, which is not done here.
"""

from dataclasses import dataclass, replace

from karpool.gpu.amounts import Amount, Share
from karpool.gpu.entries import Entry, Taken
from karpool.gpu.isolation import PARTITIONED, SHARED
from karpool.gpu.ledger import Ledger
from karpool.gpu.refusals import Code, Refusal


@dataclass(frozen=True, slots=True)
class Resized:
    """By how much each device is used more (or less)."""

    uid: str
    deltas: tuple[Amount, ...]
    limit_delta: Amount


def resize(
    ledger: Ledger, uid: str, request: Share, limit: Share, *, dry_run: bool = False
) -> Resized | Refusal:
    entry = ledger.committed.get(uid)
    if entry is None:
        return Refusal(Code.NOT_ASSUMED, f"{uid} has no allocation to change")
    if entry.request.isolation == PARTITIONED:
        return Refusal(
            Code.EXCEEDS_DEVICE, f"{entry.request.key} has a hardware partition, which cannot be resized"
        )
    taken = _resized(ledger, entry, request)
    if isinstance(taken, Refusal):
        return taken
    changed = replace(entry.request, request=request, limit=limit)
    charge = ledger.charge(changed, taken)
    refused = ledger.quotas.check_change(entry.request.namespace, entry.charge, charge)
    if refused is not None:
        return refused
    if not dry_run:
        ledger.replace_committed(replace(entry, request=changed, taken=taken, charge=charge))
    deltas = tuple(new.amount - old.amount for new, old in zip(taken, entry.taken, strict=True))
    return Resized(uid, deltas, charge.limit - entry.charge.limit)


def _resized(ledger: Ledger, entry: Entry, request: Share) -> tuple[Taken, ...] | Refusal:
    taken = []
    for each in entry.taken:
        row = ledger.table.find(each.device)
        if row is None:
            return Refusal(Code.UNKNOWN_GPU, f"GPU {each.device} is gone")
        capacity, free = ledger.table.capacity(row), ledger.table.free(row)
        need = request.on(capacity)
        whole = entry.request.isolation == SHARED
        if not (capacity if whole else free + each.amount).covers(need):
            return Refusal(
                Code.EXCEEDS_DEVICE,
                f"GPU {each.device} has {free} left beside the {each.amount} of {entry.request.key}; "
                f"{need} do not fit, the worker has to move",
                remaining=free,
            )
        taken.append(each if whole else replace(each, amount=need))
    return tuple(taken)
