"""Objects that could not be used, and why. Bounded: a broken cluster must not fill memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from karpool.model.errors import Invalid

LIMIT = 1000


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    kind: str
    name: str  # namespace/name, as far as it could be read
    path: str
    value: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.kind} {self.name}" if self.name else self.kind
        return (
            f"{where}: {self.path}: {self.value}: {self.reason}" if self.path else f"{where}: {self.reason}"
        )


class UnreadableObjects:
    """The latest problem of each object, until the object is fixed or deleted."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], UnreadableObject] = {}
        self.dropped = 0  # not stored, because there were too many

    def __iter__(self) -> Iterator[UnreadableObject]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def add(self, kind: str, name: str, error: Invalid) -> UnreadableObject:
        shown = repr(error.value)
        problem = UnreadableObject(
            kind, name, error.path, shown if len(shown) <= 120 else shown[:117] + "...", error.reason
        )
        if len(self._known) < LIMIT or (kind, name) in self._known:
            self._known[kind, name] = problem
        else:
            self.dropped += 1
        return problem

    def clear(self, kind: str, name: str) -> None:
        if self._known:
            self._known.pop((kind, name), None)
