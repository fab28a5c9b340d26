"""Reads the GPUs of this machine from NVIDIA's management library (NVML).

Not every card and driver supports every query: an unsupported value is None, and errors of a device are
listed in its `problems`. A device with problems is not healthy; the others are still read.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from karpool.model.devices.gpu_models import find_model

_MIB = 2**20
_DEVICES_MAX = 64  # per machine; a larger number is taken for an error
_LINKS_MAX = 36
_PCI_DEVICES = Path("/sys/bus/pci/devices")
# Distance of two devices in NVML's levels: the words of `nvidia-smi topo -m`.
_DISTANCES = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class NoNvml(Exception):
    """NVML has nothing to read: no library, no driver, or no device. The message says which."""


class _Shown(msgspec.Struct, frozen=True, rename="camel"):
    pass


class MachineInstance(_Shown, frozen=True):
    """A MIG instance and its position on the card."""

    uuid: str
    profile: str
    memory_bytes: int | None = None
    start: int | None = None
    size: int | None = None


class DeviceLink(_Shown, frozen=True):
    """The link to another device: `NV18` is NVLink with eighteen lanes, others as in `nvidia-smi topo`."""

    peer: str
    path: str


class MachineGpu(_Shown, frozen=True):
    index: int
    uuid: str
    name: str
    model: str  # name in the table of models; empty: not in it
    memory_bytes: int | None = None
    pci_bus_id: str = ""
    numa_node: int | None = None
    compute_capability: str = ""
    mig_enabled: bool | None = None
    instances: tuple[MachineInstance, ...] = ()
    free_profiles: dict[str, int] = {}  # how many more of each profile the driver could create
    links: tuple[DeviceLink, ...] = ()
    healthy: bool = True
    problems: tuple[str, ...] = ()


class Machine(_Shown, frozen=True):
    driver: str
    devices: tuple[MachineGpu, ...]


def load_nvml() -> Any:
    """Import NVML's bindings. Raises NoNvml if they are not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise NoNvml("nvidia-ml-py is not installed; pip install 'karpool[gpu-agent]'") from None


def this_machine() -> Machine:
    """Raises NoNvml."""
    return read_machine(load_nvml())


def read_machine(nvml: Any) -> Machine:
    """Read all devices. Raises NoNvml without a driver."""
    with _initialised(nvml):
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        count = nvml.nvmlDeviceGetCount()
        if count > _DEVICES_MAX:
            raise NoNvml(f"the driver reports {count} devices; the limit is {_DEVICES_MAX}")
        return Machine(driver, tuple(_Reading(nvml, index, count).gpu() for index in range(count)))


@contextmanager
def _initialised(nvml: Any) -> Iterator[None]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoNvml(f"NVIDIA's driver does not answer: {error}") from None
    try:
        yield
    except nvml.NVMLError as error:
        raise NoNvml(f"NVIDIA's driver stopped answering: {error}") from None
    finally:
        nvml.nvmlShutdown()


class _Reading:
    """Reads one device, value by value."""

    def __init__(self, nvml: Any, index: int, count: int) -> None:
        self._nvml = nvml
        self._index = index
        self._count = count
        self._problems: list[str] = []

    def gpu(self) -> MachineGpu:
        handle = self._ask("DeviceGetHandleByIndex", self._index)
        if handle is None:
            return MachineGpu(self._index, "", "", "", healthy=False, problems=tuple(self._problems))
        name, memory = self._text("DeviceGetName", handle), self._memory(handle)
        bus_id = self._bus_id("DeviceGetPciInfo", handle)
        version = self._ask("DeviceGetCudaComputeCapability", handle)
        mode = self._ask("DeviceGetMigMode", handle)
        is_sliced = mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE
        model = find_model(name, (memory or 0) // _MIB)
        gpu = MachineGpu(
            index=self._index,
            uuid=self._text("DeviceGetUUID", handle),
            name=name,
            model=model.name if model is not None else "",
            memory_bytes=memory,
            pci_bus_id=bus_id,
            numa_node=_numa_node(bus_id),
            compute_capability="" if version is None else f"{version[0]}.{version[1]}",
            mig_enabled=None if mode is None else is_sliced,
            instances=tuple(self._instances(handle)) if is_sliced else (),
            free_profiles=self._free_profiles(handle) if is_sliced else {},
            links=tuple(self._links(handle)),
        )
        self._look_for_damage(handle)
        return msgspec.structs.replace(gpu, healthy=not self._problems, problems=tuple(self._problems))

    def _ask(self, question: str, *about: Any) -> Any:
        """Run a query: None if the card does not support it; any other error is a problem of the device."""
        nvml = self._nvml
        ask = getattr(nvml, f"nvml{question}", None)
        if ask is None:
            return None  # bindings of an older driver
        try:
            return ask(*about)
        except nvml.NVMLError as error:
            silent = (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_NOT_FOUND,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
            )
            if getattr(error, "value", None) not in silent:
                self._problems.append(f"{question}: {error}")
            return None

    def _text(self, question: str, *about: Any) -> str:
        return _text(self._ask(question, *about) or "")

    def _memory(self, handle: Any) -> int | None:
        memory = self._ask("DeviceGetMemoryInfo", handle)
        return None if memory is None else int(memory.total)

    def _bus_id(self, question: str, *about: Any) -> str:
        address = self._ask(question, *about)
        return "" if address is None else _text(address.busId).lower()

    # MIG

    def _instances(self, handle: Any) -> Iterator[MachineInstance]:
        for number in range(self._ask("DeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._ask("DeviceGetMigDeviceHandleByIndex", handle, number)
            if instance is None:
                continue
            place = self._place(handle, instance)
            yield MachineInstance(
                self._text("DeviceGetUUID", instance),
                self._text("DeviceGetName", instance).rpartition(" ")[2],
                self._memory(instance),
                None if place is None else int(place.start),
                None if place is None else int(place.size),
            )

    def _place(self, handle: Any, instance: Any) -> Any:
        number = self._ask("DeviceGetGpuInstanceId", instance)
        held = None if number is None else self._ask("DeviceGetGpuInstanceById", handle, number)
        about = None if held is None else self._ask("GpuInstanceGetInfo", held)
        return None if about is None else about.placement

    def _free_profiles(self, handle: Any) -> dict[str, int]:
        free: dict[str, int] = {}
        for number in range(getattr(self._nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)):
            profile = self._ask("DeviceGetGpuInstanceProfileInfoV", handle, number)
            left = (
                None
                if profile is None
                else self._ask("DeviceGetGpuInstanceRemainingCapacity", handle, profile.id)
            )
            if left is not None:
                free[_text(profile.name).removeprefix("MIG ")] = int(left)
        return free

    # Links

    def _links(self, handle: Any) -> Iterator[DeviceLink]:
        """NVLink if there is one, otherwise the distance on the machine's buses."""
        lanes = self._nvlink_lanes(handle) if self._count > 1 else {}
        for number in range(self._count):
            peer = self._ask("DeviceGetHandleByIndex", number) if number != self._index else None
            if peer is None:
                continue
            uuid, joined = (
                self._text("DeviceGetUUID", peer),
                lanes.get(self._bus_id("DeviceGetPciInfo", peer)),
            )
            level = self._ask("DeviceGetTopologyCommonAncestor", handle, peer)
            if uuid and (joined or level is not None):
                yield DeviceLink(uuid, f"NV{joined}" if joined else _DISTANCES.get(level, "SYS"))

    def _nvlink_lanes(self, handle: Any) -> dict[str, int]:
        """Lanes by PCI address of the other end."""
        lanes: dict[str, int] = {}
        for link in range(_LINKS_MAX):
            state = self._ask("DeviceGetNvLinkState", handle, link)
            if state is None:
                break
            peer = self._bus_id("DeviceGetNvLinkRemotePciInfo", handle, link) if state else ""
            if peer:
                lanes[peer] = lanes.get(peer, 0) + 1
        return lanes

    # Health

    def _look_for_damage(self, handle: Any) -> None:
        nvml = self._nvml
        uncorrected = self._ask(
            "DeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        if uncorrected:
            self._problems.append(f"{uncorrected} memory errors since the last reset could not be corrected")
        rows = self._ask("DeviceGetRemappedRows", handle)
        if rows is not None and rows[3]:
            self._problems.append("memory rows could not be remapped; the card should be replaced")
        elif rows is not None and rows[2]:
            self._problems.append("memory rows wait for a reset of the card to be remapped")
        if self._ask("DeviceGetRetiredPagesPendingStatus", handle):
            self._problems.append("memory pages wait for a reset of the card to be retired")


def _numa_node(bus_id: str) -> int | None:
    """NVML writes the PCI domain with eight digits, the kernel with four."""
    try:
        text = (_PCI_DEVICES / bus_id[-12:] / "numa_node").read_text(encoding="ascii")
        return int(text) if bus_id and int(text) >= 0 else None
    except (OSError, ValueError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
