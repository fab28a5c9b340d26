"""The most complete sets that any order of placing pods reaches on new nodes: every way is tried.

Small worlds only. Nodes are opened as Karpenter opens them: of the first pool in order that can launch one,
charged for the largest type that the node might become. Everything else is free: which pod is next, and
which of the planned nodes that hold it takes it.
"""

from functools import cache


def most_sets(pools, types, components, nodes_max, sets_max):
    """`pools` are limits on cores, in order; `types` and the shapes of `components` are (cores, GiB)."""
    sets = 0
    while sets < sets_max and _all_fit(pools, types, components, nodes_max, sets + 1):
        sets += 1
    return sets


def _all_fit(pools, types, components, nodes_max, sets):
    shapes = [shape for shape, _ in components]

    def holds(type_, used, shape):
        return all(have >= taken + asked for have, taken, asked in zip(type_, used, shape, strict=True))

    @cache
    def place(left, nodes, limits, opened):
        if not any(left):
            return True
        for index, shape in enumerate(shapes):
            if not left[index]:
                continue
            rest = (*left[:index], left[index] - 1, *left[index + 1 :])
            for at, (allowed, used) in enumerate(nodes):
                more = tuple(taken + asked for taken, asked in zip(used, shape, strict=True))
                if any(holds(type_, used, shape) for type_ in allowed):
                    after = tuple(sorted((*nodes[:at], (allowed, more), *nodes[at + 1 :])))
                    if place(rest, after, limits, opened):
                        return True
            for pool, limit in enumerate(limits):
                allowed = tuple(type_ for type_ in types if type_[0] <= limit)
                fitting = [type_ for type_ in allowed if holds(type_, (0, 0), shape)]
                if fitting and opened[pool] < nodes_max:
                    charged = max(cores for cores, _ in fitting)
                    after = tuple(sorted((*nodes, (allowed, shape))))
                    remaining = (*limits[:pool], limit - charged, *limits[pool + 1 :])
                    count = (*opened[:pool], opened[pool] + 1, *opened[pool + 1 :])
                    if place(rest, after, remaining, count):
                        return True
                    break
        return False

    left = tuple(replicas * sets for _, replicas in components)
    return place(left, (), tuple(pools), (0,) * len(pools))
