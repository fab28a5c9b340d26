"""A node with taints of its start is not a wrong node: it is waited for, and no second one is bought."""

import asyncio

from karpool.model.kubernetes.api_resources import NODES
from tests.fleet.living import claims, nodes, until
from tests.gpu.whole import Story, gpu_pool, tell, worker


def test_a_node_with_a_startup_taint_is_waited_for() -> None:
    pool = gpu_pool("gpu", "g6.xlarge", "g6.2xlarge")
    starting = {"key": "example.com/driver-missing", "effect": "NoSchedule"}
    pool["spec"]["template"]["spec"]["startupTaints"] = [starting]

    async def story(told: Story) -> None:
        await told.add(worker("infer"))

        async def there() -> bool:
            return any(node.is_ready for node in await nodes(told.cluster))

        assert await until(there, within=300)
        await asyncio.sleep(60)
        assert not await told.bound("infer")
        assert len(await claims(told.cluster)) == 1
        (node,) = await nodes(told.cluster)
        taints = [taint for taint in node.spec.taints or () if taint.key != starting["key"]]
        kept = [{"key": each.key, "value": each.value, "effect": each.effect} for each in taints]
        await told.client.patch(NODES, node.name, {"spec": {"taints": kept}})
        assert await until(lambda: told.bound("infer"), within=60)
        assert await until(told.clean, within=60)
        assert len(await claims(told.cluster)) == 1

    tell(story, pool)
