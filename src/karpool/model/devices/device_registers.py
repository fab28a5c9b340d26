"""The device registers of HAMi and Volcano, in an annotation of each node."""

from collections.abc import Callable

import msgspec

# More than any machine has; a longer list does not describe devices.
DEVICES_MAX = 1024
_REGISTER_MAX = 256 * 1024  # bytes of one annotation; the limit of Kubernetes for all of them


class RegisteredDevice(msgspec.Struct, frozen=True):
    """One device of a register. HAMi omits zero and false values."""

    id: str = ""
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    mode: str = ""
    health: bool = False


def read_hami(text: str) -> list[RegisteredDevice]:
    """Read HAMi's register. Raises ValueError."""
    _check_length(text)
    if text.lstrip().startswith("["):
        return _checked(msgspec.json.decode(text.encode(), type=list[RegisteredDevice]))
    return _rows(text, _from_hami)


def read_volcano(text: str) -> list[RegisteredDevice]:
    """Read Volcano's register. Raises ValueError."""
    _check_length(text)
    return _rows(text, _from_volcano)


def _rows(text: str, read: Callable[[list[str]], RegisteredDevice]) -> list[RegisteredDevice]:
    return _checked([read(row.split(",")) for row in text.split(":") if row.strip()])


def _from_hami(fields: list[str]) -> RegisteredDevice:
    """Read `uuid,split,MiB,cores,type,numa,healthy`, in newer versions followed by index and mode."""
    if len(fields) < 7:
        raise ValueError(f"{len(fields)} fields in a row, not 7")
    name, count, memory, cores, kind, _, healthy = fields[:7]
    return RegisteredDevice(name, int(count), int(memory), int(cores), kind, health=healthy == "true")


def _from_volcano(fields: list[str]) -> RegisteredDevice:
    """Read `uuid,split,MiB,type,healthy,mode`; older versions have no mode."""
    if len(fields) < 5:
        raise ValueError(f"{len(fields)} fields in a row, not 5")
    name, count, memory, kind, healthy = fields[:5]
    mode = fields[5] if len(fields) > 5 else ""
    return RegisteredDevice(name, int(count), int(memory), 100, kind, mode, healthy == "true")


def _check_length(text: str) -> None:
    if len(text) > _REGISTER_MAX:
        raise ValueError(f"{len(text)} characters, at most {_REGISTER_MAX} are read")


def _checked(devices: list[RegisteredDevice]) -> list[RegisteredDevice]:
    if len(devices) > DEVICES_MAX:
        raise ValueError(f"{len(devices)} devices, at most {DEVICES_MAX} are read")
    for device in devices:
        if device.count < 0 or device.devmem < 0 or device.count > DEVICES_MAX * 128:
            raise ValueError(f"device {device.id!r} has count {device.count} and memory {device.devmem}")
    return devices
