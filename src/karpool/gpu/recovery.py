"""After a start: what runs is what counts.

Pods are the truth. Every pod that is bound and carries devices is put into the
ledger as it stands; amounts of devices, quotas and locks follow. Reservations did not
survive, and need not. Only then does the allocator open.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from karpool.gpu.allocation.allocator import Allocator
from karpool.model.devices.isolation import DYNAMIC, recover_modes
from karpool.model.devices.request import GpuRequest


@dataclass(frozen=True, slots=True)
class Found:
    """A worker pod as it was found. `is_leaving`: being deleted, without a finalizer of ours."""

    request: GpuRequest
    devices: tuple[str, ...]
    node: str = ""
    is_leaving: bool = False

    @property
    def counts(self) -> bool:
        return bool(self.node) and bool(self.devices) and not self.is_leaving


def restore_allocations(allocator: Allocator, pods: Iterable[Found]) -> tuple[str, ...]:
    """Restore and open. Returns devices that cannot be used because pods disagree on their mode."""
    running = [pod for pod in pods if pod.counts]
    for pod in running:
        allocator.restore(pod.request, pod.devices, pod.node)
    conflicts: tuple[str, ...] = ()
    if allocator.settings.policy == DYNAMIC:
        conflicts = _restore_locks(allocator, running)
    allocator.open()
    return conflicts


def _restore_locks(allocator: Allocator, running: Iterable[Found]) -> tuple[str, ...]:
    modes = recover_modes((pod.devices, pod.request.isolation) for pod in running)
    for name in sorted({*modes.modes, *modes.conflicts}):
        row = allocator.table.find(name)
        if row is not None:
            conflict = name in modes.conflicts
            allocator.table.set_lock(row, "" if conflict else modes.modes[name], conflict)
    return tuple(sorted(modes.conflicts))
