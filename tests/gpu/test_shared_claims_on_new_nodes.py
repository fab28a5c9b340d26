"""Claims that several pods use, and devices that several nodes share, where nodes are still to come."""

from dataclasses import replace

from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.node_bins import BinPacking, fresh_bin
from karpool.gpu.scale_up.system_nodes import SystemNodes
from karpool.model.catalogue.files import load_shipped
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.request import GpuRequest
from karpool.model.devices.systems import GpuSystem
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import ClaimReference, PodShape
from karpool.packing.dra.driver_templates import NEW_NODE
from tests.estimator.test_would_fit_if_these_went import CLASS, EXACTLY, SPEC, TEMPLATE, device_slice

BRINGS = NodeYield(2, 0, 0, 4000, 2**34)


def named(name):
    meta = {"name": name, "namespace": "team"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": SPEC}


def drivers(*objects):
    cluster = Cluster(Aspect.ROOM | Aspect.DRA)
    cluster.load([CLASS, TEMPLATE, *objects], 0.0)
    return cluster.snapshot(0.0).room.dra


def worker(uid, claim="", cpu=1000):
    reference = ClaimReference("gpu", claim, "" if claim else "one")
    shape = PodShape((("cpu", cpu),), namespace="team", resource_claims=(reference,))
    return WaitingWorker(
        GpuRequest(uid=uid, cpu_milli=cpu, memory_bytes=0, count=1), 0.0, shape=shape, system=GpuSystem.DRA
    )


def packed(state, *items):
    packing = BinPacking()
    for item in items:
        packing.put_all(
            [item],
            lambda other: fresh_bin(f"fresh-{len(packing.bins)}", BRINGS, lambda *_: True, drivers=state),
        )
    return [[placement.item.uid for placement in bin_.placed] for bin_ in packing.bins]


def test_pods_that_share_a_claim_share_its_devices():
    """Three pods use one device; a fourth has a claim of its own."""
    state = drivers(device_slice(NEW_NODE, 2), named("shared"))

    nodes = packed(state, *(worker(uid, "shared") for uid in "abc"), worker("d"))

    assert nodes == [["a", "b", "c", "d"]]


def test_one_for_whom_the_node_of_the_claim_has_no_room_opens_no_other():
    """There it would find no claim: the devices are on the first."""
    state = drivers(device_slice(NEW_NODE, 2), named("shared"), named("other"))

    nodes = packed(
        state, worker("a", "shared", 3000), worker("b", "shared", 3000), worker("c", "other", 3000)
    )

    assert nodes == [["a"], ["c"]]


def test_devices_that_several_nodes_share_are_not_counted_on_each_new_node():
    """A g6.xlarge has one GPU of its own; the claim asks for two devices of any kind."""
    attached = device_slice("elsewhere", 4)
    del attached["spec"]["nodeName"]
    attached["spec"]["allNodes"] = True
    request = {"name": "r", "exactly": {**EXACTLY, "deviceClassName": "any", "count": 2}}
    pair = {"spec": {"devices": {"requests": [request]}}}
    objects = [
        attached,
        {**CLASS, "metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
        {**TEMPLATE, "metadata": {"name": "pair", "namespace": "team"}, "spec": pair},
    ]
    nodes = SystemNodes(drivers=drivers(*objects))
    item = worker("w")
    item = replace(item, shape=replace(item.shape, resource_claims=(ClaimReference("gpu", "", "pair"),)))

    refusal = nodes.refusal(item, CompiledPool("gpu"), load_shipped("us-east-1").types["g6.xlarge"])
    larger = nodes.refusal(item, CompiledPool("gpu"), load_shipped("us-east-1").types["g6.12xlarge"])

    assert refusal.startswith("an empty g6.xlarge does not hold it")
    assert larger == ""
