"""Duration of a lease and how often it is renewed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry > 0:
            raise ValueError(
                f"lease duration {self.duration:g} s, renew deadline {self.renew_deadline:g} s, "
                f"retry {self.retry:g} s: each must be larger than the next"
            )


TIMING = LeaseTiming()
