"""Kubernetes' own allocator of devices (v0.36.6) and ours: the same verdicts, devices and counts."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.packing.random_dra import world

from e2e.peers import build_all
from karpool.model.dra.objects import allocation_object, claim_of, class_of, slice_of
from karpool.model.dra.wire import DeviceClass, ResourceClaim, ResourceSlice
from karpool.model.kubernetes.meta import decode
from karpool.packing.dra.allocator import NamedClaim, allocate
from karpool.packing.dra.held import NOTHING_HELD
from karpool.packing.dra.pools import NodeView
from karpool.packing.dra.stock import stock_of

WORLDS = 2000


@pytest.fixture(scope="module")
def oracle() -> Path:
    return build_all(("dra",))["dra"].program("dra")


def test_random_worlds(oracle: Path) -> None:
    worlds = [world(seed) for seed in range(WORLDS)]
    answers = asked(oracle, worlds)
    differing = [
        (seed, name, ours, theirs)
        for seed, (one, answer) in enumerate(zip(worlds, answers, strict=True))
        for name, ours, theirs in compared(one, answer)
        if ours != theirs
    ]
    assert differing == []


def asked(oracle: Path, worlds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the Go program says, one line per world."""
    lines = "".join(json.dumps(one) + "\n" for one in worlds)
    run = subprocess.run([str(oracle)], input=lines, capture_output=True, text=True, check=True, timeout=300)
    return [json.loads(line) for line in run.stdout.splitlines()]


def compared(one: dict[str, Any], answer: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for node in one["nodes"]:
        theirs = answer["nodes"][node["metadata"]["name"]]
        for allocation in theirs.get("first") or ():
            for result in allocation["devices"].get("results") or ():
                if "shareID" in result:
                    result["shareID"] = "*"
        first = theirs.get("first") or []
        yield node["metadata"]["name"], ours(one, node), (theirs["status"], theirs["count"], devices(first))


def ours(one: dict[str, Any], node: dict[str, Any]) -> tuple[str, int, list[Any]]:
    stock = stock_of(
        [slice_of(decode(raw, ResourceSlice)) for raw in one["slices"]],
        [class_of(decode(raw, DeviceClass)) for raw in one["classes"]],
    )
    claims = [claim_of(decode(raw, ResourceClaim)) for raw in one["claims"]]
    named = [NamedClaim(claim.name, claim.spec) for claim in claims]
    taken = [claim_of(decode(raw, ResourceClaim)).allocation for raw in one["allocated"]]
    held = NOTHING_HELD.plus(allocation for allocation in taken if allocation is not None)
    view = NodeView(node["metadata"]["name"], node["metadata"]["labels"])
    first: list[Any] = []
    status = ""
    for pods in range(one["pods"] + 1):
        outcome = allocate(stock, view, named, held)
        status = status or str(outcome.status)
        if not outcome.fits or pods == one["pods"]:
            return status, pods, devices(first)
        first = first or [allocation_object(allocation, lambda: "*") for allocation in outcome.allocations]
        held = held.plus(outcome.allocations)
    raise AssertionError("unreachable")


def devices(allocations: list[Any]) -> list[Any]:
    """What was given, without how amounts are written."""
    return [
        (row["request"], row["driver"], row["pool"], row["device"], row.get("shareID"))
        for allocation in allocations
        for row in allocation["devices"].get("results") or ()
    ]
