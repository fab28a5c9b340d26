"""The GPU agent: what NVML says of a machine, and the objects that others find it in."""

import json

import pytest

from karpool.gpu.agent.agent import GpuAgent
from karpool.gpu.agent.gpu_objects import PublishedNode, gpu_object, writes_for
from karpool.gpu.agent.machine import Machine, MachineInstance, NoNvml, read_machine
from karpool.gpu.agent.options import GpuAgentOptions
from karpool.manager.manager import Manager
from karpool.manager.options import InvalidOptions
from karpool.model.devices.device import PUBLISHED_BY, GpuObject, from_object
from karpool.model.devices.links import LINKS_ANNOTATION
from karpool.model.kubernetes.api_resources import CRDS, GPUS, NODES
from karpool.model.kubernetes.meta import decode
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.gpu.nvml import Card, Nvml

NODE = PublishedNode("gpu-1", "host-1", "shared")
OTHER = Card(uuid="GPU-00000000-0000-0000-0000-000000000002", bus="00000000:00:07.0")


def machine_of(*cards: Card) -> Machine:
    nvml = Nvml(*cards)
    machine = read_machine(nvml)
    assert nvml.open == 0, "the library is left as it was found"
    return machine


def test_a_card_is_named_measured_and_healthy() -> None:
    (gpu,) = machine_of(Card()).devices
    assert (gpu.model, gpu.memory_bytes, gpu.compute_capability) == ("H200-SXM-141GB", 150_754_820_096, "9.0")
    assert gpu.mig_enabled is False
    assert gpu.healthy
    assert gpu.links == ()


def test_instances_stand_at_their_places() -> None:
    sliced = Card(mig=(1, 1), instances=[("3g.71gb", 4, 4, 71424), ("1g.35gb", 0, 2, 33280)])
    (gpu,) = machine_of(sliced).devices
    assert gpu.mig_enabled
    assert gpu.instances == (
        MachineInstance("MIG-0", "3g.71gb", 71424 * 2**20, 4, 4),
        MachineInstance("MIG-1", "1g.35gb", 33280 * 2**20, 0, 2),
    )


def test_a_card_without_mig_does_not_answer_and_is_no_worse_for_it() -> None:
    (gpu,) = machine_of(Card(mig=None, name=b"Tesla T4", memory=15360 * 2**20)).devices
    assert (gpu.model, gpu.mig_enabled, gpu.healthy) == ("T4", None, True)


def test_nvlink_is_told_with_its_lanes_and_others_with_their_distance() -> None:
    joined = Card(nvlink={OTHER.bus: 18})
    machine = machine_of(joined, OTHER)
    assert [(link.peer, link.path) for link in machine.devices[0].links] == [(OTHER.uuid, "NV18")]
    assert [link.path for link in machine.devices[1].links] == ["NODE"]


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        (Card(uncorrected=3), "3 memory errors"),
        (Card(remapped=(0, 0, 0, 1)), "should be replaced"),
        (Card(remapped=(0, 0, 1, 0)), "wait for a reset"),
        (Card(lost=True), "NVML error 15"),
    ],
)
def test_damage_is_said_and_the_others_are_read_all_the_same(card: Card, problem: str) -> None:
    sick, well = machine_of(card, OTHER).devices
    assert not sick.healthy
    assert any(problem in text for text in sick.problems)
    assert well.model == "H200-SXM-141GB"


def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(NoNvml, match="does not answer"):
        read_machine(Nvml(driver=False))
    with pytest.raises(NoNvml, match="the limit is 64"):
        read_machine(Nvml(count=10**6))


def test_the_object_is_one_that_karpool_reads() -> None:
    (gpu, _) = machine_of(Card(nvlink={OTHER.bus: 18}), OTHER).devices
    published = gpu_object(gpu, NODE)
    assert published is not None
    assert json.loads(published["metadata"]["annotations"][LINKS_ANNOTATION]) == {OTHER.uuid: "NV18"}
    device = from_object(decode(published, GpuObject))
    assert (device.node, device.owner, device.pool, device.phase) == ("host-1", "gpu-1", "shared", "Running")
    assert device.capacity is not None
    assert device.capacity.tflops_milli == 989_500
    assert device.capacity.vram_bytes == 150_754_820_096


def test_nothing_is_written_twice_and_what_is_gone_is_unknown() -> None:
    both = machine_of(Card(), OTHER)
    existing = [dict(gpu) for gpu in writes_for(both, NODE, ()).created]
    assert not writes_for(both, NODE, existing).created
    assert not writes_for(both, NODE, existing).changed

    writes = writes_for(machine_of(Card()), NODE, existing)
    assert [gpu["metadata"]["name"] for gpu in writes.changed] == [OTHER.uuid.lower()]
    assert writes.changed[0]["status"] == {"phase": "Unknown"}

    (sick,) = writes_for(machine_of(Card(uncorrected=1), OTHER), NODE, existing).changed
    assert sick["status"]["phase"] == "Unknown"


def test_a_node_or_once_is_required() -> None:
    with pytest.raises(InvalidOptions, match="--node-name"):
        GpuAgentOptions()
    assert GpuAgentOptions(once=True).output == "table"


GPU_KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gpus.tensor-fusion.ai"},
    "spec": {
        "group": "tensor-fusion.ai",
        "scope": "Cluster",
        "names": {"plural": "gpus", "singular": "gpu", "kind": "GPU", "listKind": "GPUList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


def test_objects_are_published_once_and_never_over_others() -> None:
    async def story() -> None:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            client = cluster.client("agent")
            labels = {"kubernetes.io/hostname": "host-1", "karpenter.sh/nodepool": "gpus"}
            await client.create(NODES, {"metadata": {"name": "gpu-1", "labels": labels}})
            card = Card()
            agent = Manager.of(
                client,
                lambda environment: GpuAgent(
                    environment, GpuAgentOptions(node_name="gpu-1"), lambda: read_machine(Nvml(card))
                ),
            ).runnable

            assert "not served here" in await agent.publish()
            await client.create(CRDS, GPU_KIND)
            assert await agent.publish() == "1 GPUs of node gpu-1 are published"
            (gpu,) = (await client.list(GPUS, into=dict)).items
            assert gpu["status"]["phase"] == "Running"
            assert gpu["status"]["available"] == gpu["status"]["capacity"]
            assert gpu["metadata"]["labels"]["tensor-fusion.ai/gpupool"] == "gpus"

            await agent.publish()
            (again,) = (await client.list(GPUS, into=dict)).items
            assert again["metadata"]["resourceVersion"] == gpu["metadata"]["resourceVersion"]

            card.uncorrected = 1
            assert "not healthy" in await agent.publish()
            (sick,) = (await client.list(GPUS, into=dict)).items
            assert sick["status"]["phase"] == "Unknown"
            assert "memory errors" in sick["status"]["message"]

            card.uncorrected = 0
            await client.patch(
                GPUS, gpu["metadata"]["name"], {"metadata": {"annotations": {PUBLISHED_BY: None}}}
            )
            assert "another component" in await agent.publish()
            (theirs,) = (await client.list(GPUS, into=dict)).items
            assert theirs["status"]["phase"] == "Unknown", "what others own is left alone"

    run_manual(story())
