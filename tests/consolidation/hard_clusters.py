"""Clusters that make moves hard, many seeds of them: python -m tests.consolidation.hard_clusters [--seeds 45]

Workloads with disruption budgets, anti-affinity, spread over zones and sizes that do not go together; a pool
with tight limits; and somebody who scales at random all the while. With `--without` every seed is lived
twice, with a consolidator and without one. Reported are the moves by how they ended and why, and the bill,
which is summed up from the NodeClaims that exist at every second, not from anything the product says.
"""

import asyncio
import logging
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import structlog

from karpool.consolidation.execution.controller import ConsolidatorSettings
from karpool.consolidation.execution.record import OVER, RECORD, MovePhase, from_object
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool_fleet.apiserver.storage.history import StoredEvent
from tests.consolidation.executing import QUICK, Play, play
from tests.fleet.karpenter.acting import catalogue

HARD = replace(QUICK, plan_seconds=10.0)
MINUTES = 40


@dataclass
class Outcome:
    """`ended` by phase and reason."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    dollars: float = 0.0
    unserved: int = 0  # pods that wait at the end
    claimed: float = 0.0  # what the product says it saved, in the time measured

    @property
    def moves(self) -> int:
        return sum(self.ended.values())

    def of(self, phase: MovePhase) -> int:
        return sum(number for (ended, _), number in self.ended.items() if ended == phase)


class Accountant:
    """Sees every record that ends, and what is paid for."""

    def __init__(self, p: Play, outcome: Outcome) -> None:
        self._outcome, self._store = outcome, p.stage.cluster.server.cluster.store
        self._seen: set[tuple[str, int]] = set()
        self._store.listeners.append(self._on_change)

    def _on_change(self, event: StoredEvent) -> None:
        if event.record.collection.group_resource != "configmaps" or event.type == "DELETED":
            return
        raw = event.record.object()
        if raw["metadata"].get("labels", {}).get(RECORD) is None:
            return
        record = from_object(decode(raw, ConfigMap))
        if record.phase in OVER and (record.name, record.attempt) not in self._seen:
            self._seen.add((record.name, record.attempt))
            self._outcome.ended[record.phase, record.reason] += 1

    def pay(self, seconds: float) -> None:
        for stored in self._store.collection("nodeclaims.karpenter.sh").ordered(None):
            labels = stored.object()["metadata"].get("labels", {})
            name = labels.get("node.kubernetes.io/instance-type", "")
            zone, kind = (
                labels.get("topology.kubernetes.io/zone", ""),
                labels.get("karpenter.sh/capacity-type", ""),
            )
            price = catalogue().price(name, zone, kind)
            self._outcome.dollars += (price or 0.0) * seconds / 3600


def apart(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(app: str) -> dict[str, Any]:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    return {"topologySpreadConstraints": [constraint]}


async def lived(p: Play, random: Random, outcome: Outcome, *, consolidates: bool) -> None:
    accountant = Accountant(p, outcome)
    disruption = {
        "consolidateAfter": random.choice(["0s", "10s", "30s"]),
        "budgets": [{"nodes": random.choice(["30%", "50%", "100%"])}],
    }
    limits = {"cpu": str(random.choice([44, 60, 80]))}
    await p.stage.pool("general", types=("small", "medium", "large"), disruption=disruption, limits=limits)
    most = {"web": 10, "spread": 8, "apart": 6, "batch": 6, "big": 3}
    await p.deploy("web", 6, cpu="700m")
    await p.deploy("spread", 4, cpu="500m", **spread("spread"))
    await p.deploy("apart", 4, cpu="300m", **apart("apart"))
    await p.deploy("batch", 2, cpu="1500m")
    await p.deploy("big", 1, cpu="3")
    await p.stage.budget("web", maxUnavailable=1)
    await p.stage.budget("apart", maxUnavailable=1)
    await p.stage.budget("spread", maxUnavailable=2)
    await asyncio.sleep(120)
    if consolidates:
        p.start()
    # What happens does not depend on what we do: the same life with us and without.
    left = MINUTES * 60.0
    while left > 0:
        name = random.choice(list(most))
        await p.scale(name, random.randint(0 if name in ("batch", "big") else 2, most[name]))
        pause = float(random.choice([5, 20, 45, 90]))
        for _ in range(int(pause)):
            await asyncio.sleep(1)
            accountant.pay(1.0)
        left -= pause
    for _ in range(600):
        await asyncio.sleep(1)
        accountant.pay(1.0)
    pods = [pod for pod in await p.stage.all_pods() if pod.metadata.namespace == "default"]
    outcome.unserved = sum(not pod.spec.node_name for pod in pods)


def live(seed: int, options: ConsolidatorSettings, *, consolidates: bool = True) -> Outcome:
    outcome = Outcome()

    async def story(p: Play) -> None:
        await lived(p, Random(seed), outcome, consolidates=consolidates)

    play(story, options, seed=seed)
    return outcome


def report(outcomes: Sequence[Outcome], without: Sequence[Outcome]) -> str:
    ended: Counter[tuple[str, str]] = sum((outcome.ended for outcome in outcomes), Counter())
    moves = sum(ended.values()) or 1
    made, back, refused = (
        sum(outcome.of(phase) for outcome in outcomes)
        for phase in (MovePhase.DONE, MovePhase.ROLLED_BACK, MovePhase.REJECTED)
    )
    lines = [
        f"{len(outcomes)} seeds, {sum(ended.values())} moves: {made} made, {back} rolled back "
        f"({back / moves:.1%}), {refused} not begun; pods that wait at the end: "
        f"{sum(outcome.unserved for outcome in outcomes)}"
    ]
    lines += [f"  {number:4} {phase} {reason}" for (phase, reason), number in ended.most_common() if reason]
    if without:
        bill, bare = (sum(outcome.dollars for outcome in chosen) for chosen in (outcomes, without))
        lines.append(f"  bill ${bill:.2f}, without us ${bare:.2f}: {1 - bill / bare:.1%} less")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=45)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cordon-late", action="store_true", help="only when the new nodes have come")
    parser.add_argument("--without", action="store_true", help="also live every seed without a consolidator")
    given = parser.parse_args(arguments)
    outcomes, without, write = [], [], sys.stdout.write
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    execution = replace(HARD.execution, cordons_early=not given.cordon_late)
    options = replace(HARD, execution=execution)
    for seed in range(given.first, given.first + given.seeds):
        outcomes.append(live(seed, options))
        if given.without:
            without.append(live(seed, HARD, consolidates=False))
        found = outcomes[-1]
        write(f"seed {seed}: {dict(found.ended)} ${found.dollars:.2f} waiting {found.unserved}\n")
        sys.stdout.flush()
    write(report(outcomes, without) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
