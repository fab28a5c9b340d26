"""Scale-ups of one cluster, including finished ones: their records are deleted before people look."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from karpool.cluster.changes import PutDropSink
from karpool.cluster.kinds import SCALE_UPS
from karpool.gpu.records.scale_up_object import ScaleUp, from_scale_up
from karpool.gpu.records.scale_up_record import ScaleUpRecord
from karpool.kube.clock import Clock
from karpool.kube.watched import WatchedKind
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import decode

FINISHED_MAX = 100  # enough for a few pages


class ScaleUpHistory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[ObjectKey, ScaleUpRecord] = {}
        self._unreadable: dict[ObjectKey, str] = {}
        self._finished: OrderedDict[ObjectKey, tuple[ScaleUpRecord, float]] = OrderedDict()

    @property
    def watch(self) -> WatchedKind[Any]:
        """Return the watch, which shares the informer of the `Cluster`; records are kept as they are."""
        return WatchedKind(
            SCALE_UPS.resource, SCALE_UPS.struct, PutDropSink(self._put, self._drop), optional=True
        )

    def records(self) -> Iterator[tuple[ScaleUpRecord, float | None]]:
        """Yield each record as last seen, with the time of its removal or None."""
        yield from ((record, None) for record in self._records.values())
        yield from self._finished.values()

    def wanted_by(self, namespace: str, pod: str) -> list[ScaleUpRecord]:
        """Return running scale-ups whose demand includes the pod."""
        names = {pod, f"{namespace}/{pod}"}
        return [record for record in self._records.values() if names & {*record.demand}]

    @property
    def problems(self) -> Sequence[str]:
        return list(self._unreadable.values())

    def _put(self, key: ObjectKey, raw: Any) -> None:
        try:
            self._records[key] = from_scale_up(decode(raw, ScaleUp))
            self._unreadable.pop(key, None)
            self._finished.pop(key, None)
        except Invalid as error:
            self._unreadable[key] = f"ScaleUp {key}: {error}"

    def _drop(self, key: ObjectKey) -> None:
        self._unreadable.pop(key, None)
        record = self._records.pop(key, None)
        if record is not None:
            self._finished[key] = record, self._clock.now()
            while len(self._finished) > FINISHED_MAX:
                self._finished.popitem(last=False)
