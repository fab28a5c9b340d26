"""Feature gates: `Name=true,Other=false`. Alpha is off until asked for, beta is on.

The switches `AllAlpha` and `AllBeta` decide for all gates of their kind that are not
named. An unknown name is an error: whoever misspells a gate believes it switched.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from karpool.model.errors import Invalid

ALL_ALPHA, ALL_BETA = "AllAlpha", "AllBeta"
Gates = Mapping[str, bool]


def parse(text: str, *, alpha: Sequence[str], beta: Sequence[str]) -> Gates:
    """Every gate with its value; raises Invalid."""
    known = {*alpha, *beta, ALL_ALPHA, ALL_BETA}
    named: dict[str, bool] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.partition("=")
        if name not in known:
            raise Invalid("--feature-gates", name, f"is not a gate; known are {', '.join(sorted(known))}")
        if not equals or value.lower() not in ("true", "false"):
            raise Invalid("--feature-gates", entry, "must be Name=true or Name=false")
        named[name] = value.lower() == "true"
    gates = dict.fromkeys(alpha, named.get(ALL_ALPHA, False))
    gates |= dict.fromkeys(beta, named.get(ALL_BETA, True))
    return MappingProxyType(gates | named)
