"""A live cluster and a snapshot of it give the same plan, and what the plan says comes true."""

import asyncio
from pathlib import Path

import pytest

from karpool.cli.cluster_source import list_cluster, load_cluster
from karpool.cli.options.cluster import ClusterOptions
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.market import Market
from karpool.consolidation.planning.plan_file import SavedPlan, to_document
from karpool.consolidation.planning.planner import plan_consolidation
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ASPECTS, view_of
from karpool.kube.snapshots.writer import take_snapshot
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, NODECLAIMS, PDBS, PODS
from karpool_fleet.clusters.fleet_file import StaticNodes
from tests.fleet.living import budget, deployment, nodes, play, pods, pool, ready, until

SETTINGS = PlanSettings(heed_budgets=False)


async def live_plan(cluster):
    picture, client = Cluster(ASPECTS, market=Market(region="us-east-1")), cluster.embedded.client("user")
    assert await list_cluster(client, picture) == []
    now = cluster.embedded.clock.now()
    return plan_consolidation(view_of(picture.snapshot(now), now), SETTINGS, now)


async def file_plan(cluster, path: Path):
    await take_snapshot(cluster.embedded.client("user"), path)
    picture, now = Cluster(ASPECTS, market=Market(region="us-east-1")), cluster.embedded.clock.now()
    await load_cluster(ClusterOptions(snapshot=path), picture)
    return plan_consolidation(view_of(picture.snapshot(now), now), SETTINGS, now)


@pytest.mark.long
def test_live_and_file_agree_and_pods_land_where_the_plan_says_there_is_room(tmp_path: Path) -> None:
    async def story(cluster):
        client = cluster.embedded.client("user")
        managed = {"karpenter.sh/nodepool": "default"}
        await client.create(DEPLOYMENTS, deployment("web", 9, cpu="600m"))
        await client.create(DEPLOYMENTS, deployment("db", 1, cpu="500m", nodeSelector=managed))
        await client.create(PDBS, budget("db", maxUnavailable=0))

        async def all_run():
            return (await ready(cluster, "web"), await ready(cluster, "db")) == (9, 1)

        assert await until(all_run, within=300)
        await client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4}}, namespace="default")
        await asyncio.sleep(120)

        live, file = await live_plan(cluster), await file_plan(cluster, tmp_path / "saved.gz")

        assert live.moves
        assert to_document(SavedPlan(live)) == to_document(SavedPlan(file))
        db = next(pod.spec.node_name for pod in await pods(cluster) if pod.name.startswith("db"))
        held = {each.node: each.why[0].reason for each in live.held}
        assert held[db] == "pdb_blocked"
        going = {name for move in live.moves for name in move.names}
        assert db not in going
        assert len(going) + len(live.held) == len(await nodes(cluster))

        deletes = [move for move in live.moves if not move.new_nodes]
        before = len(await nodes(cluster))
        for move in deletes:
            for node in move.nodes:
                await client.delete(NODECLAIMS, node.claim)

        async def settled():
            gone = len(await nodes(cluster)) == before - sum(len(move.nodes) for move in deletes)
            return gone and (await ready(cluster, "web"), await ready(cluster, "db")) == (4, 1)

        assert await until(settled, within=600)
        assert not [pod for pod in (await client.list(PODS)).items if not pod["spec"].get("nodeName")]

    play(
        story,
        pool("default", type=["m5.large"], capacity=["on-demand"]),
        nodes=[StaticNodes(type="m5.large")],
    )
