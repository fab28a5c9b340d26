"""After a stock-out one node's worth is offered first; a success opens the rest."""

from karpool.cluster.kinds import NODEPOOLS, PODS
from karpool.cluster.market.failures import OfferingKey
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, ReplicasRequest
from tests.estimator.pictures import Told
from tests.estimator.test_usage_of_pools import At
from tests.packing.pool_cases import catalogue, instance_type

ONE = requirements({"cpu": "1"})


class World:
    """One pool of machines with room for three such pods each, up to three of them."""

    def __init__(self):
        self.clock = At(1000.0)
        self.provider = KarpenterProvider(self.clock)
        self.picture = Told(self.provider, Market(catalogue(instance_type("four", 4, 16))))
        pool = {"metadata": {"name": "pool"}, "spec": {"template": {"spec": {}}, "limits": {"cpu": "12"}}}
        self.picture.put(NODEPOOLS, pool)

    def asked(self, at, request=None, assumed=()):
        self.clock.seconds = self.picture.now = at
        request = request or ReplicasRequest("", ONE)
        return EstimateQuestion(request, self.picture.snapshot(), assumed)

    def replicas(self, at, assumed=()):
        return self.provider.estimate(self.asked(at, assumed=assumed)).value

    def sets(self, at):
        request = ComponentSetsRequest("", (Component("one", 1, ONE),))
        return self.provider.estimate_components(self.asked(at, request)).value


def test_nothing_then_one_node_then_everything():
    world = World()
    whole = world.replicas(1000.0)
    each = whole // 3
    world.provider.failures.out_of_stock("pool", [OfferingKey("four", "", "")], 1010.0, "none left")

    assert (world.replicas(1011.0), world.sets(1012.5)) == (0, 0)
    assert (world.replicas(1611.0), world.sets(1612.5)) == (each, each)
    promised = AssumedWorkload("", (Component("one", 1, ONE),))
    assert world.replicas(1614.0, (promised,)) == each - 1

    world.provider.failures.out_of_stock("pool", [OfferingKey("four", "", "")], 1620.0, "none left")
    assert world.replicas(2819.0) == 0
    assert world.replicas(2821.0) == each

    world.provider.failures.pool_seen("pool", "other", 2830.0)
    assert world.replicas(2832.0) == whole


def test_a_pool_that_failed_as_a_whole_is_tried_too():
    world = World()
    whole = world.replicas(1000.0)
    world.provider.failures.failed("pool", LaunchReason.LAUNCH_FAILED, 1010.0, "no such image")

    assert world.replicas(1012.0) == 0
    assert world.replicas(1612.0) == whole // 3
    world.provider.failures.succeeded("pool", None, 1620.0)
    assert world.replicas(1622.0) == whole


def test_a_day_without_a_try_still_offers_one_node():
    world = World()
    whole = world.replicas(1000.0)
    world.provider.failures.out_of_stock("pool", [OfferingKey("four", "", "")], 1010.0, "none left")

    a_day_later = 1010.0 + 24 * 3600
    assert (world.replicas(a_day_later), world.sets(a_day_later + 2)) == (whole // 3, whole // 3)


def test_a_pool_that_leaves_pods_waiting_is_tried_with_one_node_and_out_for_longer_each_time():
    """0, 6, 0, 6 and so on would be belief: three minutes with everything, then one node at a time."""
    world = World()
    whole = world.replicas(1000.0)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    pod = {
        "metadata": {"name": "web", "namespace": "default", "uid": "1"},
        "spec": {"containers": [container]},
        "status": {"conditions": [{**condition, "lastTransitionTime": "1970-01-01T00:16:40Z"}]},
    }
    world.picture.put(PODS, pod)
    one_node = whole // 3 - 1  # of which the pod that waits has its place
    offered = {minute: world.replicas(1000.0 + 60 * minute + 1) for minute in range(80)}

    assert offered[1] == whole - 1
    assert {offered[minute] for minute in range(3, 13)} == {0}
    assert {offered[minute] for minute in range(13, 16)} == {one_node}
    assert {offered[minute] for minute in range(16, 36)} == {0}
    assert {offered[minute] for minute in range(36, 39)} == {one_node}
    assert {offered[minute] for minute in range(39, 79)} == {0}
    world.provider.failures.claimed("pool", 1000.0 + 60 * 79)
    assert world.replicas(1000.0 + 60 * 80) == whole - 1
