"""After a stock-out one node's worth is offered first; a success opens the rest."""

from karpool.cluster.kinds import NODEPOOLS
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
