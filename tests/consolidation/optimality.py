"""How near plans are to what an exact solver finds: `python -m tests.consolidation.optimality [CLUSTERS]`.

Clusters with an even seed are planned without scores and compared with the most that can be saved at
all, which is harder than at equal disruption. Those with an odd seed are planned with Balanced, k = 2,
and compared with the most that can be saved with as much disruption.
"""

import sys
from dataclasses import dataclass
from statistics import mean, median

from karpool.consolidation.policy.settings import DEFAULTS
from tests.consolidation.exact import most_saved
from tests.consolidation.small_clusters import BALANCED, UNSCORED, planned, small_cluster
from tests.consolidation.upstream_search import one_command, until_nothing_is_found


@dataclass(frozen=True)
class Compared:
    seed: int
    savings: float
    optimum: float
    one_command: float  # of upstream's search; unscored clusters only
    upstream: float  # all commands of upstream, however often pods move

    @property
    def ratio(self) -> float:
        return self.savings / self.optimum if self.optimum > 1e-9 else 1.0


def compared(seed: int, least: int = 3, most: int = 6) -> Compared:
    nodes, types, kinds = small_cluster(seed, least, most)
    scored = bool(seed % 2)
    plan = planned(nodes, types, kinds, BALANCED if scored else UNSCORED)
    bound = plan.disruption if scored else None
    optimum = most_saved(nodes, types, new_nodes=DEFAULTS.most_new_nodes, disruption=bound)
    if scored:
        return Compared(seed, plan.savings_per_hour, optimum, 0.0, 0.0)
    command = one_command(tuple(nodes), types)
    return Compared(
        seed,
        plan.savings_per_hour,
        optimum,
        command.savings if command is not None else 0.0,
        until_nothing_is_found(tuple(nodes), types)[0],
    )


def main(count: int = 200, least: int = 3, most: int = 6) -> None:
    found = [compared(seed, least, most) for seed in range(count)]
    for name, part in (("unscored", found[::2]), ("balanced, equal disruption", found[1::2])):
        ratios = sorted(each.ratio for each in part)
        tenths = ", ".join(f"{ratios[int(len(ratios) * share)]:.4f}" for share in (0.01, 0.05, 0.1, 0.25))
        print(f"{name}: {len(part)} clusters of {least} to {most} nodes")
        print(
            f"  savings / optimum: worst {ratios[0]:.4f}, 1/5/10/25 % {tenths}, median {median(ratios):.4f}"
        )
        print(f"  mean {mean(ratios):.4f}, exact in {sum(ratio > 0.99999 for ratio in ratios)}")
    unscored = found[::2]
    share = mean(each.upstream / each.savings for each in unscored if each.savings)
    ahead = sum(each.upstream > each.savings + 1e-9 for each in unscored)
    print(f"upstream's search until it finds nothing: {share:.4f} of our savings, ahead in {ahead} clusters")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
