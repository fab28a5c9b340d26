"""A live cluster and a snapshot of it give the same answer about capacity."""

from pathlib import Path

import pytest

from karpool.cli.cluster_source import list_cluster, load_cluster
from karpool.cli.inspect.capacity import ASPECTS, Workload, question_of, requirements_of
from karpool.cli.options.cluster import ClusterOptions
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.market import Market
from karpool.estimator.capacity import CapacityAnalyzer, CapacityVerdict
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.kube.snapshots.writer import take_snapshot
from karpool.model.kubernetes.api_resources import DEPLOYMENTS
from karpool.model.kubernetes.components import components_of
from karpool_fleet.clusters.fleet_file import StaticNodes
from tests.fleet.living import deployment, play, pool, ready, until


@pytest.mark.long
def test_live_and_file_agree_while_nodes_come_up(tmp_path: Path) -> None:
    workload = Workload(components_of({**deployment("more", 3, cpu="1"), "kind": "Deployment"}))

    async def story(cluster):
        clock = cluster.embedded.clock
        client = cluster.embedded.client("user")

        def core():
            provider = KarpenterProvider(clock)
            asked = CapacityAnalyzer([provider])
            market = Market(region="us-east-1")
            return asked, Cluster(ASPECTS | asked.aspects, market=market, failures=provider.failures)

        async def live():
            asked, picture = core()
            await list_cluster(client, picture)
            return asked.answer(
                question_of(workload, requirements_of(workload, picture), picture.snapshot(clock.now())), 3
            )

        async def file():
            asked, picture = core()
            path = tmp_path / "saved.gz"
            await take_snapshot(client, path)
            await load_cluster(ClusterOptions(snapshot=path), picture)
            return asked.answer(
                question_of(workload, requirements_of(workload, picture), picture.snapshot(clock.now())), 3
            )

        seen = []

        async def done():
            if int(clock.monotonic()) % 10 == 0:  # often enough to meet claims without nodes
                before, saved, after = await live(), await file(), await live()
                if before == after:  # controllers may act between two looks, even at the same second
                    assert saved == before
                    seen.append(saved.verdict)
            return await ready(cluster, "web") == 4

        await client.create(DEPLOYMENTS, deployment("web", 4, cpu="1500m"))
        assert await until(done, within=300)
        assert set(seen) == {CapacityVerdict.AFTER_SCALE_UP}
        assert len(seen) > 2

    play(
        story,
        pool("default", limits={"cpu": "40"}, type=["m5.large", "m5.xlarge"]),
        nodes=[StaticNodes(type="m5.large")],
    )
