"""Settings of the simulated Karpenter, with upstream's defaults."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class KarpenterSettings:
    batch_idle_seconds: float = 1.0
    batch_max_seconds: float = 10.0
    retrigger_seconds: float = 10.0
    preferences: Literal["respect", "ignore"] = "respect"
    claim_types_max: int = 600  # instance types named in a NodeClaim
    launch_types_max: int = 60  # of those, how many a launch tries (AWS)
    launch_timeout_seconds: float = 300.0
    registration_timeout_seconds: float = 900.0
    unavailable_seconds: float = 180.0  # how long an offering without stock is excluded
    garbage_seconds: float = 120.0
    orphan_seconds: float = 60.0  # age at which a machine without a claim is terminated
    pod_event_seconds: float = 10.0
    drain_seconds_min: float = 5.0
    pool_status_seconds: float = 5.0
    drift_type_seconds: float = 3600.0  # age from which a type that is no longer sold counts as drift
    hears_interruptions: bool = True  # False: without an interruption queue
    consolidates: bool = False
    disruption_poll_seconds: float = 10.0
    validation_seconds: float = 15.0

    @property
    def nomination_seconds(self) -> float:
        return max(2 * self.batch_max_seconds, 10.0)
