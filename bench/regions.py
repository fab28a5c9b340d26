"""The shipped catalogue: one region of each cloud, from nothing and with its cloud's types at hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.timing import timed
from karpool.model.catalogue import files

LARGEST = {"aws": "us-east-1", "azure": "eastus", "gcp": "us-central1"}
TARGET_MS = 30


def load_from_nothing(region: str) -> Callable[[], object]:
    def load() -> object:
        for kept in (files._providers_by_region, files._index, files._shipped_types):
            kept.cache_clear()
        return files.load_shipped(region)

    return load


def measured(name: str, call: Callable[[], object]) -> Callable[[], dict[str, Any]]:
    return lambda: {"name": name, "unit": "ms", "values": timed(call), "target": TARGET_MS}


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    rows = []
    for region in LARGEST.values():
        rows.append(measured(f"catalogue, {region} from nothing", load_from_nothing(region)))
        rows.append(measured(f"catalogue, {region} again", partial(files.load_shipped, region)))
    return rows
