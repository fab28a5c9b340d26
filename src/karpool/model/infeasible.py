"""The one type for "not possible, because". Each domain has its own enum of reasons, a `Reason`."""

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec


class Reason(StrEnum):
    """Base of all reasons; has no members.

    The value of a member appears in JSON, records and metric labels, and never changes.
    """


R_co = TypeVar("R_co", bound=Reason, covariant=True)


class Infeasible(
    msgspec.Struct,
    Generic[R_co],
    frozen=True,
    omit_defaults=True,
    rename={"reason": "code", "detail": "message", "about": "object"},
):
    """An operation is not possible because of `reason`. A value, never an exception.

    In JSON, `code`, `message` and `object` are always present, the other keys only if they are set.
    """

    reason: R_co
    detail: str  # one sentence with the numbers: "no GPU of pool shared has 8Gi of VRAM free"
    # The blocking object: "pod team/web-1"; empty: the request itself. With a factory it is never omitted.
    about: str = msgspec.field(default_factory=str)
    count: int = 0  # nodes, devices or instance types that this reason alone rules out; 0: not counted
    resolvable: bool = False  # may change without another request: pods leave, a limit or stock frees up

    def __str__(self) -> str:
        return self.detail

    def sentence(self) -> str:
        """The text for people: the detail, and its object unless the detail names it."""
        if not self.about or self.about.rpartition(" ")[2] in self.detail:
            return self.detail
        return f"{self.detail} ({self.about})"
