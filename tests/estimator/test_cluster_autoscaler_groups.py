"""Node groups of cluster-autoscaler: sizes, back-off, templates, and what is then really placed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.cluster.pools import node_group_status
from karpool.cluster.pools.node_group_status import NodeGroupStatus
from karpool.cluster.pools.node_group_template import described, group_of
from karpool.estimator.providers.cluster_autoscaler import ClusterAutoscalerProvider
from karpool.model.catalogue.files import load_shipped
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import CONFIGMAPS, DEPLOYMENTS
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool_fleet.clusters.fleet_file import NodeGroupSpec
from tests.estimator.watching import asking
from tests.fleet.living import deployment, play, ready, until

YAML = """
time: 2026-01-01 00:00:00 +0000 UTC
autoscalerStatus: Running
clusterWide: {}
nodeGroups:
- name: eks-gpu-0a1b
  health:
    status: Healthy
    nodeCounts: {registered: {total: 2, ready: 2}, longUnregistered: 0, unregistered: 1}
    cloudProviderTarget: 3
    minSize: 0
    maxSize: 10
  scaleUp:
    status: Backoff
    backoffInfo: {errorCode: outOfResource, errorMessage: no stock}
"""
TEXT = """Cluster-autoscaler status at 2023-01-01 00:00:00 UTC:
Cluster-wide:
  Health:      Healthy (ready=3 unready=0 notStarted=0 longNotStarted=0 registered=3 longUnregistered=0)
NodeGroups:
  Name:        asg-one
  Health:      Healthy (ready=1 registered=1 cloudProviderTarget=2 (minSize=1, maxSize=5))
  ScaleUp:     InProgress (ready=1 cloudProviderTarget=2)
  Name:        asg-two
  Health:      Unhealthy (ready=0 registered=2 cloudProviderTarget=2 (minSize=0, maxSize=4))
  ScaleUp:     Backoff (ready=1)
"""


def test_the_status_is_read_in_both_forms():
    assert node_group_status.parse(YAML) == [
        NodeGroupStatus("eks-gpu-0a1b", 0, 10, 3, 2, healthy=True, backoff="no stock")
    ]
    one, two = node_group_status.parse(TEXT)
    assert (one.name, one.room, one.coming, one.backoff) == ("asg-one", 3, 1, "")
    assert (two.healthy, two.backoff, two.room) == (False, "scaling up failed", 2)
    assert node_group_status.parse("time: x\nautoscalerStatus: Initializing\n") == []


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.text(max_size=200)
    | st.sampled_from([YAML, TEXT]).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.text(max_size=8)).map(
            lambda cut: text[: cut[0]] + cut[1] + text[cut[0] + 3 :]
        )
    )
)
def test_whatever_the_status_says_it_is_groups_or_one_error(text):
    try:
        groups = node_group_status.parse(text)
    except Invalid:
        return
    assert all(group.room >= 0 and group.coming >= 0 for group in groups)


@pytest.mark.parametrize(
    ("group", "labels", "found"),
    [
        ("eks-gpu-0a1b", {"eks.amazonaws.com/nodegroup": "gpu"}, True),
        ("gpu", {"eks.amazonaws.com/nodegroup": "gpu"}, True),
        (
            "https://x/zones/z/instanceGroups/gke-east-pool-1-grp",
            {"cloud.google.com/gke-nodepool": "pool-1"},
            True,
        ),
        ("eks-gpus-0a1b", {"eks.amazonaws.com/nodegroup": "gpu"}, False),
        ("eks-gpu-0a1b", {}, False),
    ],
)
def test_nodes_find_their_group(group, labels, found):
    node = decode({"metadata": {"name": "n", "labels": labels}}, Node)

    assert group_of(node.labels, [group, "other"]) == (group if found else "")


def test_of_two_groups_the_one_that_is_named_more_exactly():
    node = decode({"metadata": {"name": "n", "labels": {"agentpool": "gpu"}}}, Node)

    assert group_of(node.labels, ["eks-gpu-2", "gpu", "eks-gpu-1"]) == "gpu"


def test_a_group_that_never_had_a_node_can_be_described():
    catalogue = load_shipped("us-east-1")
    template = described(json.dumps({"instanceType": "g5.xlarge", "zones": ["us-east-1a"]}), "gpu", catalogue)

    assert template.rows[0].allocatable["nvidia.com/gpu"] == 1
    assert template.rows[0].labels["topology.kubernetes.io/zone"] == "us-east-1a"
    for wrong in ("[]", "{", '{"instanceType": "none"}', '{"allocatable": {"cpu": "x"}}'):
        with pytest.raises(Invalid, match=r"karpool\.dev/template\.gpu"):
            described(wrong, "gpu", catalogue)


def provider_for(cluster):
    return ClusterAutoscalerProvider(cluster.embedded.clock)


GROUP = {
    "autoscaler": "cluster-autoscaler",
    "node_groups": [NodeGroupSpec(name="web", type="m5.large", min=1, max=4)],
}


def test_what_a_group_promises_is_placed_and_no_node_is_counted_twice():
    async def story(cluster):
        async with asking(cluster, provider_for(cluster)) as ask:

            async def known():
                return await ask.replicas(cpu="500m", memory="256Mi") > 3

            assert await until(known, within=300)
            total = await ask.replicas(cpu="500m", memory="256Mi")
            assert total == 12  # three on each of four nodes
            made = deployment("web", total, cpu="500m", memory="256Mi")
            await cluster.embedded.client("user").create(DEPLOYMENTS, made)
            seen = []

            async def done():
                seen.append(await ask.replicas(cpu="500m", memory="256Mi"))
                return await ready(cluster, "web") == total

            assert await until(done, within=900)
            assert max(seen) <= total
            found = await ask.outcome(cpu="500m", memory="256Mi")
            assert found.answer == 0
            assert "maxSize 4 reached" in found.parts[-1].reasons

    play(story, **GROUP)


def test_a_group_in_back_off_does_not_count():
    async def story(cluster):
        async with asking(cluster, provider_for(cluster)) as ask:

            async def known():
                return await ask.replicas(cpu="1", memory="1Gi") > 1

            assert await until(known, within=300)
            cluster.cloud.stock_out("m5.large")
            made = deployment("web", 4, cpu="1", memory="1Gi")
            await cluster.embedded.client("user").create(DEPLOYMENTS, made)

            async def stopped():
                found = await ask.outcome(cpu="1", memory="1Gi")
                return any("back-off" in reason for part in found.parts for reason in part.reasons)

            assert await until(stopped, within=900)
            assert (await ask.potential(cpu="1", memory="1Gi"))["web"] == 0

    play(story, **GROUP)


def test_an_annotation_describes_a_group_from_zero():
    async def story(cluster):
        async with asking(cluster, provider_for(cluster)) as ask:

            async def there():
                return bool(ask.member.cluster.snapshot().node_groups.groups)

            assert await until(there, within=60)
            found = await ask.outcome(cpu="1", memory="1Gi", gpu="1")
            assert "none was ever seen" in found.parts[-1].reasons[0]
            template = json.dumps({"instanceType": "g5.xlarge"})
            patch = {"metadata": {"annotations": {"karpool.dev/template.gpu": template}}}
            user = cluster.embedded.client("user")
            await user.patch(CONFIGMAPS, "cluster-autoscaler-status", patch, namespace="kube-system")

            async def counted():
                return await ask.replicas(cpu="1", memory="1Gi", gpu="1") == 3

            assert await until(counted, within=60)
            assert await ask.sets(one={"cpu": "1", "replicas": 2}, two={"cpu": "1", "memory": "8Gi"}) == 3

    groups = [NodeGroupSpec(name="gpu", type="g5.xlarge", min=0, max=3)]
    play(story, autoscaler="cluster-autoscaler", node_groups=groups)
