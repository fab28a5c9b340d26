"""The seven end-to-end scenarios of karmada#7376, on embedded clusters with Karpenter.

Every answer is checked against what kube-scheduler and Karpenter then really place.
"""

import pytest

from karpool.model.kubernetes.api_resources import DEPLOYMENTS, NODEPOOLS
from karpool_fleet.clusters.fleet_file import StaticNodes
from karpool_fleet.clusters.live import LiveCluster
from tests.estimator.watching import asking, karpenter
from tests.fleet.living import claims, deployment, nodes, play, pods, pool, ready, until

SYSTEM = [StaticNodes(type="m5.large")]
GPU_LIMIT = {"nvidia.com/gpu": "4"}


def gpu_deployment(name, replicas):
    made = deployment(name, replicas, cpu="2", memory="8Gi")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"nvidia.com/gpu": "1"}}
    return made


async def create(cluster: LiveCluster, obj):
    await cluster.embedded.client("user").create(DEPLOYMENTS, obj)


async def scale(cluster, name, replicas):
    await cluster.embedded.client("user").patch(
        DEPLOYMENTS, name, {"spec": {"replicas": replicas}}, namespace="default"
    )


async def all_ready(cluster, name, replicas, within=900):
    async def done():
        return await ready(cluster, name) == replicas

    return await until(done, within=within)


GPU = {"cpu": "2", "memory": "8Gi", "gpu": "1"}


def test_1_a_cluster_without_gpu_nodes_answers_for_those_it_could_have():
    async def story(cluster):
        async with asking(cluster) as ask:
            assert await ask.replicas(**GPU) == 4
            await create(cluster, gpu_deployment("train", 4))
            assert await all_ready(cluster, "train", 4)
            assert await ask.replicas(**GPU) == 0
            assert {claim.labels["node.kubernetes.io/instance-type"] for claim in await claims(cluster)} <= {
                "g6e.xlarge",
                "g5.xlarge",
            }

    play(story, pool("gpu", limits=GPU_LIMIT, type=["g6e.xlarge", "g5.xlarge"]))


def test_2_regions_answer_in_proportion_to_what_they_could_launch():
    """What dynamic weights divide by: three quarters of the replicas belong into the larger region."""
    answers = {}

    for region, limit in (("us-east-1", "12"), ("eu-west-1", "4")):

        async def story(cluster):
            async with asking(cluster) as ask:
                return await ask.replicas(**GPU)

        limits = {"nvidia.com/gpu": limit}
        answers[region] = play(story, pool("gpu", limits=limits, type=["g5.xlarge"]), region=region)

    assert answers == {"us-east-1": 12, "eu-west-1": 4}


@pytest.mark.long
def test_3_a_region_without_stock_stops_counting_and_pods_that_leave_do_not_come_back():
    async def story(cluster):
        stock = cluster.cloud.stock_out("g5.xlarge")
        async with asking(cluster) as ask:
            assert await ask.replicas(**GPU) == 4
            await create(cluster, gpu_deployment("train", 2))

            async def stopped():
                return await ask.replicas(**GPU) == 0

            assert await until(stopped, within=120)
            assert ask.provider.failing()
            await scale(cluster, "train", 0)  # a descheduler takes the replicas away
            answers = set()

            async def watched():
                answers.add(await ask.replicas(**GPU))
                return False

            await until(watched, within=400)
            assert answers == {0}

            async def probed():
                return await ask.replicas(**GPU) == 1  # one node first, to see whether there is stock again

            assert await until(probed, within=700)
            stock.left = 10
            await scale(cluster, "train", 1)
            assert await all_ready(cluster, "train", 1)

            async def opened():
                return await ask.replicas(**GPU) == 3

            assert await until(opened, within=60)

    play(story, pool("gpu", limits=GPU_LIMIT, type=["g5.xlarge"]))


def test_4_out_to_four_down_again_consolidated_and_up_again():
    async def story(cluster):
        async with asking(cluster) as ask:
            await create(cluster, gpu_deployment("train", 1))
            assert await all_ready(cluster, "train", 1)
            assert await ask.replicas(**GPU) == 3
            await scale(cluster, "train", 4)
            assert await all_ready(cluster, "train", 4)
            assert await ask.replicas(**GPU) == 0
            await scale(cluster, "train", 1)

            async def consolidated():
                return len(await nodes(cluster)) == 1

            assert await until(consolidated, within=1800)
            assert await ask.replicas(**GPU) == 3
            await scale(cluster, "train", 4)
            assert await all_ready(cluster, "train", 4)

    play(story, pool("gpu", limits=GPU_LIMIT, type=["g5.xlarge"]), consolidation=True)


def test_5_an_inference_workload_counts_by_its_scarcest_resource():
    """One GPU, much memory: machines with more memory per GPU are what decides."""

    async def story(cluster):
        async with asking(cluster) as ask:
            replicas = await ask.replicas(cpu="3", memory="24Gi", gpu="1")
            assert replicas == 3  # g5.xlarge has 16 GiB
            made = gpu_deployment("vllm", replicas)
            (container,) = made["spec"]["template"]["spec"]["containers"]
            container["resources"]["requests"] = {"cpu": "3", "memory": "24Gi"}
            await create(cluster, made)
            assert await all_ready(cluster, "vllm", replicas)

    limits = {"nvidia.com/gpu": "8", "cpu": "24"}
    play(story, pool("inference", limits=limits, type=["g5.xlarge", "g5.2xlarge"]))


def test_6_limits_that_change_change_the_answer_at_once():
    async def story(cluster):
        user = cluster.embedded.client("user")
        async with asking(cluster) as ask:
            for limit in ("8", "2", "0", "4"):
                patch = {"spec": {"limits": {"nvidia.com/gpu": limit}}}
                await user.patch(NODEPOOLS, "gpu", patch)

                async def follows(wanted=int(limit)):
                    return await ask.replicas(**GPU) == wanted

                assert await until(follows, within=5)

    play(story, pool("gpu", limits=GPU_LIMIT, type=["g5.xlarge"]))


def test_7_a_cpu_workload_is_served_by_several_pools():
    async def story(cluster):
        async with asking(cluster) as ask:
            found = await ask.potential(cpu="1500m", memory="1Gi")
            assert found == {"large": 4, "small": 4}
            total = await ask.replicas(cpu="1500m", memory="1Gi")
            assert total == 9  # one on the node that is there
            await create(cluster, deployment("web", total, cpu="1500m", memory="1Gi"))
            assert await all_ready(cluster, "web", total)
            await scale(cluster, "web", total + 1)
            assert not await all_ready(cluster, "web", total + 1, within=300)
            assert len([pod for pod in await pods(cluster) if not pod.spec.node_name]) == 1

    play(
        story,
        pool("large", weight=10, limits={"cpu": "8"}, type=["m5.xlarge"]),
        pool("small", limits={"cpu": "8"}, type=["m5.large"]),
        nodes=SYSTEM,
    )


def test_an_answer_never_counts_a_node_twice_while_it_comes_up():
    """From the first claim to the last pod: existing, in flight and potential never add up to more."""

    async def story(cluster):
        async with asking(cluster) as ask:
            whole = await ask.replicas(cpu="1", memory="1Gi")
            await create(cluster, deployment("web", 5, cpu="1", memory="1Gi"))
            seen = []

            async def watched():
                running = sum(bool(pod.spec.node_name) for pod in await pods(cluster))
                seen.append((await ask.replicas(cpu="1", memory="1Gi"), running))
                return await ready(cluster, "web") == 5

            assert await until(watched, within=600)
            # Pods that wait are served first; what is promised besides them never exceeds the rest.
            after = seen[-1][0]
            assert all(answer <= whole for answer, _ in seen)
            assert all(answer <= whole - 5 for answer, running in seen if running == 5)
            assert after > 0

    play(story, pool("default", limits={"cpu": "16"}, type=["m5.xlarge"]))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_what_is_promised_is_placed(seed):
    """Random pools, limits and pods: a Deployment of exactly the promised size always becomes ready."""
    import random

    chance = random.Random(seed)
    families = chance.sample(["c", "m", "r"], k=chance.randint(1, 2))
    pools = [
        pool(
            f"pool-{number}",
            weight=chance.choice([None, 5, 50]),
            limits={"cpu": str(chance.randint(5, 40)), "memory": f"{chance.randint(20, 160)}Gi"},
            category=families,
        )
        for number in range(chance.randint(1, 3))
    ]
    cpu, memory = chance.choice(["500m", "1", "1700m", "3"]), chance.choice(["512Mi", "2Gi", "7Gi"])
    daemon = {
        **deployment("agent", 1, cpu="200m", memory="128Mi"),
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "default"},
    }
    del daemon["spec"]["replicas"]

    async def story(cluster):
        async with asking(cluster) as ask:
            total = await ask.replicas(cpu=cpu, memory=memory)
            await create(cluster, deployment("web", total, cpu=cpu, memory=memory))
            assert total > 0
            assert await all_ready(cluster, "web", total), (total, await ready(cluster, "web"))

    play(story, daemon, *pools, nodes=SYSTEM)


def test_sets_of_components_are_placed_as_promised():
    """However kube-scheduler mixes them: even with all drivers on one node the workers have room."""

    async def story(cluster):
        async with asking(cluster) as ask:
            sets = await ask.sets(
                driver={"cpu": "1", "memory": "2Gi"}, worker={"cpu": "2", "memory": "4Gi", "replicas": 3}
            )
            assert sets == 8
            await create(cluster, deployment("driver", sets, cpu="1", memory="2Gi"))
            await create(cluster, deployment("worker", 3 * sets, cpu="2", memory="4Gi"))
            assert await all_ready(cluster, "driver", sets)
            assert await all_ready(cluster, "worker", 3 * sets)

    play(story, pool("default", limits={"cpu": "64"}, type=["m5.4xlarge"]))


def test_fallback_pools_keep_counting():
    async def story(cluster):
        cluster.cloud.stock_out("m5.xlarge")
        async with asking(cluster, karpenter(cluster)) as ask:
            await create(cluster, deployment("web", 2, cpu="1", memory="1Gi"))

            async def only_fallback():
                found = await ask.potential(cpu="1", memory="1Gi")
                return not found["first"] and found["fallback"] > 0

            assert await until(only_fallback, within=120)
            assert await all_ready(cluster, "web", 2)

    play(
        story,
        pool("first", weight=50, limits={"cpu": "8"}, type=["m5.xlarge"]),
        pool("fallback", limits={"cpu": "16"}, type=["m5.2xlarge"]),
    )
