"""The key of a scale-up: pool, model and shape of the workers that it serves. Names its record."""

from dataclasses import dataclass
from functools import lru_cache

from karpool.model.devices.systems import GpuSystem
from karpool.provisioning.names import digest

ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class DemandKey:
    """Pool, model and shape; compute in whole TFLOPS and memory in GiB, both rounded up."""

    pool: str
    model: str
    gpus: int
    vram_gib: int
    tflops: int
    percent_milli: int = 0
    vram_percent_milli: int = 0
    isolation: str = ""
    template: str = ""
    vendor: str = ""
    constraints: str = ""
    system: str = ""  # the GpuSystem that allocates the devices; empty: Karpool does

    @property
    def name(self) -> str:
        """The name of the record; equal keys have equal names."""
        return _name_of(self)

    @property
    def text(self) -> str:
        parts = (
            self.pool,
            self.model,
            self.gpus,
            self.vram_gib,
            self.tflops,
            self.percent_milli,
            self.vram_percent_milli,
            self.isolation,
            self.template,
            self.vendor,
            self.constraints,
            *((self.system,) if self.system else ()),
        )
        return "\n".join(str(part) for part in parts)

    def __str__(self) -> str:
        model = "any model" if self.model == ANY_MODEL else self.model
        compute = f"{self.percent_milli / 1000:g} %" if self.percent_milli else f"{self.tflops} TFLOPS"
        memory = (
            f"{self.vram_percent_milli / 1000:g} % VRAM"
            if self.vram_percent_milli
            else f"{self.vram_gib} GiB VRAM"
        )
        if self.system == GpuSystem.DRA:
            return "devices of resource claims"
        if self.system in (GpuSystem.MIG, GpuSystem.TIME_SLICES):
            return f"{self.gpus} x {self.template}"
        place = f" in pool {self.pool}" if self.pool or not self.system else ""
        return f"{self.gpus} x {compute}, {memory} of {model}{place}"


@lru_cache(maxsize=10_000)
def _name_of(key: DemandKey) -> str:
    return f"scaleup-{digest(key.text, 16)}"
