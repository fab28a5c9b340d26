"""Chooses the best node for one more pod of a shape, on a board.

Thousands of pods share a few shapes. So the kernel's answers for a shape, and the part of its score that
depends on room, are cached and updated for changed rows. Seeded random numbers decide among equally good
nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import fits
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import Room, RoomSubset
from karpool.packing.topology.constraints import SpreadRule
from karpool.packing.topology.topology import Topology
from karpool_fleet.kube_scheduler import score_plugins
from karpool_fleet.kube_scheduler.board import PlacementBoard
from karpool_fleet.kube_scheduler.messages import FilterVerdict
from karpool_fleet.kube_scheduler.preferred_pod_affinity import PreferredPodAffinity, attracts
from karpool_fleet.kube_scheduler.settings import KubeSchedulerSettings

NEVER = -1


@dataclass(slots=True, eq=False)
class _Opinion:
    """The score of every node for one shape, or NEVER where it does not fit."""

    shape: PodShape
    scores: Int64s
    seen: int  # placements of the board that it includes
    probe: PodShape | None = None  # its soft spreads, in a form that the kernel can count
    attraction: PreferredPodAffinity | None = None
    attraction_seen: int = 0


class NodeChooser:
    def __init__(
        self, board: PlacementBoard, settings: KubeSchedulerSettings, chance: Callable[[], float]
    ) -> None:
        self.board = board
        self._settings = settings
        self._chance = chance
        self._opinions: dict[int, _Opinion] = {}  # by identity: shapes are interned
        # With the number of placements that they include.
        self._verdicts: dict[int, tuple[int, FilterVerdict]] = {}

    def choose(self, shape: PodShape, *, closed: Sequence[int] = (), first: int | None = None) -> int | None:
        """Return a row for one more pod, or None.

        `closed` rows are excluded; `first` is preferred if it fits.
        """
        opinion = self._current(shape)
        scores, allowed = opinion.scores, self.board.allowed(shape)
        if allowed is None and not closed and first is None and not self._has_preferences(shape):
            return self._best(scores)
        open_nodes = scores >= 0
        if allowed is not None:
            open_nodes &= allowed
        open_nodes[list(closed)] = False
        if not open_nodes.any():
            return None
        if first is not None and open_nodes[first]:
            return first
        total = scores + self._preferences(opinion, open_nodes)
        total[~open_nodes] = NEVER
        return self._best(total)

    def verdict(self, shape: PodShape) -> FilterVerdict:
        """Return why no node takes the pod."""
        remembered = self._verdicts.get(id(shape))
        if remembered is None or remembered[0] != len(self.board.placed):
            remembered = self._verdicts[id(shape)] = (
                len(self.board.placed),
                FilterVerdict(self.board, shape),
            )
        return remembered[1]

    def _best(self, scores: Int64s) -> int | None:
        if not len(scores):
            return None
        best = scores.max()
        if best < 0:
            return None
        ties = np.flatnonzero(scores == best)
        return int(ties[0] if len(ties) == 1 else ties[int(self._chance() * len(ties))])

    def _current(self, shape: PodShape) -> _Opinion:
        placed = self.board.placed
        opinion = self._opinions.get(id(shape))
        if opinion is None:
            opinion = self._opinions[id(shape)] = _Opinion(shape, self._ask(self.board, shape), len(placed))
        elif opinion.seen < len(placed):
            rows = list(dict.fromkeys(row for _, row in placed[opinion.seen :]))
            if len(rows) * 4 > self.board.n:
                opinion.scores = self._ask(self.board, shape)
            else:
                opinion.scores[rows] = self._ask(RoomSubset(self.board, rows), shape)
            opinion.seen = len(placed)
        return opinion

    def _ask(self, nodes: Room, shape: PodShape) -> Int64s:
        return np.where(fits(nodes, shape) > 0, score_plugins.room_score(nodes, shape, self._settings), NEVER)

    # Preferences

    def _has_preferences(self, shape: PodShape) -> bool:
        return bool(
            shape.preferred_nodes
            or any(not spread.required for spread in shape.spreads)
            or self._is_attracted(shape)
            or score_plugins.soft_taints(self.board.nodes, shape.tolerations).any()
        )

    def _is_attracted(self, shape: PodShape) -> bool:
        if shape.preferred_affinity or shape.preferred_anti_affinity:
            return True
        return bool(self.board.shapes.where("kube-scheduler attracts", attracts).any())

    def _preferences(self, opinion: _Opinion, open_nodes: Bools) -> Int64s:
        shape, nodes, weights = opinion.shape, self.board.nodes, self._settings.weights
        total = np.zeros(self.board.n, dtype=np.int64)
        if shape.preferred_nodes:
            raw = score_plugins.preferred_nodes(nodes, shape.preferred_nodes)
            total += weights.node_affinity * score_plugins.most_is_best(raw, open_nodes)
        raw = score_plugins.soft_taints(nodes, shape.tolerations)
        if raw.any():
            total += weights.taints * score_plugins.least_is_best(raw, open_nodes)
        if any(not spread.required for spread in shape.spreads):
            total += weights.spread * score_plugins.spread_score(self._soft_spreads(opinion), open_nodes)
        if self._is_attracted(shape) and (raw_pull := self._pull(opinion)) is not None:
            total += weights.pod_affinity * score_plugins.between_extremes(raw_pull, open_nodes)
        return total

    def _soft_spreads(self, opinion: _Opinion) -> list[SpreadRule]:
        if opinion.probe is None:
            shape = opinion.shape
            soft = tuple(replace(spread, required=True) for spread in shape.spreads if not spread.required)
            opinion.probe = replace(shape, spreads=soft, affinity=(), anti_affinity=())
        topology: Topology = self.board.all_topology()
        return [rule for rule in topology.rules(opinion.probe).own if isinstance(rule, SpreadRule)]

    def _pull(self, opinion: _Opinion) -> Int64s | None:
        placed = self.board.placed
        if opinion.attraction is None:
            opinion.attraction = PreferredPodAffinity(self.board, opinion.shape)
        else:
            for other, row in placed[opinion.attraction_seen :]:
                opinion.attraction.add(other, row)
        opinion.attraction_seen = len(placed)
        return opinion.attraction.raw()
