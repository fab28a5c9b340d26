"""Models of accelerators: the names they go by, their memory, compute and MIG profiles.

`gpu_models.json` holds the facts (`tools/build_gpu_models.py` makes it). One card has many names:
the driver says `NVIDIA A100-SXM4-80GB`, feature discovery `NVIDIA-A100-SXM4-80GB`, Karpenter `a100`,
GKE `nvidia-a100-80gb`. Where a name fits several models, their memory tells them apart; where that is
not known either, only what they have in common is known.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files

import msgspec

_VENDOR_WORDS = re.compile(r"\A(?:(?:nvidia|tesla|quadro|amd|instinct)-)+")
_NOT_THE_CARD = re.compile(r"(?:-shared|-mig-.*)+\Z")
_SEPARATORS = re.compile(r"[\s_]+")
# Clouds round memory to their own figure; drivers keep some for themselves. Two cards of one name
# differ by more than this (T4 and T4G by name, V100 and A100 by a factor of two).
_SAME_MEMORY = 0.07


class MigProfile(msgspec.Struct, frozen=True):
    """A slice that the card can be cut into; `starts` are the slots it may begin at."""

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
        """What people ask for: `A100` of `A100-SXM4-80GB`."""
        return self.name if self.name.startswith(("RTX-", "tpu-")) else self.name.partition("-")[0]

    def profile(self, name: str) -> MigProfile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)

    def compute_share(self, profile: MigProfile) -> float:
        """Of the card; the largest profile is all of it."""
        return profile.compute / max(whole.compute for whole in self.profiles)


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    table = files(__package__).joinpath("gpu_models.json").read_bytes()
    return tuple(msgspec.json.decode(table, type=list[GpuModel]))


@lru_cache(maxsize=1024)
def find_model(text: str, memory_mib: int = 0) -> GpuModel | None:
    """The model that goes by this name, on a card of this memory (0: not told); None: nobody knows it."""
    plain = plain_name(text)
    is_family = text.strip().lower() in _families()
    candidates = (() if is_family else _exactly_named().get(text, ())) or _named().get(plain, ())
    if memory_mib:
        # A cloud's name (`v100`) stands for every card of the family; the memory says for which.
        relatives = (*candidates, *_families().get(plain, ()))
        candidates = tuple(model for model in relatives if _has_memory(model, memory_mib)) or candidates
    elif is_family or not candidates:
        candidates = _families().get(plain, candidates)
    if len({model.memory_mib for model in candidates}) <= 1:
        return candidates[0] if candidates else None
    return _common(candidates)


def plain_name(text: str) -> str:
    """Without the vendor in front and the way it is shared behind: `NVIDIA-NVIDIA L4` is `l4`."""
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
    """As labels have them: GKE's `nvidia-tesla-a100` is the card with 40 GB alone."""
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
