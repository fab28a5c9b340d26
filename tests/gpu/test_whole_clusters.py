"""Fractions in whole embedded clusters: a node comes, its placeholder goes, the request is served."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from karpool.gpu.controller.metrics import ScaleUpMetrics
from karpool.model.devices.gpu_quota import QUOTAS
from karpool.model.kubernetes.api_resources import CRDS, EVENTS, NODES, PODS, ListOptions
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import INSTANCE_TYPE
from tests.fleet.living import claims, nodes, until
from tests.gpu.whole import COMPONENT, Object, Story, gpu_pool, tell, worker


async def told_reason(told: Story, name: str) -> str:
    said = condition((await told.pod(name)).status.conditions, "PodScheduled")
    return (said.reason or "") if said else ""


def test_a_fraction_brings_a_node_and_is_served() -> None:
    registry = CollectorRegistry()

    async def story(told: Story) -> None:
        await told.add(worker("infer"))

        assert await until(lambda: told.bound("infer"), within=400)
        assert await until(told.clean, within=60)

        (node,) = await nodes(told.cluster)
        pod = await told.pod("infer")
        assert pod.spec.node_name == node.name
        assert pod.annotations["tensor-fusion.ai/gpu-ids"] == f"{node.name}-gpu-0"
        assert node.labels[INSTANCE_TYPE] == "g6.xlarge"
        assert len(await claims(told.cluster)) == 1
        await asyncio.sleep(60)
        said = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        about = [each["reason"] for each in said if each["involvedObject"]["name"] == "infer"]
        assert {"NodeRequested", "NodeComing"} & set(about)

    tell(story, gpu_pool("gpu", "g6.xlarge"), metrics=ScaleUpMetrics(registry, original_names=True))

    sample = {"pool": "shared", "model": "*"}
    assert registry.get_sample_value("karpool_gpu_smart_pods_created_total", sample) == 1
    assert registry.get_sample_value("tensor_fusion_smart_pods_created_total", sample) == 1
    assert registry.get_sample_value("karpool_gpu_smart_pods_active", sample) == 0
    gone = {**sample, "reason": "node-ready"}
    assert registry.get_sample_value("karpool_gpu_smart_pods_deleted_total", gone) == 1


def test_fractions_share_devices_and_a_full_node_brings_the_next() -> None:
    async def story(told: Story) -> None:
        first = [f"infer-{number}" for number in range(3)]
        await told.add(*(worker(name, vram="7Gi") for name in first))
        assert await until(lambda: told.bound(*first), within=400)
        assert await until(told.clean, within=60)
        assert len(await nodes(told.cluster)) == 1

        await told.add(worker("one-more", vram="7Gi"))
        assert await until(lambda: told.bound("one-more"), within=400)
        assert await until(told.clean, within=60)

        assert len(await nodes(told.cluster)) == 2
        await told.client.delete(PODS, "infer-1", namespace="default")
        await asyncio.sleep(40)
        await told.add(worker("in-its-place", vram="7Gi"))
        assert await until(lambda: told.bound("in-its-place"), within=30)
        assert len(await nodes(told.cluster)) == 2
        assert len(await claims(told.cluster)) == 2

    tell(story, gpu_pool("gpu", "g6.xlarge"))


def test_what_can_never_fit_buys_nothing_and_stops_nobody() -> None:
    bad = {
        "too-big": worker("too-big", vram="500Gi"),
        "no-such-model": worker("no-such-model", gpu_model="Z9000"),
        "negative": worker("negative", vram="-4Gi"),
        "garbage": worker("garbage", gpu_count="many"),
        "no-such-pool": worker("no-such-pool", gpupool="nowhere"),
        "too-much-cpu": worker("too-much-cpu", cpu="900"),
    }

    async def story(told: Story) -> None:
        await told.add(*bad.values())
        await asyncio.sleep(120)
        reasons = {name: await told_reason(told, name) for name in bad}
        assert reasons == {
            "too-big": "NeverFits",
            "no-such-model": "NeverFits",
            "negative": "BadRequest",
            "garbage": "BadRequest",
            "no-such-pool": "NeverFits",
            "too-much-cpu": "NeverFits",
        }
        said = condition((await told.pod("no-such-model")).status.conditions, "PodScheduled")
        assert said is not None and "one GPU Z9000 with" in str(said.message)
        assert not await claims(told.cluster)
        assert await told.clean()

        await told.add(worker("fine"))
        assert await until(lambda: told.bound("fine"), within=400)
        assert len(await claims(told.cluster)) == 1

    tell(story, gpu_pool("gpu", "g6.xlarge", "g5.xlarge"))


@pytest.mark.long
def test_a_gang_starts_together_on_several_nodes() -> None:
    members = [f"train-{number}" for number in range(3)]
    gang = {"gang_enabled": "true", "gang_min_members": "3", "gang_desired_members": "3"}

    async def story(told: Story) -> None:
        pods = [worker(name, vram="20Gi", gang_required_members="3", **gang) for name in members]
        for pod in pods:
            pod["metadata"]["labels"] = {"tensor-fusion.ai/workload": "train"}
        await told.add(*pods[:2])
        await asyncio.sleep(120)
        assert not await claims(told.cluster), "nothing is bought for a part of a gang"

        await told.add(pods[2])
        assert await until(lambda: told.bound(*members), within=600)
        assert await until(told.clean, within=60)
        assert len(await nodes(told.cluster)) == 3

    tell(story, gpu_pool("gpu", "g6.xlarge"))


@pytest.mark.long
def test_the_request_vanishes_and_so_does_everything_made_for_it() -> None:
    async def story(told: Story) -> None:
        await told.add(worker("brief"))

        async def asked() -> bool:
            return bool(await told.smart_pods())

        assert await until(asked, within=60)
        await told.client.delete(PODS, "brief", namespace="default")

        assert await until(told.clean, within=120)

    tell(story, gpu_pool("gpu", "g6.xlarge"))


def quota_kind() -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"kind": "GPUResourceQuota", "plural": "gpuresourcequotas", "singular": "gpuresourcequota"}
    return {
        "metadata": {"name": "gpuresourcequotas.tensor-fusion.ai"},
        "spec": {
            "group": "tensor-fusion.ai",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


@pytest.mark.long
def test_a_quota_is_kept_before_anything_is_bought() -> None:
    names = [f"infer-{number}" for number in range(4)]

    async def story(told: Story) -> None:
        await asyncio.sleep(600)  # long enough for nobody to expect the kind any more
        await told.client.create(CRDS, quota_kind())
        quota = {"total": {"requests": {"vram": "16Gi", "tflops": "1000"}}}
        await told.client.create(
            QUOTAS, {"metadata": {"name": "gpus", "namespace": "default"}, "spec": quota}
        )
        await asyncio.sleep(1)
        await told.add(*(worker(name) for name in names))
        await asyncio.sleep(300)

        assert len(await nodes(told.cluster)) == 1
        waiting = [name for name in names if not (await told.pod(name)).spec.node_name]
        assert [await told_reason(told, name) for name in waiting] == ["QuotaExceeded"] * 2
        assert await told.clean()

    tell(story, gpu_pool("gpu", "g6.xlarge"))


def test_little_left_of_a_quota_is_told_on_the_quota_and_measured() -> None:
    registry = CollectorRegistry()

    async def story(told: Story) -> None:
        await told.client.create(CRDS, quota_kind())
        quota = {"total": {"requests": {"vram": "16Gi", "tflops": "1000"}, "alertThresholdPercent": 40}}
        await told.client.create(
            QUOTAS, {"metadata": {"name": "gpus", "namespace": "default"}, "spec": quota}
        )
        await asyncio.sleep(90)
        await told.add(worker("infer"))
        assert await until(lambda: told.bound("infer"), within=400)
        await asyncio.sleep(60)
        said = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        alerts = [each for each in said if each["reason"] == "QuotaAlert"]
        assert [each["involvedObject"]["name"] for each in alerts] == ["gpus"]
        assert "total.max.vram.request 50.00 %" in alerts[0]["message"]
        kept = await told.client.get(QUOTAS, "gpus", namespace="default")
        used = kept["status"]["used"]
        assert (used["requests"]["vram"], used["workers"]) == (str(8 * 2**30), 1)
        assert kept["status"]["availablePercent"]["requests"]["vram"] == "50.00"
        version = kept["metadata"]["resourceVersion"]
        await asyncio.sleep(600)
        again = await told.client.get(QUOTAS, "gpus", namespace="default")
        assert again["metadata"]["resourceVersion"] == version, "what it says already is not written again"

    tell(story, gpu_pool("gpu", "g6.xlarge"), metrics=ScaleUpMetrics(registry))

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(name, labels) or 0.0

    memory = {"namespace": "default", "resource": "total.max.vram.request"}
    assert value("karpool_gpu_quota_available_percent", **memory) == 50.0
    assert value("karpool_gpu_quota_alert", namespace="default") == 1
    capacity, available = (
        value("karpool_gpu_pool_vram_bytes", pool="shared", of=of) for of in ("capacity", "available")
    )
    assert capacity - available == 8 * 2**30


def test_a_running_pod_is_resized_by_its_annotations() -> None:
    async def story(told: Story) -> None:
        await told.add(worker("infer", vram="4Gi", isolation="hard", tflops_limit="20"))
        assert await until(lambda: told.bound("infer"), within=400)
        assert await until(told.clean, within=60)
        limit = (await told.pod("infer")).annotations["gpu.karpool.dev/hard-limit-percent"]
        assert 1 <= int(limit) < 100

        async def ask_for(vram: str) -> int:
            """What it has of its device after it asked for this much."""
            change = {"metadata": {"annotations": {"tensor-fusion.ai/vram-request": vram}}}
            await told.client.patch(PODS, "infer", change, namespace="default")
            await asyncio.sleep(5)
            assert told.scaler is not None
            (entry,) = told.scaler.desk.allocator.ledger.committed.values()
            return entry.taken[0].amount.vram_bytes

        assert await ask_for("20Gi") == 20 * 2**30
        assert await ask_for("200Gi") == 20 * 2**30
        await asyncio.sleep(60)
        said = (await told.client.list(EVENTS, ListOptions(namespace="default"))).items
        refused = [each["involvedObject"]["name"] for each in said if each["reason"] == "ResizeRefused"]
        assert refused == ["infer"]

    tell(story, gpu_pool("gpu", "g6.xlarge"))


def test_pods_stay_away_from_nodes_that_they_do_not_tolerate_or_want() -> None:
    async def story(told: Story) -> None:
        await told.add(worker("first"))
        assert await until(lambda: told.bound("first"), within=400)
        (node,) = await nodes(told.cluster)

        touchy, elsewhere = worker("touchy"), worker("elsewhere")
        del touchy["spec"]["tolerations"]
        elsewhere["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": "no-such-zone"}
        await told.add(touchy, elsewhere)
        await told.client.patch(NODES, node.name, {"spec": {"unschedulable": True}})
        await told.add(worker("second"))

        assert await until(lambda: told.bound("second"), within=400)
        assert (await told.pod("second")).spec.node_name != node.name
        assert await told_reason(told, "touchy") == "NeverFits"
        said = condition((await told.pod("touchy")).status.conditions, "PodScheduled")
        assert said is not None
        assert "does not tolerate its taint nvidia.com/gpu" in (said.message or "")
        assert await told_reason(told, "elsewhere") == "NeverFits"

    tell(story, gpu_pool("gpu", "g6.xlarge"))


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_that_jumps_ends_nothing_early_and_keeps_nothing(seconds: float) -> None:
    async def story(told: Story) -> None:
        await told.add(worker("infer"))

        async def asked() -> bool:
            return bool(await told.smart_pods())

        assert await until(asked, within=60)
        told.cluster.embedded.jump(seconds)

        assert await until(lambda: told.bound("infer"), within=600)
        assert await until(told.clean, within=60)
        assert len(await claims(told.cluster)) == 1

    tell(story, gpu_pool("gpu", "g6.xlarge"))


def test_slices_of_one_card_bring_one_node_and_are_where_the_driver_puts_them() -> None:
    async def story(told: Story) -> None:
        slices = [f"slice-{number}" for number in range(9)]
        asked = {"isolation": "partitioned", "partition_id": "1g.5gb"}
        await told.add(*(worker(name, vram="0", tflops="0", **asked) for name in slices))
        assert await until(lambda: told.bound(*slices), within=600)
        assert await until(told.clean, within=60)

        pods = [await told.pod(name) for name in slices]
        places = {
            (pod.annotations["tensor-fusion.ai/gpu-ids"], pod.annotations["gpu.karpool.dev/partitions"])
            for pod in pods
        }
        assert len(places) == len(slices)
        assert {place.partition("@")[0] for _, place in places} == {"1g.5gb"}
        assert len(await nodes(told.cluster)) == 1
        # Another process reads the same places off the pods.
        await told.cluster.embedded.components.crash(COMPONENT)
        await asyncio.sleep(40)
        assert told.scaler is not None
        ledger = told.scaler.desk.allocator.ledger
        devices = {device for device, _ in places}
        held = {
            (device, f"{partition.template}@{partition.start}")
            for device in devices
            for partition in ledger.partitions_on(device).values()
        }
        assert held == places

    tell(story, gpu_pool("gpu", "p4d.24xlarge"))
