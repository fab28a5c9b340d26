"""Errors, lost events and cut watches delay workloads; they change nothing in the end."""

import asyncio
from random import Random

import pytest

from karpool.kube.api.client import Client
from karpool.model.kubernetes.api_resources import DAEMONSETS, DEPLOYMENTS, JOBS, STATEFULSETS
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.faults.faults import Fault
from karpool_fleet.workloads import workload_components
from tests.fleet.workloads.acting import active, living, rollout_image, template, workload


async def start_everything(admin: Client) -> None:
    await admin.create(DEPLOYMENTS, workload("web", replicas=6))
    await admin.create(STATEFULSETS, workload("db", replicas=3, serviceName="db"))
    await admin.create(DAEMONSETS, workload("agent"))
    body = template("job", ends="Succeeded")
    body["spec"]["restartPolicy"] = "Never"
    job = {"metadata": {"name": "job", "namespace": "default"}}
    await admin.create(JOBS, job | {"spec": {"completions": 4, "parallelism": 2, "template": body}})


def misbehave(cluster: EmbeddedCluster, random: Random) -> list[Fault]:
    """One bad moment. Lost events must end before the last list, or nobody could ever know."""
    lost: list[Fault] = []
    for name in workload_components():
        match random.choice(("error", "conflict", "delay", "crash", "nothing")):
            case "error":
                cluster.faults.fail(name, status=random.choice((0, 500, 503)), times=random.randint(1, 4))
            case "conflict":
                cluster.faults.fail(name, status=409, method="PATCH", times=2)
            case "delay":
                cluster.faults.delay(name, seconds=random.choice((0.2, 3.0, 45.0)), times=2)
            case "crash" if cluster.components.is_running(name):
                cluster.components.kill(name)
    if random.random() < 0.5:
        lost.append(cluster.faults.lose_events("informers", times=random.randint(1, 5)))
    if random.random() < 0.5:
        cluster.faults.cut_watches("informers", expired=random.random() < 0.5)
    return lost


@pytest.mark.parametrize("seed", [*range(8), 84])  # 84: a timer that fires an instant early
def test_everything_converges_after_a_bad_hour(seed: int) -> None:
    async def story() -> tuple[list[int], int | None]:
        random, lost = Random(seed), list[Fault]()
        async with living(seed=seed) as (cluster, admin):
            await start_everything(admin)
            for number in range(12):
                lost += misbehave(cluster, random)
                await asyncio.sleep(random.uniform(0.5, 20))
                if number % 4 == 2:
                    await rollout_image(admin, f"web:{number}")
                for name in workload_components():
                    cluster.components.start(name)
            for fault in lost:
                fault.end()
            cluster.faults.cut_watches("informers", expired=True)
            await asyncio.sleep(900)
            counts = [len(await active(admin, app)) for app in ("web", "db", "agent")]
            job = await admin.get(JOBS, "job", namespace="default")
            return counts, job["status"].get("succeeded")

    assert run_manual(story()) == ([6, 3, 1], 4)
