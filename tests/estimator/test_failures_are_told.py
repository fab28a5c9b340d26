"""What does not count is visible in metrics and as events on the pools."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from karpool.estimator.serving.failure_reporting import FAILED, FailureGauges, report_failures, reporting
from karpool.kube.event_recorder import EventRecorder
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, EVENTS
from tests.estimator.watching import asking, karpenter
from tests.fleet.living import deployment, play, pool, until


@pytest.mark.long
def test_an_empty_shelf_shows_in_metrics_and_on_the_pool():
    async def story(cluster):
        cluster.cloud.stock_out("m5.xlarge")
        async with asking(cluster) as ask:
            registry = CollectorRegistry()
            gauges = FailureGauges(registry)
            gauges.follow("east", reporting(ask.member.framework.plugins))
            recorder = EventRecorder(cluster.embedded.client("estimator"), "karpool-estimator")
            report_failures(ask.provider, recorder)
            made = deployment("web", 1, cpu="1", memory="1Gi")
            await cluster.embedded.client("user").create(DEPLOYMENTS, made)

            async def stopped():
                return await ask.replicas(cpu="1", memory="1Gi") == 0

            assert await until(stopped, within=120)
            await recorder.flush()
            events = (await cluster.embedded.client("reader").list(EVENTS)).items
            told = [event for event in events if event["reason"] == FAILED]
            assert {each["involvedObject"]["name"] for each in told} == {"default"}
            assert all("m5.xlarge" in each["message"] for each in told)
            text = generate_latest(registry).decode()
            assert 'karpool_estimator_failed_offerings{cluster="east",provider="karpenter"} 0.0' not in text
            assert "karpool_estimator_failed_offerings{" in text

            # An estimator that starts now has only the events to go by, and comes to the same answer.
            await asyncio.sleep(15)
            async with asking(cluster, karpenter(cluster)) as another:
                assert await another.replicas(cpu="1", memory="1Gi") == 0

    play(story, pool("default", limits={"cpu": "8"}, type=["m5.xlarge"]))


def test_pods_that_nobody_serves_take_their_pool_out_and_metrics_say_so():
    """Karpenter is not running at all: after three minutes nobody believes its pools."""

    async def story(cluster):
        async with asking(cluster) as ask:
            gauges = FailureGauges(registry := CollectorRegistry())
            gauges.follow("east", reporting(ask.member.framework.plugins))
            cluster.embedded.components.kill("karpenter")
            made = deployment("web", 1, cpu="1", memory="1Gi")
            await cluster.embedded.client("user").create(DEPLOYMENTS, made)
            await asyncio.sleep(100)
            assert await ask.replicas(cpu="1", memory="1Gi") > 0
            await asyncio.sleep(100)
            assert await ask.replicas(cpu="1", memory="1Gi") == 0
            assert 'cause="PodsWait",cluster="east",pool="default"' in generate_latest(registry).decode()

            # Another estimator, started now, comes to the same verdict from the same objects.
            async with asking(cluster, karpenter(cluster)) as another:
                assert await another.replicas(cpu="1", memory="1Gi") == 0

    play(story, pool("default", limits={"cpu": "8"}, type=["m5.xlarge"]))
