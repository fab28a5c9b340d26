"""Moves of consolidation: in progress, done and rolled back, and their savings so far."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.consolidation.execution.move_history import cost_of, saved_by, saved_by_all
from karpool.consolidation.execution.options import STOP_NAMESPACE
from karpool.consolidation.execution.record import MovePhase, MoveRecord, from_object, selection
from karpool.dashboard.api.list_views import LedgerRow, MoveLedger
from karpool.dashboard.pages.move_sentences import NAMES_MAX, counted, new_node, scores
from karpool.dashboard.pages.paging import ListQuery, in_order, page_of
from karpool.kube.watched import WatchedKind
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ObjectKey
from karpool.model.kubernetes.configmap import ConfigMap

PROBLEMS_MAX = 20


class MoveRecords:
    """The move records of one cluster, updated by an informer."""

    def __init__(self) -> None:
        self._records: dict[ObjectKey, MoveRecord] = {}
        self._unreadable: dict[ObjectKey, str] = {}

    @property
    def watch(self) -> WatchedKind[ConfigMap]:
        sink = PutDropSink(self._put, self._drop)
        return WatchedKind(CONFIGMAPS, ConfigMap, sink, selection(STOP_NAMESPACE), optional=True)

    @property
    def records(self) -> list[MoveRecord]:
        return sorted(self._records.values(), key=lambda record: (record.created, record.name))

    @property
    def problems(self) -> Sequence[str]:
        return list(self._unreadable.values())

    def _put(self, key: ObjectKey, stored: ConfigMap) -> None:
        try:
            self._records[key] = from_object(stored)
            self._unreadable.pop(key, None)
        except Invalid as error:
            self._records.pop(key, None)
            self._unreadable[key] = f"ConfigMap {key}: {error}"

    def _drop(self, key: ObjectKey) -> None:
        self._records.pop(key, None)
        self._unreadable.pop(key, None)


@dataclass(frozen=True, slots=True)
class ClusterMoves:
    cluster: str
    records: Sequence[MoveRecord]
    problems: Sequence[str] = ()


_Place = tuple[ClusterMoves, MoveRecord]
COLUMNS: Mapping[str, Callable[[_Place], Any]] = {
    "cluster": lambda place: (place[0].cluster, place[1].created),
    "phase": lambda place: (str(place[1].phase), -place[1].created),
    "kind": lambda place: str(place[1].move.kind),
    "began": lambda place: place[1].created,
    "predicted": lambda place: place[1].move.savings_per_hour,
    "realised": lambda place: place[1].realised,
    "pods": lambda place: place[1].disturbed or place[1].move.disturbed,
}


def ledger(clusters: Iterable[ClusterMoves], query: ListQuery, now: float) -> MoveLedger:
    """Return the moves, the latest first unless the query sorts. Sums are over the selected clusters."""
    chosen = [moves for moves in clusters if query.cluster in ("", moves.cluster)]
    records = [record for moves in chosen for record in moves.records]
    done = [record for record in records if record.phase is MovePhase.DONE]
    measured = [record for record in done if record.realised is not None]
    places = [
        (moves, record)
        for moves in chosen
        for record in moves.records
        if query.finds(moves.cluster, record.name, record.phase, record.move.kind, *record.move.names)
    ]
    places.sort(key=lambda place: -place[1].created)
    return MoveLedger(
        at=now,
        items=[_row(*place, now) for place in page_of(in_order(places, query, COLUMNS), query)],
        matched=len(places),
        total=len(records),
        offset=query.offset,
        saved_dollars=sum(saved_by_all(moves.records, now) for moves in chosen),
        predicted_savings_per_hour=sum(record.move.savings_per_hour for record in measured),
        realised_savings_per_hour=sum(record.realised or 0.0 for record in measured),
        done=len(done),
        rolled_back=sum(record.phase is MovePhase.ROLLED_BACK for record in records),
        under_way=sum(not record.phase.is_over for record in records),
        problems=[f"{moves.cluster}: {line}" for moves in chosen for line in moves.problems][:PROBLEMS_MAX],
    )


def _row(moves: ClusterMoves, record: MoveRecord, now: float) -> LedgerRow:
    move = record.move
    return LedgerRow(
        cluster=moves.cluster,
        name=record.name,
        phase=str(record.phase),
        kind=str(move.kind),
        nodes=list(move.names[:NAMES_MAX]),
        nodes_left_out=max(0, len(move.names) - NAMES_MAX),
        new_nodes=list(dict.fromkeys(record.arrived)),
        extra_nodes=list(record.extra_nodes),
        kept=list(record.kept),
        score=move.score,
        predicted_savings_per_hour=move.savings_per_hour,
        realised_savings_per_hour=record.realised,
        cost_dollars=cost_of(record, moves.records, now),
        saved_dollars=saved_by(record, moves.records, now),
        pods_disturbed=record.disturbed or move.disturbed,
        pods_redisturbed=record.redisturbed,
        attempt=record.attempt,
        began=record.created,
        since=record.since,
        ended=record.ended,
        why=list(_why(record)),
    )


_MEANS = {
    MovePhase.WAITING: "it is decided and waits for the quiet period",
    MovePhase.ASKING: "new nodes are asked for",
    MovePhase.CORDONING: "its nodes are cordoned; it is validated a last time",
    MovePhase.DELETING: "its nodes are being deleted; it can no longer be rolled back",
    MovePhase.SETTLING: "its nodes are deleted; the saving is being measured",
    MovePhase.ROLLING_BACK: "it is being rolled back",
    MovePhase.DONE: "it is done",
    MovePhase.ROLLED_BACK: "it was rolled back",
    MovePhase.REJECTED: "it was rejected before anything was changed",
}


def _why(record: MoveRecord) -> Iterator[str]:
    move = record.move
    yield f"{record.phase}: {_MEANS[record.phase]}"
    if record.message or record.reason:
        yield ": ".join(part for part in (record.reason, record.message) if part)
    yield f"it was decided because it saves ${move.savings_per_hour:.4f} per hour and disturbs " + counted(
        move.disturbed, "pod"
    )
    yield from scores(move.verdict)
    if record.bound is not None:
        bound = record.bound
        yield (
            f"plans at that time saved ${bound.planned_per_hour:.4f} per hour; no plan could have "
            f"saved more than ${bound.possible_per_hour:.4f}"
        )
    if move.new_nodes:
        yield f"it buys {', '.join(map(new_node, move.new_nodes))}"
    if record.realised is not None:
        yield f"${record.realised:.4f} per hour realised"
    if record.kept:
        yield f"these nodes stay: {', '.join(record.kept)}"
    if record.redisturbed:
        yield f"{counted(record.redisturbed, 'pod')} had been moved shortly before"
