"""Upstream's multi-node search, as plainly as it can be written, to be compared against.

It halves over prefixes of one ranking, so a valid batch above a failing probe is never found.
"""

from collections.abc import Callable

BATCH_MAX = 100


def largest_prefix(candidates: int, is_valid: Callable[[int], bool]) -> tuple[int, list[int]]:
    """The batch size it settles on (0: none), and the sizes it probed, in order."""
    if candidates < 2:
        return 0, []
    low, high = 1, min(candidates, BATCH_MAX)
    if candidates <= high:
        high = candidates - 1
    batch, probes = 0, []
    while low <= high:
        middle = (low + high) // 2
        probes.append(middle + 1)
        if is_valid(middle + 1):
            batch, low = middle + 1, middle + 1
        else:
            high = middle - 1
    return batch, probes
