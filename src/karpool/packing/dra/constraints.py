"""Constraints between the devices of one claim, while the search adds and removes devices.

Two quirks of Kubernetes' allocator are kept, because its answer is the one that counts: a distinct attribute
remembers one value per request, and the common values of lists do not widen again when the search backs up.
"""

from collections.abc import Hashable

from karpool.model.dra.claim import AttributeConstraint, DeviceRequest
from karpool.model.dra.device import AttributeValue, DraDevice


class MatchingAttribute:
    """All devices have the same value; for lists, a common value."""

    def __init__(self, constraint: AttributeConstraint, *, lists: bool) -> None:
        self._constraint = constraint
        self._lists = lists
        self._common: frozenset[Hashable] = frozenset()
        self._devices = 0

    def add(self, request: DeviceRequest, device: DraDevice) -> bool:
        if not self._constraint.concerns(request):
            return True
        value = device.attribute(self._constraint.attribute)
        if value is None:
            return False
        values = _values(value, lists=self._lists)
        if self._devices == 0:
            if self._lists and not values:
                return False
            self._common = values
        else:
            common = self._common & values
            if not common:
                return False
            self._common = common
        self._devices += 1
        return True

    def remove(self, request: DeviceRequest) -> None:
        if self._constraint.concerns(request):
            self._devices -= 1


class DistinctAttribute:
    """Requests have different values; for lists, no common value."""

    def __init__(self, constraint: AttributeConstraint, *, lists: bool) -> None:
        self._constraint = constraint
        self._lists = lists
        self._by_request: dict[str, frozenset[Hashable]] = {}
        self._devices = 0

    def add(self, request: DeviceRequest, device: DraDevice) -> bool:
        if not self._constraint.concerns(request):
            return True
        value = device.attribute(self._constraint.attribute)
        if value is None:
            return False
        values = _values(value, lists=self._lists)
        if self._devices and self._by_request and not values:
            return False
        if self._devices and any(values & other for other in self._by_request.values()):
            return False
        self._by_request[request.parent or request.name] = values
        self._devices += 1
        return True

    def remove(self, request: DeviceRequest) -> None:
        if self._constraint.concerns(request):
            self._by_request.pop(request.parent or request.name, None)
            self._devices -= 1


ClaimConstraint = MatchingAttribute | DistinctAttribute


def constraint_of(constraint: AttributeConstraint, *, lists: bool) -> ClaimConstraint:
    kind = DistinctAttribute if constraint.distinct else MatchingAttribute
    return kind(constraint, lists=lists)


def _values(value: AttributeValue, *, lists: bool) -> frozenset[Hashable]:
    """Return the values of an attribute, with their type. A list counts only if lists are enabled."""
    if value.is_list and not lists:
        return frozenset()
    return frozenset((value.kind, single) for single in value.values)
