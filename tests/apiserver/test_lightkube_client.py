"""lightkube, a client with its own models, HTTP stack and event loop integration."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node, Pod
from lightkube.types import CascadeType, PatchType

from tests.kubectl.serving import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
async def cluster(server: RunningServer, request: pytest.FixtureRequest) -> AsyncIterator[AsyncClient]:
    """A client in a namespace of the test's own."""
    name = request.node.name.replace("_", "-")[:63].rstrip("-")
    opened = AsyncClient(KubeConfig.from_file(server.kubeconfig).get(), namespace=name, trust_env=False)
    await opened.create(Namespace(metadata=ObjectMeta(name=name)))
    yield opened
    await opened.close()


def settings(name: str, **data: str) -> ConfigMap:
    return ConfigMap(apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name=name), data=data)


def deployment(replicas: int | None = 2, image: str = "nginx:1") -> Deployment:
    labels = {"app": "web"}
    return Deployment(
        apiVersion="apps/v1",
        kind="Deployment",
        metadata=ObjectMeta(name="web"),
        spec=DeploymentSpec(
            replicas=replicas,
            selector=LabelSelector(matchLabels=labels),
            template=PodTemplateSpec(
                metadata=ObjectMeta(labels=labels),
                spec=PodSpec(containers=[Container(name="main", image=image)]),
            ),
        ),
    )


async def test_lists_follow_every_page(cluster: AsyncClient) -> None:
    for number in range(9):
        await cluster.create(settings(f"m-{number}", n=str(number)))

    names = [item.metadata.name async for item in cluster.list(ConfigMap, chunk_size=2)]

    assert names == [f"m-{number}" for number in range(9)]
    await cluster.deletecollection(ConfigMap)
    assert [item async for item in cluster.list(ConfigMap)] == []


async def test_a_watch_begins_with_what_is_there(cluster: AsyncClient) -> None:
    await cluster.create(settings("first"))
    seen: list[tuple[str, str]] = []

    async with asyncio.timeout(30):
        async for kind, item in cluster.watch(ConfigMap):
            seen.append((kind, item.metadata.name))
            if len(seen) == 1:
                await cluster.create(settings("second"))
                await cluster.patch(ConfigMap, "second", {"data": {"a": "b"}})
                await cluster.delete(ConfigMap, "first")
            if len(seen) == 4:
                break

    assert seen == [("ADDED", "first"), ("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "first")]


async def test_server_side_apply_creates_changes_and_removes(cluster: AsyncClient) -> None:
    created = await cluster.apply(deployment(replicas=2), field_manager="alice")
    again = await cluster.apply(deployment(replicas=2), field_manager="alice")
    assert again.metadata.resourceVersion == created.metadata.resourceVersion

    changed = await cluster.apply(deployment(replicas=None, image="nginx:2"), field_manager="alice")

    assert changed.spec.template.spec.containers[0].image == "nginx:2"
    assert changed.spec.replicas == 1  # abandoned, and back at its default


async def test_managers_disagree_until_one_insists(cluster: AsyncClient) -> None:
    await cluster.apply(deployment(replicas=2), field_manager="alice")

    with pytest.raises(ApiError) as refused:
        await cluster.apply(deployment(replicas=5), field_manager="bob")
    status = refused.value.status
    assert (status.code, status.reason) == (409, "Conflict")
    causes = [(cause.reason, cause.field, cause.message) for cause in status.details.causes]
    assert causes == [("FieldManagerConflict", ".spec.replicas", 'conflict with "alice" using apps/v1')]

    forced = await cluster.apply(deployment(replicas=5), field_manager="bob", force=True)
    assert forced.spec.replicas == 5
    assert (await cluster.get(Deployment, "web")).spec.replicas == 5


async def test_scaling_moves_the_field_to_who_scaled(cluster: AsyncClient) -> None:
    await cluster.apply(deployment(replicas=2), field_manager="alice")
    scale = Deployment.Scale(metadata=ObjectMeta(name="web"), spec=ScaleSpec(replicas=7))

    scaled = await cluster.replace(scale, "web", field_manager="scaler")

    assert scaled.spec.replicas == 7
    assert (await cluster.get(Deployment, "web")).spec.replicas == 7
    with pytest.raises(ApiError) as refused:
        await cluster.apply(deployment(replicas=2), field_manager="alice")
    assert '"scaler"' in refused.value.status.message


@pytest.mark.parametrize(
    ("patch_type", "patch"),
    [
        (PatchType.JSON, [{"op": "replace", "path": "/spec/replicas", "value": 3}]),
        (PatchType.MERGE, {"spec": {"replicas": 3}}),
        (PatchType.STRATEGIC, {"spec": {"replicas": 3}}),
    ],
    ids=["json", "merge", "strategic"],
)
async def test_patches(server: RunningServer, patch_type: PatchType, patch: object) -> None:
    config = KubeConfig.from_file(server.kubeconfig).get()
    cluster = AsyncClient(config, namespace="default", trust_env=False)
    await cluster.apply(deployment(), field_manager="alice")

    patched = await cluster.patch(Deployment, "web", patch, patch_type=patch_type)

    assert patched.spec.replicas == 3
    await cluster.delete(Deployment, "web", cascade=CascadeType.BACKGROUND)
    await cluster.close()


async def test_waiting_for_a_condition(cluster: AsyncClient, server: RunningServer) -> None:
    await cluster.create(
        Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[Container(name="main", image="x")]))
    )
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    waiting = asyncio.ensure_future(cluster.wait(Pod, "p", for_conditions=["Ready"]))
    await asyncio.to_thread(server.wait_for_watch, path)

    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await asyncio.to_thread(server.set_status, f"{path}/p", status)

    async with asyncio.timeout(30):
        assert (await waiting).metadata.name == "p"


async def test_errors_carry_the_status(cluster: AsyncClient) -> None:
    with pytest.raises(ApiError) as missing:
        await cluster.get(Node, "nowhere")
    assert (missing.value.status.code, missing.value.status.reason) == (404, "NotFound")

    unknown = create_namespaced_resource("example.com", "v1", "Nothing", "nothings")
    with pytest.raises(ApiError) as no_such_type:
        await cluster.get(unknown, "x")
    assert no_such_type.value.response.status_code == 404
