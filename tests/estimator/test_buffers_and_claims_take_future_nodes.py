"""CapacityBuffers and resource claims on nodes to come: what is kept free, and what drivers have there."""

import pytest

from karpool.cluster import kinds
from karpool.cluster.market.market import Market
from karpool.estimator.pending_demand import served_by_expected
from karpool.estimator.plugins.interface import EstimateCode
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.providers.karpenter_limits import KarpenterLimitsProvider
from karpool.estimator.question import EstimateQuestion
from karpool.model.dra.wire import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.model.karpenter.objects import NodePool
from karpool.model.kubernetes.capacity_buffer import CapacityBuffer
from karpool.model.kubernetes.meta import decode
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, ReplicasRequest
from tests.estimator.pictures import Told
from tests.estimator.test_usage_of_pools import At, claim, node, pod
from tests.packing.pool_cases import catalogue, instance_type

DRIVER = "gpu.example.com"
CLASS = "deviceclass.resource.kubernetes.io/gpu"
TYPE = "node.kubernetes.io/instance-type"


class World:
    """Ten nodes of four cores each, at most."""

    def __init__(self, nodes=10, **plugins):
        self.provider = KarpenterProvider(At())
        self.told = Told(self.provider, Market(catalogue(instance_type("four", 4, 16, **plugins))))
        spec = {"limits": {"nodes": str(nodes)}}
        self.told.put(kinds.NODEPOOLS, decode({"metadata": {"name": "pool"}, "spec": spec}, NodePool))

    def put(self, kind, struct, raw):
        self.told.put(kind, decode(raw, struct) if struct else raw)

    def buffer(self, replicas, cpu="4", name="spare", **spec):
        containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
        template = {"template": {"spec": {"containers": containers}}}
        self.put(kinds.POD_TEMPLATES, None, {"metadata": {"name": name, "namespace": "shop"}, **template})
        spec = {"podTemplateRef": {"name": name}, "replicas": replicas, **spec}
        raw = {"metadata": {"name": name, "namespace": "shop"}, "spec": spec}
        self.put(kinds.CAPACITY_BUFFERS, CapacityBuffer, raw)

    def asked(self, request, assumed=()):
        question = EstimateQuestion(request, self.told.snapshot(), assumed)
        plugin = NodeAutoscalerEstimator([self.provider])
        return plugin.estimate_components(question) if question.for_sets else plugin.estimate(question)

    def replicas(self, assumed=0, **amounts):
        wanted = requirements({name.replace("__", "/"): text for name, text in amounts.items()})
        promise = AssumedWorkload("default", (Component("c", assumed, wanted),))
        return self.asked(ReplicasRequest("c", wanted), (promise,) if assumed else ()).value


def test_a_buffer_keeps_nodes_that_are_still_to_be_launched():
    world = World()
    assert world.replicas(cpu="1") == 40

    world.buffer(3)
    assert world.replicas(cpu="1") == 28


def test_whoever_comes_has_a_buffers_room_on_nodes_that_are_there():
    """The autoscaler brings another node for the buffer then: together it is as much as before."""
    world = World()
    world.buffer(3)
    for name in ("a", "b", "c"):
        world.told.put(kinds.NODECLAIMS, claim(name, launched=False))
        assert world.replicas(cpu="1") == 28
    for name in ("a", "b", "c"):
        world.told.put(kinds.NODECLAIMS, claim(name))
        assert world.replicas(cpu="1") == 28
    for name in ("a", "b", "c"):
        world.told.put(kinds.NODECLAIMS, claim(name, registered=True, initialized=True))
        world.told.put(kinds.NODES, node(name, initialized=True))
        assert world.replicas(cpu="1") == 28


def test_a_buffer_that_stays_where_it_is_takes_no_new_node():
    """Who cannot use its node leaves it there."""
    world = World()
    world.buffer(1)
    taints = [{"key": "reserved", "effect": "NoSchedule"}]
    world.told.put(kinds.NODECLAIMS, claim("a", registered=True, initialized=True))
    world.told.put(kinds.NODES, node("a", initialized=True, taints=taints))
    assert world.replicas(cpu="1") == 32  # nobody tolerates the taint, nor does the buffer

    world.told.put(kinds.NODES, node("a", initialized=True))
    assert world.replicas(cpu="1") == 36
    assert world.replicas(cpu="1", memory="17Gi") == 0
    assert world.replicas(cpu="3", memory="16Gi") == 9


@pytest.mark.parametrize("promised", [1, 2, 3, 10, 28, 30])
def test_beside_a_buffer_a_promise_costs_what_was_promised(promised):
    world = World()
    world.buffer(3)
    assert world.replicas(promised, cpu="1") == max(0, 28 - promised)


def test_of_several_buffers_the_largest_pods_are_placed_first():
    """Three and one, two and two: a node that is there and one of two new ones hold them."""
    world = World(nodes=3)
    world.told.put(kinds.NODECLAIMS, claim("a", registered=True, initialized=True))
    world.told.put(kinds.NODES, node("a", initialized=True))
    small = pod("small", "a")
    small["spec"]["containers"][0]["resources"]["requests"] = {"memory": "1Gi"}
    world.told.put(kinds.PODS, small)  # who asks for all memory of a node does not fit there
    for name, replicas, cpu in (("one", 1, "1"), ("pair", 2, "2"), ("third", 1, "3")):
        world.buffer(replicas, cpu, name=name)

    assert world.replicas(cpu="4", memory="16Gi") == 1


def test_sets_leave_the_buffer_its_nodes():
    world = World(nodes=4)
    components = (
        Component("a", 1, requirements({"cpu": "2"})),
        Component("b", 2, requirements({"cpu": "1"})),
    )
    assert world.asked(ComponentSetsRequest("c", components)).value == 4

    world.buffer(1)
    assert world.asked(ComponentSetsRequest("c", components)).value == 3


def test_a_buffer_of_which_nothing_can_be_told_is_named():
    world = World()
    world.buffer(-1)
    wanted = requirements({"cpu": "1"})
    answer = world.asked(ReplicasRequest("c", wanted))

    assert answer.value == 40
    assert "CapacityBuffer shop/spare" in answer.reasons[0] and "spec.replicas" in answer.reasons[0]


# Devices


def device_class(**spec):
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector], **spec}}


def template(devices=1):
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": devices}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return {"metadata": {"name": "gpus", "namespace": "default"}, "spec": {"spec": spec}}


def with_devices(devices=2):
    """One node of the pool, full, that shows what drivers publish on others of its type."""
    world = World()
    there = node("n1", initialized=True)
    there.metadata.labels[TYPE] = "four"
    world.told.put(kinds.NODECLAIMS, claim("n1", registered=True, initialized=True))
    world.told.put(kinds.NODES, there)
    full = pod("full", "n1")
    full["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
    world.told.put(kinds.PODS, full)
    spec = {
        "driver": DRIVER,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}"} for number in range(devices)],
    }
    world.put(kinds.RESOURCE_SLICES, ResourceSlice, {"metadata": {"name": "n1-gpu"}, "spec": spec})
    world.put(kinds.DEVICE_CLASSES, DeviceClass, device_class())
    world.put(kinds.CLAIM_TEMPLATES, ResourceClaimTemplate, template())
    return world


def claiming(name):
    one = pod(name)
    one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    return one


def test_pods_that_wait_with_claims_take_nodes_that_have_the_devices():
    world = with_devices()
    assert world.replicas(cpu="1") == 36
    for number in range(4):
        world.told.put(kinds.PODS, claiming(f"w{number}"))

    assert world.replicas(cpu="1") == 36 - 4
    assert world.replicas(cpu="3") == 7  # two nodes, with two devices each, have two cores left


def test_a_node_on_its_way_serves_the_claim_it_comes_for():
    world = with_devices()
    for number in range(2):
        world.told.put(kinds.PODS, claiming(f"w{number}"))
    before = world.replicas(cpu="1")
    coming = claim("a")
    coming.metadata.labels[TYPE] = "four"
    world.told.put(kinds.NODECLAIMS, coming)

    assert (before, world.replicas(cpu="1")) == (34, 34)
    served = served_by_expected(world.told.snapshot(), 1000.0)
    assert {key.name for key in served} == {"w0", "w1"}


def test_more_claims_than_a_node_on_its_way_has_devices_for_are_not_served():
    world = with_devices()
    for number in range(3):
        world.told.put(kinds.PODS, claiming(f"w{number}"))
    coming = claim("a")
    coming.metadata.labels[TYPE] = "four"
    world.told.put(kinds.NODECLAIMS, coming)

    assert len(served_by_expected(world.told.snapshot(), 1000.0)) == 2


def test_a_resource_of_a_device_class_is_counted_by_devices():
    """The only way in which a question of Karmada's can ask for them."""
    world = with_devices()
    asked = {CLASS.replace("/", "__"): "1"}
    assert world.replicas(cpu="1", **asked) == 18
    assert world.replicas(cpu="1", **{CLASS.replace("/", "__"): "2"}) == 9

    world.put(kinds.DEVICE_CLASSES, DeviceClass, device_class(extendedResourceName="example.com/gpu"))
    assert world.replicas(5, cpu="1", **{"example.com__gpu": "1"}) == 13


def test_where_a_plugin_has_the_resource_no_driver_is_needed():
    world = World(**{"example.com/gpu": 2})
    world.put(kinds.DEVICE_CLASSES, DeviceClass, device_class(extendedResourceName="example.com/gpu"))

    assert world.replicas(cpu="1", **{"example.com__gpu": "1"}) == 20
    both = tuple(
        Component(name, 1, requirements({"cpu": cpu, "example.com/gpu": "1"}))
        for name, cpu in (("a", "1"), ("b", "2"))
    )
    assert world.asked(ComponentSetsRequest("c", both)).value == 10  # one of each on every node


def test_devices_that_nobody_knows_of_are_no_zero():
    world = World()
    world.put(kinds.DEVICE_CLASSES, DeviceClass, device_class())
    answer = world.asked(ReplicasRequest("c", requirements({"cpu": "1", CLASS: "1"})))

    assert answer.code is EstimateCode.UNKNOWN
    assert "cannot tell: resource claims" in answer.reasons[0]


def test_devices_that_are_known_and_do_not_suffice_are_a_zero():
    world = with_devices()
    answer = world.asked(ReplicasRequest("c", requirements({"cpu": "5", CLASS: "1"})))

    assert (answer.code, answer.value) == (EstimateCode.SUCCESS, 0)


def test_what_drivers_published_is_known_after_the_node_is_gone():
    world = with_devices()
    asked = {CLASS.replace("/", "__"): "1"}
    assert world.replicas(cpu="1", **asked) == 18
    for kind, name in (
        (kinds.NODES, "n1"),
        (kinds.NODECLAIMS, "pool-n1"),
        (kinds.RESOURCE_SLICES, "n1-gpu"),
    ):
        world.told.drop(kind, name)

    assert world.replicas(cpu="1", **asked) == 20


def test_claims_of_pods_do_not_compile_pools_again():
    world = with_devices()
    world.replicas(cpu="1")
    compiled = world.provider.moment(world.told.snapshot()).new
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "w", "uid": "u", "controller": True}
    meta = {"name": "w-gpu", "namespace": "default", "ownerReferences": [owner]}
    raw = {"metadata": meta, "spec": template()["spec"]["spec"]}
    world.put(kinds.RESOURCE_CLAIMS, ResourceClaim, raw)
    assert world.provider.moment(world.told.snapshot()).new is compiled

    world.put(kinds.CLAIM_TEMPLATES, ResourceClaimTemplate, template(devices=2))
    assert world.provider.moment(world.told.snapshot()).new is not compiled


def test_a_claim_of_its_own_compiles_pools_again():
    """Whoever names it may go where it is, and nowhere else."""
    world = with_devices()
    compiled = world.provider.moment(world.told.snapshot()).new
    raw = {"metadata": {"name": "shared", "namespace": "default"}, "spec": template()["spec"]["spec"]}
    world.put(kinds.RESOURCE_CLAIMS, ResourceClaim, raw)

    assert world.provider.moment(world.told.snapshot()).new is not compiled


def test_what_existing_nodes_have_is_told_although_new_ones_are_not_known():
    """Its node is of no type that the pool launches."""
    world = with_devices()
    world.told.drop(kinds.PODS, "full", "default")
    there = node("n1", initialized=True)
    there.metadata.labels[TYPE] = "other"
    world.told.put(kinds.NODES, there)
    answer = world.asked(ReplicasRequest("c", requirements({"cpu": "1", CLASS: "1"})))

    assert (answer.code, answer.value) == (EstimateCode.SUCCESS, 2)


def test_pods_of_buffers_fail_no_pool_by_its_limits():
    """They wait in the room, and for nobody."""
    world = World()
    world.buffer(3)
    provider = KarpenterLimitsProvider(At(), failure_threshold_seconds=-1)
    question = EstimateQuestion(ReplicasRequest("c", requirements({"cpu": "1"})), world.told.snapshot())

    assert not [part.reasons for part in provider.estimate(question).parts if part.reasons]
