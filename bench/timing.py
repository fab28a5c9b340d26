"""Time one call, repeatedly."""

import gc
from collections.abc import Callable
from time import perf_counter
from typing import Any


def timed(call: Callable[[], Any], *, repeat: int = 30, scale: float = 1e3, warm: int = 2) -> list[float]:
    """Durations of single calls, in milliseconds unless `scale` says otherwise."""
    for _ in range(warm):
        call()
    values = []
    gc.collect()
    for _ in range(repeat):
        start = perf_counter()
        call()
        values.append((perf_counter() - start) * scale)
    return values
