"""Records that we wrote ourselves count as written even while the watch is behind."""

from collections.abc import Mapping

from karpool.gpu.records.scale_up_record import ScaleUpRecord


class WrittenRecords:
    def __init__(self) -> None:
        self._written: dict[str, ScaleUpRecord] = {}
        self._removed: set[str] = set()  # uids
        self._watched: frozenset[str] = frozenset()  # uids, when last asked

    def wrote(self, record: ScaleUpRecord) -> None:
        self._written[record.name] = record

    def failed(self, name: str) -> None:
        """Whatever came of it, the watch will tell."""
        self._written.pop(name, None)

    def removed(self, record: ScaleUpRecord) -> None:
        self._removed.add(record.uid)
        self._written.pop(record.name, None)

    def merged(self, watched: Mapping[str, ScaleUpRecord]) -> dict[str, ScaleUpRecord]:
        """Ours where the watch has not caught up; one that it has shown, and shows no more, is gone."""
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
        return True  # somebody made it anew
    if seen.version.isdecimal() and ours.version.isdecimal():
        return int(seen.version) >= int(ours.version)
    return True
