"""Wherever the autoscaler dies and is started again, the cluster ends up the same; and it repeats exactly."""

import asyncio
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.kubernetes.api_resources import CONFIGMAPS, EVENTS, NODES, PODS
from karpool_fleet.cluster_autoscaler import status
from karpool_fleet.cluster_autoscaler.groups import NodeGroup
from karpool_fleet.clusters.clock import run_manual
from tests.fleet.cluster_autoscaler.acting import Stage, stage

GROUP = NodeGroup("small", "small", zones=("a",), max_size=6)
# Writes of a calm run until the last node is gone, apart from the statuses at the end.
WRITES = 30


async def life(on: Stage) -> tuple[int, int, int]:
    """Up, down to one pod, and quiet: machines and nodes when large, and machines in the end."""
    await on.deploy("web", 6, {"cpu": "1", "memory": "1Gi"})
    await asyncio.sleep(200)
    large = len(on.machines("small")), len(await on.pods(on_nodes=True))
    await on.scale("web", 1)
    await asyncio.sleep(60 * 60)
    return *large, len(on.machines("small"))


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", range(1, WRITES, 3))
def test_a_crash_at_any_write_is_made_up_for(write: int, when: str) -> None:
    async def main() -> None:
        async with stage([GROUP]) as on:
            fault = on.cluster.faults.crash_at_write("autoscaler", write, when=when)

            async def revive() -> None:
                await fault.ended.wait()
                await asyncio.sleep(5)
                on.cluster.components.start("autoscaler")

            reviving = asyncio.create_task(revive())
            assert await life(on) == (3, 6, 1)
            assert reviving.done()
            assert all(
                taint.key != "ToBeDeletedByClusterAutoscaler"
                for node in await on.nodes()
                for taint in node.spec.taints or ()
            )

    run_manual(main())


def test_api_errors_only_delay_it() -> None:
    async def main() -> None:
        async with stage([GROUP]) as on:
            on.cluster.faults.fail("autoscaler", status=500, method="WRITE", times=8)
            on.cluster.faults.fail("autoscaler", status=409, method="PATCH", path="nodes", times=2)
            assert await life(on) == (3, 6, 1)

    run_manual(main())


def test_the_same_seed_gives_the_same_bytes() -> None:
    async def main(seed: int) -> list[Any]:
        async with stage([GROUP, NodeGroup("twin", "small", max_size=4)], seed=seed) as on:
            await life(on)
            return [(await on.client.list(kind)).items for kind in (NODES, PODS, EVENTS, CONFIGMAPS)]

    assert run_manual(main(3)) == run_manual(main(3))


def test_the_status_tells_when_it_was_written() -> None:
    async def main() -> None:
        async with stage([GROUP]) as on:
            await asyncio.sleep(15)
            found = await on.client.get(CONFIGMAPS, status.NAME, namespace=status.NAMESPACE)
            written = yaml.safe_load(found["data"]["status"])
            assert found["metadata"]["annotations"][status.LAST_UPDATED] == written["time"]
            assert written["time"] == "2026-01-01 00:00:10 +0000 UTC"
            assert written["autoscalerStatus"] == "Running"
            health = written["nodeGroups"][0]["health"]
            assert (health["cloudProviderTarget"], health["minSize"], health["maxSize"]) == (0, 0, 6)

    run_manual(main())


scalars = st.one_of(
    st.integers(0, 10**6),
    st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=12),
    st.sampled_from(["yes", "null", "1e3", "a: b"]),
)
keys = st.sampled_from(["name", "health", "status", "total"])
documents = st.recursive(
    st.dictionaries(keys, scalars, min_size=1),
    lambda inner: st.dictionaries(keys, st.one_of(scalars, inner, st.lists(inner, max_size=3)), min_size=1),
    max_leaves=12,
)


@given(documents)
def test_what_is_written_reads_back(document: dict[str, Any]) -> None:
    assert yaml.safe_load(status.text(document)) == document
