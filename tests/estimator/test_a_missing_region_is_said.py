"""Where nobody says the region, people are told: in the log every hour, in metrics, on /readyz."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.snapshot import REGION_MISSING
from karpool.estimator.process import FleetEstimator
from karpool.estimator.serving.options import EstimatorOptions
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.watch.feed import cluster_watches
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.options import read_options
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import NODEPOOLS
from karpool.wire import server_protocol
from karpool.wire.proto import estimator_pb2 as pb
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.fleet.living import play, pool, until

METRIC = "karpool_estimator_cluster_region_missing"


class Call:
    def invocation_metadata(self):
        return ()

    def peer(self):
        return "test"


def test_a_missing_region_is_said_and_answered_with_cannot_tell_and_found_when_a_pool_names_a_zone():
    async def story():
        cluster = EmbeddedCluster("m1", clock=LoopClock(), crds=bundled_crds(KARPENTER))
        async with cluster:
            people = cluster.client("people")
            await people.create(NODEPOOLS, pool("general", limits={"cpu": "8"}, type=["m5.large"]))
            flags = {"cluster-name": "m1", "node-capacity-providers": ("karpenter",)}
            options = read_options(EstimatorOptions, flags, embedded=True)
            client, registry = cluster.client("estimator"), CollectorRegistry()
            environment = Environment({"m1": client}, EventRecorder(client, "estimator"), registry)
            estimator = FleetEstimator(environment, options, serves=False)
            stop = Stop()
            running = asyncio.create_task(Manager(estimator, environment).run(stop))

            async def answer():
                needs = pb.ReplicaRequirements(resource_request={"cpu": pb.Quantity(string="1")})
                request = pb.MaxAvailableReplicasRequest(cluster="m1", replica_requirements=needs)
                data = await estimator.service.max_available_replicas(request.SerializeToString(), Call())
                return server_protocol.parse(pb.MaxAvailableReplicasResponse, data).max_replicas

            await asyncio.sleep(10)
            assert await answer() == -1
            await asyncio.sleep(2 * 3600 + 60)
            assert registry.get_sample_value(METRIC, {"cluster": "m1"}) == 1
            assert any(REGION_MISSING in remark for remark in environment.status.remarks())

            await people.create(NODEPOOLS, pool("placed", limits={"cpu": "8"}, zone=["eu-west-1a"]))
            await asyncio.sleep(10)
            assert await answer() > 0
            assert registry.get_sample_value(METRIC, {"cluster": "m1"}) == 0
            assert not any(REGION_MISSING in remark for remark in environment.status.remarks())
            stop.set()
            await running

    with capture_logs() as logs:
        run_manual(story())
    said = [entry for entry in logs if REGION_MISSING in str(entry.get("reason"))]
    assert len(said) == 3  # at the start, and after each of two hours
    assert {entry["log_level"] for entry in said} == {"warning"}


@pytest.mark.parametrize("region", ["us-west-2", "europe-west1", "westeurope"])
def test_embedded_clusters_say_where_they_are_as_real_ones_do(region):
    """Through the node class of their cloud, before there is any node."""

    async def story(cluster):
        picture = Cluster(Aspect.POOLS)
        informers = InformerSet(
            cluster.embedded.client("estimator"), cluster_watches(picture, cluster.embedded.clock)
        )
        following = asyncio.create_task(informers.run())

        async def known():
            return picture.market.region == region

        assert await until(known, within=60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    play(story, region=region)
