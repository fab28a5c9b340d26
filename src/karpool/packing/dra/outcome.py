"""The result of a device allocation, and why it failed."""

from dataclasses import dataclass
from enum import StrEnum

from karpool.model.dra.claim import Allocation


class DraStatus(StrEnum):
    FITS = "fits"
    UNSCHEDULABLE = "unschedulable"  # not on this node at this time
    ERROR = "error"  # the pod, a claim or a class is broken: no other node is tried
    UNKNOWN = "unknown"  # the search took too long; the result is unknown


@dataclass(frozen=True, slots=True)
class DraOutcome:
    """The result of one allocation; `allocations` are in the order of the claims."""

    status: DraStatus
    reason: str = ""
    allocations: tuple[Allocation, ...] = ()

    @property
    def fits(self) -> bool:
        return self.status is DraStatus.FITS


class DraFailure(Exception):
    """Ends the search because a claim, a class or a slice is broken; the text names it."""
