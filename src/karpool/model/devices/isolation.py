"""How devices are shared, and which sharing modes may meet on one device.

`shared` takes a whole idle device, `soft` and `hard` share by amounts, `partitioned` uses hardware
partitions. Under the policy `Static` the mode belongs to the node; under `Dynamic` the first request on a
device sets it and the last one clears it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

SHARED, SOFT, HARD, PARTITIONED = "shared", "soft", "hard", "partitioned"
MODES = (SOFT, SHARED, HARD, PARTITIONED)


class IsolationPolicy(StrEnum):
    STATIC = "Static"
    DYNAMIC = "Dynamic"


STATIC, DYNAMIC = IsolationPolicy

_CAPABILITY = {
    SOFT: "SupportsSoftIsolation",
    HARD: "SupportsHardIsolation",
    PARTITIONED: "SupportsPartitioning",
}


def is_capable(capabilities: Mapping[str, bool] | None, mode: str) -> bool:
    """Whether the device supports a mode; without metadata it supports every mode."""
    needed = _CAPABILITY.get(mode)
    return capabilities is None or needed is None or bool(capabilities.get(needed, False))


def accepts_mode(mode: str, *, device_policy: str, device_mode: str, lock: str, conflict: bool) -> bool:
    """Whether a request of this mode may join those on a device in this state."""
    if device_policy == DYNAMIC:
        return not conflict and lock in ("", mode)
    return mode in ("", SHARED) or device_mode in ("", mode)


def is_allowed(policy: str, mode: str, device_policy: str) -> bool:
    """Whether the policy in force lets a request of this mode use such a device."""
    if policy == DYNAMIC:
        return mode != PARTITIONED and device_policy == DYNAMIC
    return device_policy in ("", STATIC)


def is_compatible(
    policy: str, mode: str, *, device_policy: str, device_mode: str, lock: str, conflict: bool
) -> bool:
    """Whether a request of this mode may use this device under the policy in force."""
    return is_allowed(policy, mode, device_policy) and accepts_mode(
        mode, device_policy=device_policy, device_mode=device_mode, lock=lock, conflict=conflict
    )


@dataclass(frozen=True, slots=True)
class RecoveredModes:
    """Modes found on devices after a restart; a device with two modes is unusable until drained."""

    modes: Mapping[str, str]
    conflicts: frozenset[str]


def recover_modes(running: Iterable[tuple[Iterable[str], str]]) -> RecoveredModes:
    """Recover the modes from the devices and the mode of every running pod."""
    modes: dict[str, str] = {}
    conflicts: set[str] = set()
    for devices, mode in running:
        for device in devices:
            if mode in ("", PARTITIONED) or modes.get(device, mode) != mode:
                conflicts.add(device)
            else:
                modes[device] = mode
    return RecoveredModes(modes, frozenset(conflicts))
