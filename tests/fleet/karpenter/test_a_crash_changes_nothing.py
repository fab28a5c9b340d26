"""Karpenter may die before or after any of its writes: it ends where it would have ended."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest

from karpool.model.karpenter.objects import INITIALIZED, TERMINATION_FINALIZER
from karpool.model.kubernetes.api_resources import NODECLAIMS, PODS
from karpool.model.kubernetes.node import INSTANCE_TYPE
from tests.fleet.karpenter.acting import Stage, play, status_of


async def scale_up(stage: Stage) -> None:
    """Three pods onto two nodes."""
    await stage.pool()
    await stage.pods(3, cpu="3")

    async def done() -> bool:
        restart(stage)
        return len(await stage.running()) == 3

    await stage.until(done)
    await asyncio.sleep(15)
    restart(stage)
    await asyncio.sleep(30)


async def scale_down(stage: Stage) -> None:
    """The nodes go, and with them the pods, which nothing brings back."""
    for claim in await stage.claims():
        await stage.admin.delete(NODECLAIMS, claim.name)
    await asyncio.sleep(60)
    restart(stage)
    for pod in await stage.all_pods():
        await stage.admin.delete(PODS, pod.name, namespace="default")
    for claim in await stage.claims():  # those that were bought for pods of draining nodes
        await stage.admin.delete(NODECLAIMS, claim.name)
    await asyncio.sleep(60)
    restart(stage)
    await stage.empty()


def restart(stage: Stage) -> None:
    if not stage.cluster.components.is_running("karpenter"):
        stage.crashes += 1
        stage.cluster.components.start("karpenter")


async def check(stage: Stage) -> None:
    claims, nodes = await stage.claims(), await stage.nodes()
    machines = {instance.provider_id for instance in stage.cloud.instances.values()}
    assert {claim.provider_id for claim in claims} == {node.spec.provider_id for node in nodes} == machines
    assert sorted(claim.labels[INSTANCE_TYPE] for claim in claims) == ["large", "medium"]
    assert len(await stage.running()) == 3
    for claim in claims:
        assert status_of(claim, "Ready")[0] == "True"
        assert claim.metadata.finalizers == [TERMINATION_FINALIZER]
    assert all(node.labels.get(INITIALIZED) == "true" for node in nodes)
    status = (await stage.get_pool()).status
    assert status is not None and status.nodes == 2


def crash_everywhere(story: Callable[[Stage, int], Coroutine[Any, Any, None]]) -> int:
    """Play it with a crash at the first write, the second, ...; returns how many writes there are."""
    for number in count(1):

        async def crashing(stage: Stage, number: int = number) -> int:
            try:
                await story(stage, number)
            except Exception as error:
                error.add_note(f"with a crash at write {number}")
                raise
            return stage.crashes

        if play(crashing) == 0:
            return number - 1
    raise AssertionError("unreachable")


def moment(number: int) -> str:
    """Turn by turn: after one write is nearly the same as before the next."""
    return "before" if number % 2 else "after"


@pytest.mark.long
def test_while_nodes_are_bought() -> None:
    async def story(stage: Stage, number: int) -> None:
        stage.cluster.faults.crash_at_write("karpenter", number, when=moment(number))
        await scale_up(stage)
        await check(stage)

    assert crash_everywhere(story) > 20


@pytest.mark.long
def test_while_nodes_are_drained() -> None:
    async def story(stage: Stage, number: int) -> None:
        await scale_up(stage)
        stage.cluster.faults.crash_at_write("karpenter", number, when=moment(number))
        await scale_down(stage)

    assert crash_everywhere(story) > 20
