"""What an estimator replied. Apart from the client, so that only those who ask load gRPC."""

from typing import NamedTuple

from karpool.wire.requests import ArrivedReplicas


class EstimatorReply(NamedTuple):
    """`value` None: not known, and `note` says why. `lost_since`: nobody is there, since then (monotonic)."""

    value: int | None
    note: str = ""
    arrived: tuple[ArrivedReplicas, ...] = ()
    lost_since: float | None = None
