"""Delay distributions of an embedded cluster, as written in a fleet file.

`3s`, `uniform(1s, 5s)`, `lognormal(30s, 0.4)` (median and spread), `exponential(30s)` (mean; gaps between
independent arrivals). Each caller draws from its own random numbers, so that a run can be repeated.
"""

import math
import re
from dataclasses import dataclass
from random import Random

from karpool.model import durations
from karpool.model.errors import Invalid


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay.

    `kind` is constant, uniform, lognormal or exponential; `a` and `b` are parameters in seconds.
    """

    kind: str = "constant"
    a: float = 0.0
    b: float = 0.0

    def draw(self, random: Random) -> float:
        match self.kind:
            case "uniform":
                return random.uniform(self.a, self.b)
            case "lognormal":
                return self.a * math.exp(random.gauss(0.0, self.b))
            case "exponential":
                return random.expovariate(1.0 / self.a) if self.a else 0.0
        return self.a


def constant(seconds: float) -> Delay:
    return Delay("constant", seconds)


def uniform(low: float, high: float) -> Delay:
    return Delay("uniform", low, high)


def lognormal(median: float, spread: float) -> Delay:
    """About two thirds of the draws lie between median / e^spread and median * e^spread."""
    return Delay("lognormal", median, spread)


def exponential(mean: float) -> Delay:
    return Delay("exponential", mean)


_ONE = re.compile(r"exponential\(\s*([^,()\s]+)\s*\)\Z")
_CALL = re.compile(r"(uniform|lognormal)\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)\Z")


def parse_delay(text: str) -> Delay:
    """Parse a delay. Raises Invalid."""
    if (alone := _ONE.match(text.strip())) is not None:
        return exponential(_seconds(alone[1]))
    match = _CALL.match(text.strip())
    if match is None:
        return constant(_seconds(text.strip()))
    kind, first, second = match.groups()
    if kind == "uniform":
        low, high = _seconds(first), _seconds(second)
        if low > high:
            raise Invalid("", text, "the first duration must not be longer than the second")
        return uniform(low, high)
    try:
        spread = float(second)
    except ValueError:
        spread = math.nan
    if not 0 <= spread <= 5:
        raise Invalid("", text, "the spread must be a number from 0 to 5")
    return lognormal(_seconds(first), spread)


def _seconds(text: str) -> float:
    try:
        amount = durations.seconds(text)
    except Invalid:
        amount = -1.0
    if amount < 0:
        raise Invalid("", text, "is not a delay like 3s, uniform(1s, 5s) or lognormal(30s, 0.4)")
    return amount
