"""The life of a NodeClaim in the words of the design, and why one ended. Pure values.

`Created` the object exists · `Launching` Karpenter works on it, no machine yet ·
`Registering` a machine runs, its node is not initialised · `Ready` initialised ·
`Failed` it goes, or went, without ever having had a node.
"""

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    CREATED = "Created"
    LAUNCHING = "Launching"
    REGISTERING = "Registering"
    READY = "Ready"
    FAILED = "Failed"


class Ending(StrEnum):
    """Why a claim is gone."""

    STOCK_OUT = "InsufficientCapacity"
    LAUNCH_TIMEOUT = "LaunchTimeout"
    REGISTRATION_TIMEOUT = "RegistrationTimeout"
    LOST = "ClaimLost"  # without a node, for a reason nobody told
    REMOVED = "Removed"  # it had a node: no failure of the launch


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a claim stands; moments are seconds since the epoch, None when not reached."""

    claim: str
    uid: str
    pool: str
    stage: Stage
    created: float
    launched: float | None = None
    registered: float | None = None
    initialized: float | None = None
    ended: float | None = None
    ending: Ending | None = None
    node: str = ""
    message: str = ""
