"""Selects stored objects for a list or a watch: by namespace, labels and fields.

Only fields that the store indexes are allowed, as in Kubernetes; any other is refused rather than silently
matching nothing.
"""

import re
from dataclasses import dataclass

from karpool.model.errors import Invalid
from karpool.model.labels import EVERYTHING, LabelMatcher, parse_selector
from karpool_fleet.apiserver.serve.status import bad_request
from karpool_fleet.apiserver.storage.record import READY, StoredObject
from karpool_fleet.apiserver.storage.store import Collection

_MAX_SELECTOR = 64 * 1024
_NAME, _NAMESPACE = -1, -2


@dataclass(frozen=True, slots=True)
class FieldTerm:
    position: int  # in Record.fields, or _NAME or _NAMESPACE
    value: str
    equal: bool

    def matches(self, record: StoredObject) -> bool:
        if self.position >= 0:
            actual = record.fields[self.position]
        else:
            actual = record.name if self.position == _NAME else record.namespace
        return (actual == self.value) is self.equal


@dataclass(frozen=True, slots=True)
class StoredSelection:
    namespace: str | None = None
    labels: LabelMatcher = EVERYTHING
    fields: tuple[FieldTerm, ...] = ()

    @property
    def filtered(self) -> bool:
        """Whether labels or fields narrow the selection."""
        return bool(self.labels.requirements or self.fields)

    def matches(self, record: StoredObject) -> bool:
        if self.namespace is not None and record.namespace != self.namespace:
            return False
        if self.fields and not all(term.matches(record) for term in self.fields):
            return False
        return not self.labels.requirements or self.labels.matches(record.labels)

    def candidates(self, collection: Collection) -> list[StoredObject]:
        """Return the ordered records to search: one if a name is selected, else the namespace."""
        for term in self.fields:
            if term.position == _NAME and term.equal and self.namespace is not None:
                record = collection.get(self.namespace, term.value)
                return [record] if record else []
        return collection.ordered(self.namespace)


def parse_selection(
    collection: Collection, namespace: str | None, label_selector: str, field_selector: str
) -> StoredSelection:
    if len(field_selector) > _MAX_SELECTOR:
        raise bad_request("fieldSelector is longer than 64 KiB")
    try:
        labels = parse_selector(label_selector) if label_selector else EVERYTHING
    except Invalid as error:
        raise bad_request(f"labelSelector: {error}") from None
    return StoredSelection(namespace, labels, _parse_fields(collection, field_selector))


_SEPARATOR = re.compile(r"(?<!\\),")
_TERM = re.compile(r"([^=!\\]+)(==|!=|=)((?:[^=\\]|\\.)*)\Z", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\,=])")


def _parse_fields(collection: Collection, text: str) -> tuple[FieldTerm, ...]:
    terms = []
    for part in _SEPARATOR.split(text):
        if not part.strip():
            continue
        match = _TERM.match(part.strip())
        if match is None:
            raise bad_request(f"fieldSelector: {part[:80]!r} is not a term like status.phase=Running")
        field, operator, value = match.groups()
        position = _position(collection, field.strip())
        terms.append(FieldTerm(position, _ESCAPED.sub(r"\1", value), operator != "!="))
    return tuple(terms)


def _position(collection: Collection, field: str) -> int:
    if field == "metadata.name":
        return _NAME
    if field == "metadata.namespace":
        return _NAMESPACE
    if field in collection.field_names and field != READY:
        return collection.field_names.index(field)
    fields = ["metadata.name", "metadata.namespace", *(f for f in collection.field_names if f != READY)]
    raise bad_request(
        f"fieldSelector: {field[:80]!r} is not supported for {collection.group_resource}; "
        f"supported: {', '.join(fields)}"
    )
