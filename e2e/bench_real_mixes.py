"""Pods that wait, in mixes: five that are named, and as many random ones as seeds."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from karpool.model.kubernetes.node import ARCH, HOSTNAME, ZONE

_LABELS = "abcdefg"
_Maker = Callable[[random.Random, str, int], dict[str, Any]]


def pod(name: str, cpu: int, memory: int, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A pending pod of so many thousandths of a processor and MiB."""
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [container], **spec},
    }


def _spread(key: str, labels: dict[str, str]) -> dict[str, Any]:
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    return {"topologySpreadConstraints": [constraint]}


def _affinity(kind: str, key: str, labels: dict[str, str]) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def small(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    sizes = chance.choice((50, 100, 150, 250, 500)), chance.choice((64, 128, 256, 512))
    return pod(name, *sizes, {"app": f"small-{number % 20}"})


def memory(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    sizes = chance.choice((500, 1000, 2000, 4000)), chance.choice((8, 12, 16, 24, 48)) << 10
    return pod(name, *sizes, {"app": f"cache-{number % 10}"})


def zones(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    labels = {"app": f"web-{number % 25}"}
    sizes = (250, 500, 1000, 2000)[number % 25 % 4], (512, 1024, 3072)[number % 25 % 3]
    return pod(name, *sizes, labels, **_spread(ZONE, labels))


def architectures(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    sizes = chance.choice((250, 500, 1000, 3000)), chance.choice((256, 1024, 4096))
    chosen = chance.choice(("amd64", "arm64", ""))
    spec: dict[str, Any] = {"nodeSelector": {ARCH: chosen}} if chosen else {}
    return pod(name, *sizes, {"app": "any"}, **spec)


def diverse(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    """One sixth each as in Karpenter's own benchmark, in turns."""
    sizes = chance.choice((100, 250, 500, 1000, 1500)), chance.choice((100, 256, 512, 1024, 2048, 4096))
    mine, other = ({"my-label": chance.choice(_LABELS)} for _ in range(2))
    zone, host = ({f"my-{key}": chance.choice(_LABELS)} for key in ("zone", "host"))
    apart = {"app": "nginx"}
    labels, spec = (
        (mine, {}),
        (mine, _spread(ZONE, other)),
        (mine, _spread(HOSTNAME, other)),
        (zone, _affinity("podAffinity", ZONE, zone)),
        (host, _affinity("podAffinity", HOSTNAME, host)),
        (apart, _affinity("podAntiAffinity", HOSTNAME, apart)),
    )[number % 6]
    return pod(name, *sizes, labels, **spec)


def workloads(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    """Each of a dozen workloads has a size of its own; some are kept apart, some spread over hosts."""
    which = number % 12
    own = random.Random(which)
    labels = {"app": f"own-{which}"}
    sizes = own.choice((100, 300, 700, 1300, 2900)), own.choice((200, 900, 1700, 5000, 11000))
    spec: dict[str, Any] = {}
    if which % 4 == 1:
        spec = _spread(HOSTNAME, labels)
    elif which == 3 and number < 12 * 15:
        spec = _affinity("podAntiAffinity", HOSTNAME, labels)
    return pod(name, *sizes, labels, **spec)


@dataclass(frozen=True)
class Mix:
    title: str
    makers: tuple[_Maker, ...]
    weights: tuple[int, ...]
    pods: int
    seed: int = 7

    def manifests(self, share: float) -> list[dict[str, Any]]:
        chance, count = random.Random(self.seed), max(12, round(self.pods * share))
        made = []
        for number in range(count):
            make = self.makers[0] if len(self.makers) == 1 else chance.choices(self.makers, self.weights)[0]
            made.append(make(chance, f"{make.__name__}-{number:05}", number))
        return made


MIXES = (
    Mix("small pods", (small,), (1,), 2000),
    Mix("much memory", (memory,), (1,), 500),
    Mix("spread over zones", (zones,), (1,), 1000),
    Mix("architectures chosen", (architectures,), (1,), 1000),
    Mix("diverse", (diverse,), (1,), 600),
)
_MAKERS: tuple[_Maker, ...] = (small, memory, zones, architectures, diverse, workloads)


def random_mix(seed: int) -> Mix:
    """One to four kinds of pods in random shares, 60 to 900 of them."""
    chance = random.Random(seed)
    makers = tuple(chance.sample(_MAKERS, chance.choice((1, 2, 2, 3, 4))))
    weights = tuple(chance.choice((1, 2, 5)) for _ in makers)
    pods = chance.choice((60, 120, 200, 300, 450, 600, 900))
    title = f"{seed}: {', '.join(make.__name__ for make in makers)}"
    return Mix(title, makers, weights, pods, seed)
