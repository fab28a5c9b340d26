"""How much of a device's capacity an allocation consumes, and whether that much is left."""

from collections.abc import Mapping

from karpool.model.dra.device import CapacityPolicy, DraCapacity, DraDevice
from karpool.packing.dra.held import Amounts

_UNIT = 10**9

Asked = tuple[tuple[str, int], ...]


def consumed(device: DraDevice, asked: Asked | None) -> dict[str, int]:
    """Return for every capacity the request rounded by its policy; else its default, or all of it."""
    amounts = dict(asked or ())
    return {name: _amount(amounts.get(name), capacity) for name, capacity in device.capacity}


def fits(device: DraDevice, asked: Asked | None, held: Amounts, promised: Amounts) -> bool:
    """Whether the device has the requested capacity beside the existing allocations."""
    if asked and not {name for name, _ in asked} <= {name for name, _ in device.capacity}:
        return False
    amounts = consumed(device, asked)
    return all(
        not _violates(amounts[name], capacity.policy)
        and amounts[name] + _of(held, name) + _of(promised, name) <= capacity.nanos
        for name, capacity in device.capacity
    )


def _of(amounts: Mapping[str, int], name: str) -> int:
    return amounts.get(name, 0)


def _amount(asked: int | None, capacity: DraCapacity) -> int:
    policy = capacity.policy
    if asked is None:
        return capacity.nanos if policy is None or policy.default is None else policy.default
    if policy is None:
        return asked
    if policy.has_range and policy.least is not None:
        return _rounded(asked, policy.least, policy.step)
    if policy.values:
        return next((value for value in policy.values if asked <= value), asked)
    return asked


def _rounded(asked: int, least: int, step: int | None) -> int:
    if asked < least:
        return least
    if step is None:
        return asked
    start, width = _whole(least), _whole(step)
    return (start + -(-(_whole(asked) - start) // width) * width) * _UNIT


def _violates(amount: int, policy: CapacityPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.has_range:
        if policy.most is not None and amount > policy.most:
            return True
        return (
            policy.step is not None
            and (_whole(amount) - _whole(policy.least or 0)) % _whole(policy.step) != 0
        )
    return bool(policy.values) and amount not in policy.values


def _whole(nanos: int) -> int:
    """Round up to whole units, because steps are counted in them."""
    return -(-nanos // _UNIT)
