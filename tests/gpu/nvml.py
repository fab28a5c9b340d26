"""A stand-in for `pynvml`: cards as a driver tells them, with MIG, links and damage."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Card:
    """An H200 unless told otherwise, as driver 580 shows it."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    name: str | bytes = "NVIDIA H200"
    memory: int = 150_754_820_096
    bus: str = "00000000:00:06.0"
    mig: tuple[int, int] | None = (0, 0)
    instances: list[tuple[str, int, int, int]] = field(default_factory=list)  # profile, start, size, MiB
    uncorrected: int = 0
    remapped: tuple[int, int, int, int] | None = None
    nvlink: dict[str, int] = field(default_factory=dict)  # bus of the peer, lanes
    lost: bool = False


class Nvml:
    """Only what is asked; what a card lacks is "not supported"."""

    NVMLError = NVMLError
    NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 1, 2, 3
    NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND = 4, 6
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 9, 13, 15
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, *cards: Card, driver: bool = True, count: int | None = None) -> None:
        self.cards = cards
        self.driver = driver
        self.count = count
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards) if self.count is None else self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self.cards[index].lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return self.cards[index]

    def nvmlDeviceGetName(self, handle: Any) -> str | bytes:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        return SimpleNamespace(total=handle.memory)

    def nvmlDeviceGetPciInfo(self, handle: Card) -> SimpleNamespace:
        return SimpleNamespace(busId=handle.bus)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Card) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMigMode(self, handle: Card) -> tuple[int, int]:
        return self._told(handle.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Card, number: int) -> SimpleNamespace:
        if number >= len(handle.instances):
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        profile, start, size, memory = handle.instances[number]
        place = SimpleNamespace(start=start, size=size)
        return SimpleNamespace(
            uuid=f"MIG-{number}", name=f"NVIDIA H200 MIG {profile}", memory=memory * MIB, place=place
        )

    def nvmlDeviceGetGpuInstanceId(self, instance: SimpleNamespace) -> SimpleNamespace:
        return instance

    def nvmlDeviceGetGpuInstanceById(self, handle: Card, number: SimpleNamespace) -> SimpleNamespace:
        return number

    def nvmlGpuInstanceGetInfo(self, instance: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(placement=instance.place)

    def nvmlDeviceGetNvLinkState(self, handle: Card, link: int) -> int:
        lanes = [bus for bus, number in handle.nvlink.items() for _ in range(number)]
        if link >= len(lanes):
            raise NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Card, link: int) -> SimpleNamespace:
        lanes = [bus for bus, number in handle.nvlink.items() for _ in range(number)]
        return SimpleNamespace(busId=lanes[link])

    def nvmlDeviceGetTopologyCommonAncestor(self, handle: Card, peer: Card) -> int:
        return 40

    def nvmlDeviceGetTotalEccErrors(self, handle: Card, kind: int, counter: int) -> int:
        return handle.uncorrected

    def nvmlDeviceGetRemappedRows(self, handle: Card) -> tuple[int, int, int, int]:
        return self._told(handle.remapped)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Card) -> int:
        raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    def _told(self, fact: Any) -> Any:
        if fact is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return fact
