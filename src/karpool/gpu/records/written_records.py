"""Caches the records that we wrote, because the watch may lag behind our own writes."""

from collections.abc import Mapping

from karpool.gpu.records.scale_up_record import ScaleUpRecord


class WrittenRecords:
    def __init__(self) -> None:
        self._written: dict[str, ScaleUpRecord] = {}
        self._removed: set[str] = set()  # uids
        self._watched: frozenset[str] = frozenset()  # uids of the last call

    def wrote(self, record: ScaleUpRecord) -> None:
        self._written[record.name] = record

    def failed(self, name: str) -> None:
        """Forget our copy after a failed write; the watch will show the result."""
        self._written.pop(name, None)

    def removed(self, record: ScaleUpRecord) -> None:
        self._removed.add(record.uid)
        self._written.pop(record.name, None)

    def merged(self, watched: Mapping[str, ScaleUpRecord]) -> dict[str, ScaleUpRecord]:
        """The watched records, with our newer copies. A record that disappears from the watch is deleted."""
        merged = {name: record for name, record in watched.items() if record.uid not in self._removed}
        uids = frozenset(record.uid for record in watched.values())
        gone, self._watched = self._watched - uids, uids
        self._removed &= uids
        for name, ours in list(self._written.items()):
            seen = merged.get(name)
            if ours.uid in gone or (seen is not None and _is_as_new(seen, ours)):
                del self._written[name]
            else:
                merged[name] = ours
        return merged


def _is_as_new(seen: ScaleUpRecord, ours: ScaleUpRecord) -> bool:
    if seen.uid != ours.uid:
        return True  # it was deleted and created again
    if seen.version.isdecimal() and ours.version.isdecimal():
        return int(seen.version) >= int(ours.version)
    return True
