"""Pods that another system serves and has no device for bring their node, and the system gives it out."""

import asyncio
from typing import Any

import pytest

from karpool.gpu.controller.mode import ScalerMode
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.model.devices.systems import HANDED_OUT_BY, GpuSystem
from karpool.model.karpenter.objects import NODEPOOL
from karpool.model.kubernetes.api_resources import EVENTS, NODES, PODS, RESOURCESLICES, ListOptions
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import INSTANCE_TYPE, Node
from karpool_fleet.clusters.live import LiveCluster
from tests.fleet.living import claims, nodes, until
from tests.gpu.whole import Object, Story, tell

TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
OTHER = "other-scheduler"


def pool(name: str, *types: str, labels: dict[str, str] | None = None) -> Object:
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
    ]
    node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    spec = {"nodeClassRef": node_class, "taints": [TAINT], "requirements": requirements}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"metadata": {"labels": labels or {}}, "spec": spec}},
    }


def pod(
    name: str,
    resources: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    scheduler: str = OTHER,
    **spec: Any,
) -> Object:
    needs = {"cpu": "500m", "memory": "1Gi", **(resources or {})}
    devices = {key: value for key, value in needs.items() if "/" in key}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "spec": {
            "schedulerName": scheduler,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "model:1", "resources": {"requests": needs, "limits": devices}}
            ],
            **spec,
        },
    }


class System:
    """Another scheduler, played by hand: it says that it has no room, and binds when the node shows."""

    def __init__(self, told: Story) -> None:
        self.told = told

    async def refuse(self, *names: str) -> None:
        for name in names:
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
            await self.told.client.patch(
                PODS,
                name,
                {"status": {"conditions": [said]}},
                namespace="default",
                how="strategic",
                subresource="status",
            )

    async def show(
        self, node: str, status: dict[str, str], annotations: dict[str, str] | None = None
    ) -> None:
        client = self.told.client
        if annotations:
            await client.patch(NODES, node, {"metadata": {"annotations": annotations}})
        patch = {"status": {"capacity": status, "allocatable": status}}
        await client.patch(NODES, node, patch, subresource="status")

    async def bind(self, node: str, *names: str) -> None:
        for name in names:
            uid = (await self.told.pod(name)).metadata.uid
            await self.told.client.bind(name, node, namespace="default", uid=uid)


async def ready_nodes(cluster: LiveCluster) -> list[Node]:
    return [node for node in await nodes(cluster) if node.is_ready]


async def states(told: Story) -> set[str]:
    return {record["status"]["state"] for record in await told.records() if "status" in record}


HAMI_REGISTER = (
    '[{"id":"GPU-1","count":10,"devmem":23034,"devcore":100,"type":"NVIDIA-NVIDIA L4","health":true}]'
)

DIALECTS = {
    "hami": (
        pool("gpu", "g6.xlarge"),
        [pod(f"p-{n}", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}) for n in range(2)],
        {"nvidia.com/gpu": "10"},
        {"hami.io/node-nvidia-register": HAMI_REGISTER},
    ),
    "kai": (
        pool("gpu", "g6.xlarge"),
        [pod(f"p-{n}", annotations={"gpu-fraction": "0.5"}) for n in range(2)],
        {"nvidia.com/gpu": "1"},
        {},
    ),
    "volcano": (
        pool("gpu", "g6.xlarge"),
        [pod(f"p-{n}", {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "8000"}) for n in range(2)],
        {"volcano.sh/vgpu-number": "10"},
        {"volcano.sh/node-vgpu-register": "GPU-1,10,23034,NVIDIA-L4,true:"},
    ),
    "mig": (
        pool("gpu", "p4d.24xlarge", labels={"nvidia.com/mig.config": "all-1g.5gb"}),
        [pod(f"p-{n}", {"nvidia.com/mig-1g.5gb": "2"}) for n in range(2)],
        {"nvidia.com/mig-1g.5gb": "56"},
        {},
    ),
    "time-slices": (
        pool("gpu", "g6.xlarge", labels={"nvidia.com/gpu.replicas": "4"}),
        [pod(f"p-{n}", {"nvidia.com/gpu.shared": "2"}) for n in range(2)],
        {"nvidia.com/gpu.shared": "4"},
        {},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("system", sorted(DIALECTS))
def test_two_pods_of_another_system_bring_one_node_and_are_left_to_it(system: str) -> None:
    node_pool, pods, shows, annotations = DIALECTS[system]
    names = [each["metadata"]["name"] for each in pods]

    async def story(told: Story) -> None:
        other = System(told)
        await told.add(*pods)
        await asyncio.sleep(60)
        assert not await told.smart_pods(), "nobody said yet that there is no room"

        await other.refuse(*names)
        assert await until(lambda: _any(ready_nodes(told.cluster)), within=400)
        (node,) = await nodes(told.cluster)
        await asyncio.sleep(40)
        # KAI shares what the vendor's plugin shows, and the embedded kubelet plays that.
        assert system == "kai" or await told.smart_pods(), "the devices are not there yet"
        await other.show(node.name, shows, annotations)
        assert await until(lambda: _none(told.smart_pods()), within=60)
        assert await states(told) == {"HandingOff"}
        await other.bind(node.name, *names)
        assert await until(told.clean, within=60)

        await asyncio.sleep(200)
        assert len(await claims(told.cluster)) == 1
        for name in names:
            served = await told.pod(name)
            assert "tensor-fusion.ai/gpu-ids" not in served.annotations
            said = condition(served.status.conditions, "PodScheduled")
            assert said is None or said.reason in ("Unschedulable", "", None)

    tell(story, node_pool)


async def _any(found: Any) -> bool:
    return bool(await found)


async def _none(found: Any) -> bool:
    return not await found


# Claims


def device_class() -> Object:
    text = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": text}}]},
    }


def claim_template(name: str, expression: str, count: int = 1) -> Object:
    exactly = {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def claiming(name: str, template: str) -> Object:
    claim = {"name": "gpu", "resourceClaimTemplateName": template}
    return pod(name, scheduler="default-scheduler", resourceClaims=[claim])


def resource_slice(node: str, gpus: int, memory: str = "23034Mi") -> Object:
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}},
            "capacity": {"memory": {"value": memory}},
        }
        for index in range(gpus)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": devices,
        },
    }


BIG = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('20Gi')) >= 0"


def test_claims_bring_one_node_with_enough_devices_and_the_scheduler_allocates_them() -> None:
    async def story(told: Story) -> None:
        names = [f"claiming-{number}" for number in range(3)]
        await told.add(*(claiming(name, "big") for name in names))

        assert await until(lambda: _any(ready_nodes(told.cluster)), within=400)
        (node,) = await nodes(told.cluster)
        assert node.labels[INSTANCE_TYPE] == "g6.12xlarge"
        await asyncio.sleep(60)
        assert await told.smart_pods(), "the driver has published nothing yet"
        assert not await told.bound(*names)

        await told.client.create(RESOURCESLICES, resource_slice(node.name, 4))
        assert await until(lambda: told.bound(*names), within=120)
        assert await until(told.clean, within=120)
        assert len(await claims(told.cluster)) == 1

    tell(story, pool("gpu", "g6.12xlarge"), device_class(), claim_template("big", BIG))


def test_claims_go_to_the_pool_that_is_labelled_for_drivers_not_to_one_that_says_nothing() -> None:
    async def story(told: Story) -> None:
        await told.add(claiming("claiming", "big"))
        assert await until(lambda: _any(claims(told.cluster)), within=400)
        (claim,) = await claims(told.cluster)
        assert claim.labels[NODEPOOL] == "drivers"

    labels = {HANDED_OUT_BY: GpuSystem.DRA.value}
    pools = (pool("silent", "g6.xlarge"), pool("drivers", "g6.12xlarge", labels=labels))
    tell(story, *pools, device_class(), claim_template("big", BIG))


@pytest.mark.long
def test_a_claim_that_no_model_can_meet_brings_nothing_and_says_why() -> None:
    huge = BIG.replace("20Gi", "200Gi")

    async def story(told: Story) -> None:
        await told.add(claiming("hopeless", "huge"), claiming("modest", "big"))
        assert await until(lambda: _any(ready_nodes(told.cluster)), within=400)
        await asyncio.sleep(60)
        events = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        reasons = {event["reason"] for event in events if event["involvedObject"]["name"] == "hopeless"}
        assert "NeverFits" in reasons
        assert len(await nodes(told.cluster)) == 1

    objects = (device_class(), claim_template("big", BIG), claim_template("huge", huge))
    tell(story, pool("gpu", "g6.xlarge"), *objects)


def test_a_selector_that_does_not_compile_is_named_and_stops_nobody_else() -> None:
    async def story(told: Story) -> None:
        await told.add(claiming("broken", "broken"), claiming("lost", "nowhere"), claiming("modest", "big"))
        assert await until(lambda: _any(ready_nodes(told.cluster)), within=400)
        await asyncio.sleep(60)
        events = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        texts = {
            event["involvedObject"]["name"]: event["message"]
            for event in events
            if event["reason"] == "NeverFits"
        }
        assert "device.capacity[" in texts["broken"]
        assert "nowhere not found" in texts["lost"]
        assert len(await claims(told.cluster)) == 1

    # Slices that contradict themselves are nobody's devices, and hold up nobody.
    mixed = resource_slice("gone", 1)
    mixed["spec"]["pool"].update(generation=2, resourceSliceCount=2)
    negative = resource_slice("away", 1, memory="-1Gi")
    objects = (device_class(), claim_template("big", BIG), claim_template("broken", "device.capacity["))
    tell(
        story,
        pool("gpu", "g6.xlarge"),
        *objects,
        resource_slice("gone", 1) | {"metadata": {"name": "old"}},
        mixed,
        negative,
    )


def test_devices_that_a_class_offers_as_a_resource_are_counted() -> None:
    """Two of them do not fit on a machine with one."""
    asked = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"}

    async def story(told: Story) -> None:
        await told.add(pod("pair", asked, scheduler="default-scheduler"))
        assert await until(lambda: _any(ready_nodes(told.cluster)), within=400)
        (node,) = await nodes(told.cluster)
        assert node.labels[INSTANCE_TYPE] == "g6.12xlarge"
        await told.client.create(RESOURCESLICES, resource_slice(node.name, 4))
        assert await until(lambda: told.bound("pair"), within=120)

    tell(story, pool("gpu", "g6.xlarge", "g6.12xlarge"), device_class())


def test_a_pod_of_our_scheduler_with_claims_is_told_who_allocates_them() -> None:
    async def story(told: Story) -> None:
        own = [{"name": "gpu", "resourceClaimTemplateName": "big"}]
        await told.add(pod("ours", scheduler="karpool-gpu-scheduler", resourceClaims=own))
        await asyncio.sleep(60)
        assert not await told.bound("ours") and not await claims(told.cluster)
        events = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        (text,) = {event["message"] for event in events if event["reason"] == "BadRequest"}
        assert "kube-scheduler" in text

    tell(story, pool("gpu", "g6.xlarge"), device_class(), claim_template("big", BIG))


def test_a_full_node_with_spare_cpu_does_not_take_the_smart_pod() -> None:
    async def story(told: Story) -> None:
        other = System(told)
        shares = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"}
        for number in range(2):
            name = f"share-{number}"
            await told.add(pod(name, shares))
            await other.refuse(name)
            assert await until(lambda n=number: _count(ready_nodes(told.cluster), n + 1), within=400)
            taken = {(await told.pod(f"share-{before}")).spec.node_name for before in range(number)}
            (fresh,) = [node for node in await nodes(told.cluster) if node.name not in taken]
            await other.show(fresh.name, *DIALECTS["hami"][2:])
            assert await until(lambda: _none(told.smart_pods()), within=60)
            await other.bind(fresh.name, name)
            assert await until(told.clean, within=60)
        assert len(await claims(told.cluster)) == 2

    tell(story, pool("gpu", "g6.xlarge"))


def test_a_node_that_its_system_does_not_use_is_not_bought_twice() -> None:
    async def story(told: Story) -> None:
        other = System(told)
        await told.add(pod("left", annotations={"gpu-fraction": "0.5"}))
        await other.refuse("left")
        assert await until(lambda: _any(ready_nodes(told.cluster)), within=400)
        await asyncio.sleep(900)
        events = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        reasons = {event["reason"] for event in events if event["involvedObject"]["name"] == "left"}
        assert len(await claims(told.cluster)) <= 2
        assert reasons & {"ScaleUpRejected", "ScaleUpBackoff", "CandidatesExhausted"}

    tell(story, pool("gpu", "g6.xlarge"))


@pytest.mark.parametrize(
    ("why", "node_pool", "request_"),
    [
        ("nvidia.com/mig.config", pool("gpu", "p4d.24xlarge"), {"nvidia.com/mig-1g.5gb": "1"}),
        ("has no profile", pool("gpu", "g6.xlarge"), {"nvidia.com/mig-1g.5gb": "1"}),
        ("nvidia.com/gpu.replicas", pool("gpu", "g6.xlarge"), {"nvidia.com/gpu.shared": "1"}),
        (
            "allocated by kai",
            pool("gpu", "g6.xlarge", labels={"gpu.karpool.dev/handed-out-by": "kai"}),
            {"nvidia.com/gpumem": "100"},
        ),
        (
            "GPU pool ours",
            pool("gpu", "g6.xlarge", labels={"tensor-fusion.ai/gpupool": "ours"}),
            {"nvidia.com/gpumem": "100"},
        ),
    ],
)
def test_what_nobody_tells_of_new_nodes_is_refused_by_name(
    why: str, node_pool: Object, request_: dict[str, str]
) -> None:
    async def story(told: Story) -> None:
        await told.add(pod("asking", request_))
        await System(told).refuse("asking")
        await asyncio.sleep(120)
        events = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        texts = [event["message"] for event in events if event["involvedObject"]["name"] == "asking"]
        assert any(why in text for text in texts), texts
        assert not await claims(told.cluster)

    tell(story, node_pool)


def test_the_mode_says_for_whom_it_works() -> None:
    async def story(told: Story) -> None:
        await told.add(pod("theirs", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}))
        await System(told).refuse("theirs")
        await asyncio.sleep(120)
        assert not await claims(told.cluster)

    tell(story, pool("gpu", "g6.xlarge"), options=GpuScalerOptions(mode=ScalerMode.ALLOCATE))


async def _count(found: Any, number: int) -> bool:
    return len(await found) >= number
