"""Models of accelerators: their names, memory, compute and MIG profiles.

`gpu_models.json` has the facts (`tools/build_gpu_models.py` creates it). One card has many names: the driver
says `NVIDIA A100-SXM4-80GB`, feature discovery `NVIDIA-A100-SXM4-80GB`, Karpenter `a100`, GKE
`nvidia-a100-80gb`. If a name fits several models, their memory distinguishes them; without the memory, only
what they have in common is known.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files

import msgspec

_VENDOR_WORDS = re.compile(r"\A(?:(?:nvidia|tesla|quadro|amd|instinct)-)+")
_NOT_THE_CARD = re.compile(r"(?:-shared|-mig-.*)+\Z")
_SEPARATORS = re.compile(r"[\s_]+")
# Clouds round memory in their own way; drivers reserve some of it. Two cards of one name
# differ by more than this (T4 and T4G by name, V100 and A100 by a factor of two).
_SAME_MEMORY = 0.07


class MigProfile(msgspec.Struct, frozen=True):
    """A partition that the card supports; `starts` are the slots at which it may begin."""

    name: str
    compute: int
    size: int = 0
    starts: tuple[int, ...] = ()
    max_instances: int = 0
    memory_mib: int | None = None


class GpuModel(msgspec.Struct, frozen=True):
    name: str
    vendor: str = "NVIDIA"
    aliases: tuple[str, ...] = ()
    memory_mib: int | None = None
    memory_also_mib: tuple[int, ...] = ()
    tflops_milli: int | None = None  # half precision, dense
    slots: int = 0
    profiles: tuple[MigProfile, ...] = ()
    cores: int = 0  # of a Neuron device

    @property
    def family(self) -> str:
        """The name that people use: `A100` of `A100-SXM4-80GB`."""
        return self.name if self.name.startswith(("RTX-", "tpu-")) else self.name.partition("-")[0]

    def profile(self, name: str) -> MigProfile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)

    def compute_share(self, profile: MigProfile) -> float:
        """Return its share of the card; the largest profile is the whole card."""
        return profile.compute / max(whole.compute for whole in self.profiles)


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    table = files(__package__).joinpath("gpu_models.json").read_bytes()
    return tuple(msgspec.json.decode(table, type=list[GpuModel]))


@lru_cache(maxsize=1024)
def find_model(text: str, memory_mib: int = 0) -> GpuModel | None:
    """Return the model with this name on a card with this memory (0: unknown); None if there is none."""
    plain = plain_name(text)
    is_family = text.strip().lower() in _families()
    candidates = (() if is_family else _exactly_named().get(text, ())) or _named().get(plain, ())
    if memory_mib:
        # A cloud's name (`v100`) stands for every card of the family; the memory decides.
        relatives = (*candidates, *_families().get(plain, ()))
        candidates = tuple(model for model in relatives if _has_memory(model, memory_mib)) or candidates
    elif is_family or not candidates:
        candidates = _families().get(plain, candidates)
    if len({model.memory_mib for model in candidates}) <= 1:
        return candidates[0] if candidates else None
    return _common(candidates)


def plain_name(text: str) -> str:
    """Return the name without the vendor prefix and the sharing suffix: `NVIDIA-NVIDIA L4` is `l4`."""
    joined = _SEPARATORS.sub("-", text.strip().lower())
    return _VENDOR_WORDS.sub("", _NOT_THE_CARD.sub("", joined))


def _common(models: Sequence[GpuModel]) -> GpuModel:
    tflops = {model.tflops_milli for model in models}
    return GpuModel(
        models[0].family, models[0].vendor, tflops_milli=tflops.pop() if len(tflops) == 1 else None
    )


def _has_memory(model: GpuModel, memory_mib: int) -> bool:
    return any(
        abs(seen - memory_mib) <= _SAME_MEMORY * seen
        for seen in (model.memory_mib, *model.memory_also_mib)
        if seen
    )


@cache
def _exactly_named() -> dict[str, tuple[GpuModel, ...]]:
    """Return models by exact label value: GKE's `nvidia-tesla-a100` is only the card with 40 GB."""
    named: dict[str, tuple[GpuModel, ...]] = {}
    for model in gpu_models():
        for name in dict.fromkeys((model.name, *model.aliases)):
            named[name] = (*named.get(name, ()), model)
    return named


@cache
def _named() -> dict[str, tuple[GpuModel, ...]]:
    named: dict[str, tuple[GpuModel, ...]] = {}
    for model in gpu_models():
        for name in dict.fromkeys(plain_name(alias) for alias in (model.name, *model.aliases)):
            named[name] = (*named.get(name, ()), model)
    return named


@cache
def _families() -> dict[str, tuple[GpuModel, ...]]:
    families: dict[str, tuple[GpuModel, ...]] = {}
    for model in gpu_models():
        name = plain_name(model.family)
        families[name] = (*families.get(name, ()), model)
    return families
