"""Numbers to an absolute tolerance, everything else exactly; the answer may say more."""

import math
from collections.abc import Mapping
from typing import Any

TOLERANCE = 1e-9


def nearly(expected: Any, actual: Any) -> bool:
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and nearly(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list) and len(expected) == len(actual) and all(map(nearly, expected, actual))
        )
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, float) and isinstance(actual, int | float):
        return math.isfinite(actual) and abs(expected - actual) <= TOLERANCE
    return bool(expected == actual)


def infinite_as_text(number: float) -> float | str:
    return "inf" if number == math.inf else number
