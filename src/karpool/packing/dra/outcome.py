"""What comes of asking for devices, and why not."""

from dataclasses import dataclass
from enum import StrEnum

from karpool.model.dra.claim import Allocation


class DraStatus(StrEnum):
    FITS = "fits"
    UNSCHEDULABLE = "unschedulable"  # on this node, now
    ERROR = "error"  # the pod, its claims or a class are broken: no node is tried
    UNKNOWN = "unknown"  # the search took too long: nobody can tell


@dataclass(frozen=True, slots=True)
class DraOutcome:
    """`allocations` in the order of the claims that were to be allocated."""

    status: DraStatus
    reason: str = ""
    allocations: tuple[Allocation, ...] = ()

    @property
    def fits(self) -> bool:
        return self.status is DraStatus.FITS


class DraFailure(Exception):
    """Ends the search: the claim, a class or a slice is broken; the text names it."""
