"""Where we bind, the share must be one that something on the node makes real; otherwise nobody is bound."""

import asyncio

import pytest

from karpool.gpu.controller.options import SCHEDULER_NAME, GpuScalerOptions
from karpool.model.devices.device import AGENT, PUBLISHED_BY, GpuObject, from_object
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.meta import condition, decode
from tests.fleet.living import claims, nodes, until
from tests.gpu.test_nodes_for_other_schedulers import DIALECTS, System, pod
from tests.gpu.whole import Object, Story, gpu_pool, tell, worker

OWNER = "gpu.karpool.dev/handed-out-by"


def owned(system: str) -> Object:
    node_pool = gpu_pool("gpu", "g6.xlarge")
    node_pool["spec"]["template"]["metadata"]["labels"][OWNER] = system
    return node_pool


def hami_share(name: str, **labels: str) -> Object:
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"}
    return pod(name, share, {"tensor-fusion.ai/gpupool": "shared"}, scheduler=SCHEDULER_NAME)


async def told_reason(told: Story, name: str) -> tuple[str, str]:
    said = condition((await told.pod(name)).status.conditions, "PodScheduled")
    return ((said.reason or ""), (said.message or "")) if said else ("", "")


@pytest.mark.parametrize(
    ("why", "node_pool", "asking"),
    [
        ("nothing on the nodes of GPU pool shared", gpu_pool("gpu", "g6.xlarge"), worker("asking")),
        ("tensor-fusion.ai/index", owned("tensor-fusion"), worker("asking")),
        ("would not see the pod", owned("hami"), worker("asking")),
        ("nothing on the nodes", owned("kai"), worker("asking")),
    ],
)
def test_a_share_that_nobody_would_see_is_refused_by_name_and_buys_nothing(
    why: str, node_pool: Object, asking: Object
) -> None:
    async def story(told: Story) -> None:
        await told.add(asking)
        await asyncio.sleep(120)
        reason, message = await told_reason(told, "asking")
        assert reason == "ShareNotEnforced"
        assert why in message
        assert not await claims(told.cluster)

    tell(story, node_pool, options=GpuScalerOptions())


def test_hami_gets_what_its_device_plugin_reads_one_pod_of_a_node_at_a_time() -> None:
    async def story(told: Story) -> None:
        other = System(told)
        await told.add(hami_share("first"))
        assert await until(lambda: _has_node(told), within=400)
        (node,) = await nodes(told.cluster)
        await asyncio.sleep(60)
        assert not await told.bound("first"), "no register yet: nothing enforces anything there"

        await other.show(node.name, *DIALECTS["hami"][2:])
        assert await until(lambda: told.bound("first"), within=120)
        first = await told.pod("first")
        assert first.annotations["hami.io/bind-phase"] == "allocating"
        assert first.annotations["hami.io/vgpu-node"] == node.name
        assert first.annotations["hami.io/vgpu-devices-to-allocate"] == "GPU-1,NVIDIA,8000,30:;"

        if first.status.phase == "Pending":
            await told.add(hami_share("second"))
            await asyncio.sleep(20)
        success = {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}}
        await told.client.patch(PODS, "first", success, namespace="default")
        if first.status.phase != "Pending":
            await told.add(hami_share("second"))
        assert await until(lambda: told.bound("second"), within=120)
        assert len(await claims(told.cluster)) == 1

    tell(story, owned("hami"), options=GpuScalerOptions())


def test_what_pods_of_hamis_own_scheduler_hold_is_not_given_again() -> None:
    async def story(told: Story) -> None:
        other = System(told)
        await told.add(hami_share("first"))
        assert await until(lambda: _has_node(told), within=400)
        (node,) = await nodes(told.cluster)
        theirs = pod(
            "theirs",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"},
            {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,20000,0:;"},
        )
        await told.add(theirs)
        await other.bind(node.name, "theirs")
        await other.show(node.name, *DIALECTS["hami"][2:])
        await asyncio.sleep(60)
        assert (await told.pod("first")).spec.node_name != node.name

    tell(story, owned("hami"), options=GpuScalerOptions())


def test_devices_that_only_our_agent_describes_are_enforced_by_nobody() -> None:
    gpu: Object = {
        "metadata": {"name": "gpu-1", "annotations": {PUBLISHED_BY: AGENT}},
        "status": {"phase": "Running", "capacity": {"tflops": "100", "vram": "24Gi"}},
    }

    assert from_object(decode(gpu, GpuObject)).is_of_agent
    gpu["metadata"]["annotations"] = {}
    assert not from_object(decode(gpu, GpuObject)).is_of_agent


async def _has_node(told: Story) -> bool:
    return any(node.is_ready for node in await nodes(told.cluster))
