"""What a node group or a quota has left once others have theirs: mistakes here were seen by no other test."""

import asyncio
import json
from collections import Counter

import pytest
import yaml

from karpool.cluster import kinds
from karpool.cluster.market.market import Market
from karpool.estimator.plugins.resource_quota import ResourceQuotaEstimator
from karpool.estimator.providers.cluster_autoscaler import ClusterAutoscalerProvider
from karpool.estimator.question import EstimateQuestion
from karpool.model.catalogue.files import load_shipped
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, requirements
from karpool.model.kubernetes.api_resources import (
    CAPACITYBUFFERS_BETA,
    CONFIGMAPS,
    DEPLOYMENTS,
    PODTEMPLATES,
)
from karpool.model.kubernetes.configmap import ConfigMap
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.resource_quota import ResourceQuota
from karpool.packing.tables.room import snapshot_of
from karpool.rooms.arrived import arrived, outstanding
from karpool.wire.requests import AssumedOwner, AssumedWorkload, ReplicasRequest
from karpool_fleet.clusters.fleet_file import NodeGroupSpec
from tests.estimator.pictures import Told, in_room
from tests.estimator.test_usage_of_pools import At
from tests.estimator.watching import asking
from tests.fleet.living import deployment, play, until

PART = {"cpu": "500m", "memory": "256Mi"}  # three on each node of the group, four nodes at most
LEFT_BY_FIVE = 7  # three are on the node that exists, two on one of the three that may come
ZONES = ["us-east-1a", "us-east-1b"]
GROUP = {
    "autoscaler": "cluster-autoscaler",
    "node_groups": [NodeGroupSpec(name="web", type="m5.large", min=1, max=4)],
}


def played(story):
    async def known(cluster):
        provider = ClusterAutoscalerProvider(cluster.embedded.clock)
        async with asking(cluster, provider) as ask:

            async def counted():
                return await ask.replicas(**PART) == 12

            assert await until(counted, within=300)
            await story(cluster, ask)

    play(known, **GROUP)


def test_pods_that_wait_take_new_nodes_of_a_group_first():
    async def story(cluster, ask):
        await cluster.embedded.components.crash("cluster-autoscaler")
        user = cluster.embedded.client("user")
        await user.create(DEPLOYMENTS, deployment("web", 5, **PART))  # three on the node, two wait
        await asyncio.sleep(60)
        assert await ask.replicas(**PART) == LEFT_BY_FIVE

    played(story)


def test_promises_take_new_nodes_of_a_group_first():
    async def story(cluster, ask):
        promise = AssumedWorkload("default", (Component("c", 5, requirements(PART)),))
        request = ReplicasRequest(cluster.name, requirements(PART), (promise,))
        snapshot = ask.member.question(request).snapshot
        question = EstimateQuestion(request, snapshot, (promise,))
        assert (await ask.member.framework.run(question)).answer == LEFT_BY_FIVE

    played(story)


@pytest.mark.parametrize("promised", [1, 2, 4, 7, 11, 12, 13])
def test_a_promise_costs_exactly_what_was_promised(promised):
    async def story(cluster, ask):
        promise = AssumedWorkload("default", (Component("c", 1, requirements(PART)),))
        request = ReplicasRequest(cluster.name, requirements(PART))
        snapshot = ask.member.question(request).snapshot
        question = EstimateQuestion(request, snapshot, (promise,) * promised)
        assert (await ask.member.framework.run(question)).answer == max(0, 12 - promised)

    played(story)


@pytest.mark.long
def test_components_of_a_set_share_nodes_of_a_group():
    """Three halves of a core fit on a node: a set of one and two takes one, like a set of three."""

    async def story(cluster, ask):
        assert await ask.sets(a={**PART, "replicas": 1}, b={**PART, "replicas": 2}) == 4
        assert await ask.sets(a={**PART, "replicas": 3}) == 4
        assert await ask.sets(a={**PART, "replicas": 2}) == 6
        large = {"cpu": "1", "memory": "256Mi"}
        assert await ask.sets(a={**large, "replicas": 1}, b={**PART, "replicas": 1}) == 4

    played(story)


def test_buffers_keep_new_nodes_of_a_group():
    """What stands on the node that is there may be used, and comes back on a new one."""

    async def story(cluster, ask):
        user = cluster.embedded.client("user")
        template = deployment("spare", 1, **PART)["spec"]["template"]
        meta = {"name": "spare", "namespace": "default"}
        await user.create(PODTEMPLATES, {"metadata": meta, "template": template})
        spec = {"podTemplateRef": {"name": "spare"}, "replicas": 3}
        await user.create(CAPACITYBUFFERS_BETA, {"metadata": meta, "spec": spec})

        async def kept():
            return await ask.replicas(**PART) == 9

        assert await until(kept, within=60)

    played(story)


def test_a_group_of_two_zones_promises_no_zone():
    """Nobody knows in which of them the next node comes up."""

    async def story(cluster):
        template = json.dumps({"instanceType": "m5.large", "zones": ZONES})
        patch = {"metadata": {"annotations": {"karpool.dev/template.web": template}}}
        user = cluster.embedded.client("user")
        async with asking(cluster, ClusterAutoscalerProvider(cluster.embedded.clock)) as ask:

            async def there():
                return bool(ask.member.cluster.snapshot().node_groups.groups)

            async def counted():
                return await ask.replicas(**PART) == 9

            assert await until(there, within=60)
            await user.patch(CONFIGMAPS, "cluster-autoscaler-status", patch, namespace="kube-system")
            assert await until(counted, within=60)
            for zone in ZONES:
                claim = ReplicaNodeClaim(node_selector={"topology.kubernetes.io/zone": zone})
                request = ReplicasRequest(cluster.name, requirements(PART, claim))
                assert (await ask.member.framework.run(ask.member.question(request))).answer == 0

    groups = [NodeGroupSpec(name="web", type="m5.large", min=0, max=3, zones=ZONES)]
    play(story, autoscaler="cluster-autoscaler", node_groups=groups)


def quota(name, cpu):
    status = {"hard": {"requests.cpu": cpu}, "used": {"requests.cpu": "0"}}
    return decode(
        {"metadata": {"name": name, "namespace": "shop"}, "spec": {"hard": status["hard"]}, "status": status},
        ResourceQuota,
    )


@pytest.mark.parametrize("amounts", [("2", "9"), ("9", "2")])
def test_of_several_quotas_the_tightest_counts(amounts):
    quotas = [quota(f"q{number}", cpu) for number, cpu in enumerate(amounts)]
    request = ReplicasRequest("c", requirements({"cpu": "1"}, namespace="shop"))
    question = EstimateQuestion(request, in_room(snapshot_of([]), quotas))

    assert ResourceQuotaEstimator().estimate(question).value == 2


@pytest.mark.parametrize(("waiting", "admitted"), [(0, 3), (2, 5), (3, 6), (9, 6)])
def test_a_quota_has_counted_pods_of_a_promise_that_wait(waiting, admitted):
    """Six cores are left, waiting pods taken off; of three promised replicas some are those pods."""
    wanted = requirements({"cpu": "1"}, namespace="shop")
    owner = AssumedOwner("apps/v1", "Deployment", "web")
    promise = AssumedWorkload("shop", (Component("", 3, wanted),), owner)
    there = outstanding(promise, arrived(lambda *_: (Counter(), waiting), promise))
    question = EstimateQuestion(
        ReplicasRequest("c", wanted), in_room(snapshot_of([]), [quota("q", "6")]), (there,)
    )

    assert ResourceQuotaEstimator().estimate(question).value == admitted


def test_machines_on_their_way_count_beside_those_that_may_be_asked_for():
    provider = ClusterAutoscalerProvider(At())
    told = Told(provider, Market(load_shipped("us-east-1")))
    labels = {"eks.amazonaws.com/nodegroup": "web", "node.kubernetes.io/instance-type": "m5.large"}
    room = {"cpu": "2", "memory": "8Gi", "pods": "29"}
    there = {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": room, "capacity": room}}
    there["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    health = {
        "status": "Healthy",
        "minSize": 0,
        "maxSize": 6,
        "cloudProviderTarget": 3,
        "nodeCounts": {"registered": {"total": 1, "ready": 1}},
    }
    status = {"autoscalerStatus": "Running", "nodeGroups": [{"name": "eks-web-1", "health": health}]}
    meta = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    told.put(
        kinds.NODE_GROUP_STATUS,
        decode({"metadata": meta, "data": {"status": yaml.safe_dump(status)}}, ConfigMap),
    )
    told.put(kinds.NODES, decode(there, Node))
    question = EstimateQuestion(ReplicasRequest("c", requirements({"cpu": "1"})), told.snapshot())
    amounts = {part.name.partition("/")[2]: part.amount for part in provider.estimate(question).parts}

    assert amounts == {"eks-web-1/in-flight": 4, "eks-web-1": 6}
