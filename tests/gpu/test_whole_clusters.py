"""Fractional requests in whole embedded clusters: a node comes, the placeholder goes, the request is served."""

from karpool.model.node import INSTANCE_TYPE
from tests.fleet.living import claims, nodes, until
from tests.gpu.whole import Story, gpu_pool, tell, worker


def test_a_fraction_brings_a_node_and_is_served() -> None:
    async def story(told: Story) -> None:
        await told.add(worker("infer"))

        assert await until(lambda: told.bound("infer"), within=400)
        assert await until(told.clean, within=60)

        (node,) = await nodes(told.cluster)
        pod = await told.pod("infer")
        assert pod.spec.node_name == node.name
        assert pod.annotations["tensor-fusion.ai/gpu-ids"] == f"{node.name}-gpu-0"
        assert node.labels[INSTANCE_TYPE] == "g6.xlarge"
        assert len(await claims(told.cluster)) == 1

    tell(story, gpu_pool("gpu", "g6.xlarge"))
