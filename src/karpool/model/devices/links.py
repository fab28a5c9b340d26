"""How close the devices of one machine are to each other, and which of them to use together.

Tiers, lower is better: 0 linked directly (`NV18`), 1 on one bus (`PIX`, `PXB`, `PHB`), 2 across the machine
(`NODE`, `SYS`), 3 unknown. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb

LINKS_ANNOTATION = "gpu.karpool.dev/links"
Links = Mapping[str, Mapping[str, str]]  # device, peer, path; names in lower case
_TIERS = {"PIX": 1, "PXB": 1, "PHB": 1, "NODE": 2, "SYS": 2}
UNKNOWN_TIER = 3
_TEXT_MAX = 65_536
# Sets that are compared one by one (any four of eight: 70); above that, devices are added greedily.
_SETS_MAX = 256


def read_links(text: str) -> tuple[tuple[str, str], ...]:
    """Return the peers and paths that the agent writes; empty if the text cannot be read."""
    try:
        peers = json.loads(text[:_TEXT_MAX]) if text else {}
    except (ValueError, RecursionError):
        return ()
    if not isinstance(peers, dict):
        return ()
    return tuple(sorted((peer.lower(), path) for peer, path in peers.items() if isinstance(path, str)))


def tier(links: Links, one: str, other: str) -> int:
    """Return the better of the tiers that both sides report."""
    one, other = one.lower(), other.lower()
    paths = (links.get(one, {}).get(other, ""), links.get(other, {}).get(one, ""))
    return min(0 if path.startswith("NV") else _TIERS.get(path, UNKNOWN_TIER) for path in paths)


def belonging_together(names: Sequence[str], count: int, links: Links) -> tuple[str, ...]:
    """Return `count` of the devices with the best links; among equal sets the first."""
    if count < 2 or count >= len(names) or not links:
        return tuple(names[:count])
    if comb(len(names), count) <= _SETS_MAX:
        return min(combinations(names, count), key=lambda group: _distance(group, links))
    best: tuple[str, ...] = ()
    for first in names:
        group = [first]
        while len(group) < count:
            others = [name for name in names if name not in group]
            group.append(min(others, key=lambda name: _distance((*group, name), links)))
        if not best or _distance(group, links) < _distance(best, links):
            best = tuple(sorted(group, key=names.index))
    return best


def _distance(group: Sequence[str], links: Links) -> tuple[int, int]:
    """Return the worst tier, then the sum of all tiers."""
    tiers = [tier(links, one, other) for one, other in combinations(group, 2)]
    return max(tiers, default=0), sum(tiers)
