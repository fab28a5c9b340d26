"""The embedded kube-scheduler gives devices of drivers (DRA) to claims, each device once."""

from karpool.model.kubernetes.api_resources import (
    DEPLOYMENTS,
    DEVICECLASSES,
    NODES,
    PODS,
    RESOURCECLAIMS,
    RESOURCECLAIMTEMPLATES,
    RESOURCESLICES,
)
from karpool_fleet.clusters.fleet_file import StaticNodes
from tests.fleet.living import deployment, play, ready, until

CLAIM = {
    "devices": {
        "requests": [
            {
                "name": "r",
                "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
            }
        ]
    }
}


def device_objects(node: str, devices: int):
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    named = [{"name": f"gpu-{index}"} for index in range(devices)]
    spec = {"driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": named}
    selector = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}
    return [
        (DEVICECLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}),
        (
            RESOURCECLAIMTEMPLATES,
            {"metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": CLAIM}},
        ),
        (RESOURCESLICES, {"metadata": {"name": f"{node}-gpu"}, "spec": spec}),
    ]


def test_each_device_serves_one_claim_and_the_rest_wait_until_more_come():
    async def story(cluster):
        client = cluster.embedded.client("user")
        names = sorted(node["metadata"]["name"] for node in (await client.list(NODES, into=dict)).items)
        claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        await client.create(DEPLOYMENTS, deployment("web", 3, cpu="100m", resourceClaims=claims))
        for resource, obj in device_objects(names[1], 2):
            await client.create(resource, obj)

        async def two():
            return await ready(cluster, "web") == 2

        assert await until(two, within=120)
        pods = [
            pod
            for pod in (await client.list(PODS, into=dict)).items
            if pod["metadata"]["namespace"] == "default"
        ]
        assert sorted(pod["spec"].get("nodeName", "") for pod in pods) == ["", names[1], names[1]]
        (waiting,) = [pod for pod in pods if not pod["spec"].get("nodeName")]
        (told,) = [c for c in waiting["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert "no device" in told["message"]
        given = (await client.list(RESOURCECLAIMS, into=dict)).items
        devices = [c["status"]["allocation"]["devices"]["results"][0]["device"] for c in given]
        assert sorted(devices) == ["gpu-0", "gpu-1"]
        assert {c["status"]["reservedFor"][0]["uid"] for c in given} == {
            pod["metadata"]["uid"] for pod in pods if pod is not waiting
        }

        (more,) = [obj for resource, obj in device_objects(names[0], 1) if resource is RESOURCESLICES]
        await client.create(RESOURCESLICES, more)

        async def three():
            return await ready(cluster, "web") == 3

        assert await until(three, within=120)

    play(story, nodes=[StaticNodes(type="m5.large", count=2)])


def test_what_a_class_offers_is_served_by_its_driver_where_no_plugin_is():
    async def story(cluster):
        client = cluster.embedded.client("user")
        names = sorted(node["metadata"]["name"] for node in (await client.list(NODES, into=dict)).items)
        for resource, obj in device_objects(names[1], 2):
            if resource is DEVICECLASSES:
                obj["spec"]["extendedResourceName"] = "example.com/gpu"
            await client.create(resource, obj)
        web = deployment("web", 3, cpu="100m")
        (container,) = web["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"]["example.com/gpu"] = "1"
        container["resources"]["limits"] = {"example.com/gpu": "1"}
        await client.create(DEPLOYMENTS, web)

        async def two():
            return await ready(cluster, "web") == 2

        assert await until(two, within=120)
        pods = [
            pod
            for pod in (await client.list(PODS, into=dict)).items
            if pod["metadata"]["namespace"] == "default"
        ]
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        assert [pod["spec"]["nodeName"] for pod in bound] == [names[1]] * 2
        given = (await client.list(RESOURCECLAIMS, into=dict)).items
        of_pods = {pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] for pod in bound}
        assert of_pods == {claim["metadata"]["name"] for claim in given}
        devices = [c["status"]["allocation"]["devices"]["results"][0]["device"] for c in given]
        assert sorted(devices) == ["gpu-0", "gpu-1"]
        (mapping,) = bound[0]["status"]["extendedResourceClaimStatus"]["requestMappings"]
        assert mapping["resourceName"] == "example.com/gpu" and mapping["containerName"] == container["name"]

    play(story, nodes=[StaticNodes(type="m5.large", count=2)])


def named_claim(name="shared"):
    return {"metadata": {"name": name, "namespace": "default"}, "spec": CLAIM}


def claiming(name, claim="shared", **more):
    spec = {
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        **more,
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_a_named_claim_is_taken_back_when_its_last_pod_has_gone():
    async def story(cluster):
        client = cluster.embedded.client("user")
        (name,) = [node["metadata"]["name"] for node in (await client.list(NODES, into=dict)).items]
        for resource, obj in device_objects(name, 1):
            await client.create(resource, obj)
        await client.create(RESOURCECLAIMS, named_claim())
        await client.create(RESOURCECLAIMS, named_claim("next"))
        for pod in ("one", "two"):
            await client.create(PODS, claiming(pod))

        async def phases():
            pods = (await client.list(PODS, into=dict)).items
            return {
                pod["metadata"]["name"]: pod["status"].get("phase")
                for pod in pods
                if pod["metadata"]["namespace"] == "default"
            }

        async def status():
            claim = await client.get(RESOURCECLAIMS, "shared", namespace="default")
            return claim.get("status") or {}

        async def both_run():
            return await phases() == {"one": "Running", "two": "Running"}

        assert await until(both_run, within=120)
        assert len((await status())["reservedFor"]) == 2
        await client.create(PODS, claiming("waits", "next"))
        await client.delete(PODS, "one", namespace="default")

        async def one_is_left():
            return [consumer["name"] for consumer in (await status())["reservedFor"]] == ["two"]

        assert await until(one_is_left, within=60)
        assert (await status())["allocation"]
        await client.delete(PODS, "two", namespace="default")

        async def the_next_runs():
            return await phases() == {"waits": "Running"}

        assert await until(the_next_runs, within=120)
        assert not (await status()).get("allocation")
        assert not (await status()).get("reservedFor")

    play(story, nodes=[StaticNodes(type="m5.large", count=1)])


def test_a_pod_does_not_run_before_its_claim_is_allocated_and_reserved_for_it():
    async def story(cluster):
        client = cluster.embedded.client("user")
        (name,) = [node["metadata"]["name"] for node in (await client.list(NODES, into=dict)).items]
        for resource, obj in device_objects(name, 1):
            await client.create(resource, obj)
        await client.create(RESOURCECLAIMS, named_claim())
        made = await client.create(PODS, claiming("bound", nodeName=name))  # past the scheduler

        async def runs():
            pod = await client.get(PODS, "bound", namespace="default")
            return pod["status"].get("phase") == "Running"

        assert not await until(runs, within=60)
        result = {"request": "r", "driver": "gpu.example.com", "pool": name, "device": "gpu-0"}
        news = {"allocation": {"devices": {"results": [result]}}}
        await client.patch(
            RESOURCECLAIMS, "shared", {"status": news}, namespace="default", subresource="status"
        )
        assert not await until(runs, within=60)
        reserved = [{"resource": "pods", "name": "bound", "uid": made["metadata"]["uid"]}]
        await client.patch(
            RESOURCECLAIMS,
            "shared",
            {"status": {"reservedFor": reserved}},
            namespace="default",
            subresource="status",
        )
        assert await until(runs, within=60)

    play(story, nodes=[StaticNodes(type="m5.large", count=1)])
