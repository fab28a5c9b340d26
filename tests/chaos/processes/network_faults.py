"""What can go wrong between two processes, and when it does.

`NetworkWeather` holds the faults of one line (a replica and its API server, or schedulers and an
estimator). Each is on for a while and takes a share of what passes; all chance comes from one seed.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Trouble(StrEnum):
    # Of connections, whatever they carry
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    BLACK_HOLE = "black hole"  # what is sent arrives nowhere
    HALF_OPEN = "half-open"  # what is sent arrives, and no answer comes
    RESET = "reset"  # RST instead of the service
    CUT = "cut in a frame"  # half of the answer, then the end
    # Of requests to an API server
    THROTTLED = "429"
    SERVER_ERROR = "500"
    UNAVAILABLE = "503"
    CONFLICT = "409 storm"
    EXPIRED = "410 on every watch"
    REPEATED = "repeated events"
    REORDERED = "reordered events"
    SLOW_LISTS = "slow lists"


OF_CONNECTIONS = (
    Trouble.LATENCY,
    Trouble.BANDWIDTH,
    Trouble.BLACK_HOLE,
    Trouble.HALF_OPEN,
    Trouble.RESET,
    Trouble.CUT,
)
STATUS = {
    Trouble.THROTTLED: 429,
    Trouble.SERVER_ERROR: 500,
    Trouble.UNAVAILABLE: 503,
    Trouble.CONFLICT: 409,
}
# A piece of a slow answer, and how long it takes: about 20 kB/s, so that a list takes seconds.
PIECE_BYTES, PIECE_SECONDS = 2048, 0.1


@dataclass
class ActiveTrouble:
    trouble: Trouble
    share: float  # of what passes
    seconds: float = 0.0  # of a delay


class NetworkWeather:
    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._active: list[ActiveTrouble] = []
        self.hits: Counter[Trouble] = Counter()
        self.struck = asyncio.Event()  # once

    def begin(self, trouble: Trouble, *, share: float = 1.0, seconds: float = 0.0) -> ActiveTrouble:
        active = ActiveTrouble(trouble, share, seconds)
        self._active.append(active)
        return active

    def end(self, active: ActiveTrouble) -> None:
        self._active.remove(active)

    @property
    def is_fair(self) -> bool:
        return not self._active

    def is_on(self, trouble: Trouble) -> bool:
        return any(active.trouble is trouble for active in self._active)

    def strikes(self, *troubles: Trouble) -> ActiveTrouble | None:
        """The first of these that takes what passes now; counted."""
        for active in self._active:
            if active.trouble in troubles and self._draw.random() < active.share:
                self.hits[active.trouble] += 1
                self.struck.set()
                return active
        return None
