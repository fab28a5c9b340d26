"""What an estimator replied. Apart from the client, so that only those who ask load gRPC."""

from typing import NamedTuple

from karpool.wire.request import Arrived


class Reply(NamedTuple):
    """`value` None: not known, and `note` says why. `lost_since`: nobody is there, since then (monotonic)."""

    value: int | None
    note: str = ""
    arrived: tuple[Arrived, ...] = ()
    lost_since: float | None = None
