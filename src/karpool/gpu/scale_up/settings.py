"""The timeouts and limits of a scale-up, by stage."""

from dataclasses import dataclass

IN_FLIGHT_DEFAULT = 15  # TensorFusion's default


@dataclass(frozen=True, slots=True)
class ScaleUpSettings:
    """Seconds, unless the name says otherwise (reference 5.9)."""

    debounce: float = 10.0
    resync: float = 30.0
    pending_limit: float = 300.0
    launch_limit: float = 960.0
    device_limit: float = 900.0
    hold: float = 120.0
    delete_retry: float = 5.0
    delete_retry_limit: float = 60.0
    maximum_age: float = 2400.0
    orphan_grace: float = 120.0
    rejected_wait: float = 300.0  # before a rejected request is tried again
    max_in_flight: int = IN_FLIGHT_DEFAULT  # nodes; 0 or less: the default
    max_units: int = 1000  # per attempt

    @property
    def in_flight_cap(self) -> int:
        return self.max_in_flight if self.max_in_flight > 0 else IN_FLIGHT_DEFAULT
