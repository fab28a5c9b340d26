"""Whole calls: what an unmodified scheduler would see."""

import asyncio
import json

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import generate_latest

from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ESTIMATOR, EXPLAINER
from karpool.wire.server_protocol import MESSAGE_BYTES_MAX
from tests.estimator.serving import World, asks, eventually, node, pod, requirements, serving


@pytest.fixture
async def world():
    world = World()
    await world.add(node("a"), node("b", cpu="2"), pod("p", node="a"))
    return world


async def test_replicas_are_counted_over_all_nodes(world):
    async with serving(world.transport) as estimator:
        assert await estimator.replicas(asks(cpu="1")) == 5
        assert await estimator.replicas(asks(cpu="2")) == 2


async def test_a_change_of_the_cluster_changes_the_answer(world):
    async with serving(world.transport) as estimator:
        assert await estimator.replicas(asks()) == 5
        await world.add(pod("q", cpu="2", node="b"))
        state = estimator.members["member1"].cluster.room
        await estimator.counted(lambda: "default/q" in state.snapshot().pods_on(state.snapshot().find("b")))
        assert await estimator.replicas(asks()) == 3

        await world.client.delete(PODS, "q", namespace="default", grace_seconds=0)
        await estimator.counted(lambda: not state.snapshot().pods_on(state.snapshot().find("b")))
        assert await estimator.replicas(asks()) == 5


async def test_component_sets_are_placed_first_fit(world):
    def component(name, replicas, cpu):
        amounts = {"cpu": pb.Quantity(string=cpu).SerializeToString()}
        wanted = pb.ComponentReplicaRequirements(resource_request_bytes=amounts)
        return pb.Component(name=name, replicas=replicas, replica_requirements=wanted)

    request = pb.MaxAvailableComponentSetsRequest(
        cluster="member1", components=[component("a", 1, "1"), component("b", 2, "500m")]
    )
    async with serving(world.transport) as estimator:
        assert await estimator.sets(request) == 2
        assert await estimator.sets(pb.MaxAvailableComponentSetsRequest(cluster="member1")) == 2**31 - 1


async def test_an_empty_cluster_has_no_room():
    async with serving(World().transport) as estimator:
        assert await estimator.replicas(asks()) == 0
        assert await estimator.sets(pb.MaxAvailableComponentSetsRequest(cluster="member1")) == 0


async def test_another_cluster_is_refused_in_karmadas_words(world):
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.replicas(asks("other"))

    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == "cluster name does not match, got: other, desire: member1"


async def test_a_malformed_quantity_is_an_estimation_error(world):
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.replicas(asks(cpu="oops"))

    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    start = "failed to estimate replicas: estimate replica plugins fails with ["
    assert refused.value.details().startswith(f"{start}replicaRequirements.resourceRequest.cpu")


async def test_what_is_no_message_is_an_internal_error(world):
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.raw("MaxAvailableReplicas", b"\xff\xff")

    assert refused.value.code() is grpc.StatusCode.INTERNAL


async def test_too_much_is_refused_before_it_is_read(world):
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.raw("MaxAvailableReplicas", bytes(MESSAGE_BYTES_MAX + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await estimator.replicas(asks()) == 5


async def test_more_calls_at_once_than_allowed_are_refused(world, monkeypatch):
    async with serving(world.transport, max_concurrent_requests=2) as estimator:
        framework = estimator.members["member1"].framework
        run, under_way, go = framework.run, [], asyncio.Event()

        async def waiting(question):
            under_way.append(question)
            await go.wait()
            return await run(question)

        monkeypatch.setattr(framework, "run", waiting)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(estimator.replicas(asks())) for _ in range(2)]
            await eventually(lambda: len(under_way) == 2)
            with pytest.raises(grpc.RpcError) as refused:
                await estimator.replicas(asks())
            go.set()

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [call.result() for call in calls] == [5, 5]


async def test_a_call_under_way_finishes_when_the_server_stops(world, monkeypatch):
    entered, go = asyncio.Event(), asyncio.Event()
    async with serving(world.transport) as estimator:
        framework = estimator.members["member1"].framework
        run = framework.run

        async def waiting(question):
            entered.set()
            await go.wait()
            return await run(question)

        monkeypatch.setattr(framework, "run", waiting)
        port = estimator.port
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        call = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")(asks().SerializeToString())
        await entered.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
    assert await call == bytes.fromhex("0805")
    await channel.close()


async def test_an_unknown_method_is_unimplemented(world):
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.raw("Nothing", b"")

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_speaks_for_the_server_and_for_each_cluster(world):
    async with serving(world.transport) as estimator:
        health = health_pb2_grpc.HealthStub(estimator.channel)
        for service in ("", ESTIMATOR, "member1"):
            async with asyncio.timeout(10):
                while True:
                    answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        break


async def test_reflection_lists_the_services(world):
    async with serving(world.transport) as estimator:
        stub = reflection_pb2_grpc.ServerReflectionStub(estimator.channel)
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        answers = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]

    names = {each.name for each in answers[0].list_services_response.service}
    assert {ESTIMATOR, EXPLAINER, "grpc.health.v1.Health"} <= names


async def test_many_clusters_in_one_process_answer_for_themselves(world):
    other = World()
    await other.add(node("big", cpu="64"))
    clusters = {"east": world.transport, "west": other.transport}
    async with serving(clusters, fleet=True) as estimator:
        assert await estimator.replicas(asks("east")) == 5
        assert await estimator.replicas(asks("west")) == 64
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.replicas(asks("north"))

    assert refused.value.details() == "cluster name does not match, got: north, desire: east, west"


async def test_metrics_have_karmadas_names_and_start_at_zero(world):
    async with serving(world.transport) as estimator:
        text = generate_latest(estimator.registry).decode()
        prefix = "karmada_scheduler_estimator_estimating"
        for call in ("MaxAvailableReplicas", "MaxAvailableComponentSets", "GetUnschedulableReplicas"):
            assert f'{prefix}_request_total{{result="success",type="{call}"}} 0.0' in text
        await estimator.replicas(asks())
        with pytest.raises(grpc.RpcError):
            await estimator.replicas(asks("other"))
        text = generate_latest(estimator.registry).decode()

    assert f'{prefix}_request_total{{result="success",type="MaxAvailableReplicas"}} 1.0' in text
    assert f'{prefix}_request_total{{result="error",type="MaxAvailableReplicas"}} 1.0' in text
    assert f'{prefix}_algorithm_duration_seconds_bucket{{le="0.512",result="success",step="Total"' in text
    assert f"{prefix}_plugin_extension_point_duration_seconds_bucket{{" in text
    assert 'estimating_plugin="NodeResourceEstimator"' in text
    assert "karmada_build_info{" in text
    assert 'karpool_estimator_cluster_nodes{cluster="member1"} 2.0' in text
    assert 'karpool_estimator_rejected_requests_total{reason="wrong_cluster"} 1.0' in text
    assert "_created" not in text


async def test_explain_says_what_the_number_is_made_of(world):
    async with serving(world.transport) as estimator:
        found = await estimator.explain(replica_requirements=requirements("3"))

    assert found.answer == 1
    assert [(part.name, part.amount) for part in found.parts] == [("existing nodes", 1)]
    assert [(plugin.plugin, plugin.role) for plugin in found.plugins] == [
        ("NodeResourceEstimator", "source"),
        ("ResourceQuotaEstimator", "limit"),
    ]
    assert [(refusal.nodes, refusal.resolvable) for refusal in found.refusals] == [(1, False)]
    assert "insufficient cpu" in found.refusals[0].reason


async def test_explain_takes_a_manifest_and_heeds_its_topology(world):
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    await world.client.patch(NODES, "a", {"metadata": {"labels": {"kubernetes.io/hostname": "a"}}})
    await world.client.patch(NODES, "b", {"metadata": {"labels": {"kubernetes.io/hostname": "b"}}})
    manifest = {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 10,
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"affinity": apart, "containers": [{"name": "c"}]},
            },
        },
    }
    async with serving(world.transport) as estimator:
        found = await estimator.explain(manifest=json.dumps(manifest).encode())
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.explain(manifest=b"[")

    assert found.answer == 2
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
