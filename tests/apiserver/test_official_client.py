"""The official Python client over HTTPS, with the kubeconfig that users are given."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client import ApiClient, ApiException, AppsV1Api, CoreV1Api, PolicyV1Api

from tests.kubectl.serving import RunningServer

NAMESPACE = "default"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def api(server: RunningServer) -> Iterator[ApiClient]:
    with config.new_client_from_config(str(server.kubeconfig)) as opened:
        yield opened


@pytest.fixture
def core(api: ApiClient) -> CoreV1Api:
    return CoreV1Api(api)


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def pod(name: str, **labels: str) -> client.V1Pod:
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels=labels),
        spec=client.V1PodSpec(
            containers=[
                client.V1Container(
                    name="main",
                    image="nginx",
                    env=[client.V1EnvVar(name="A", value="1")],
                    resources=client.V1ResourceRequirements(requests={"cpu": "250m"}),
                )
            ]
        ),
    )


def test_an_object_is_created_read_replaced_and_deleted(core: CoreV1Api) -> None:
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="crud"), data={"a": "1"})

    created = core.create_namespaced_config_map(NAMESPACE, body)
    assert created.metadata.uid
    assert core.read_namespaced_config_map("crud", NAMESPACE).data == {"a": "1"}

    created.data["b"] = "2"
    replaced = core.replace_namespaced_config_map("crud", NAMESPACE, created)
    assert replaced.data == {"a": "1", "b": "2"}
    with pytest.raises(ApiException) as stale:
        core.replace_namespaced_config_map("crud", NAMESPACE, created)
    assert (stale.value.status, stale.value.reason) == (409, "Conflict")

    core.delete_namespaced_config_map("crud", NAMESPACE)
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_config_map("crud", NAMESPACE)
    assert gone.value.status == 404


def test_defaults_and_timestamps_arrive_as_types(core: CoreV1Api) -> None:
    created = core.create_namespaced_pod(NAMESPACE, pod("typed"))

    assert created.metadata.creation_timestamp.tzinfo is not None
    assert created.spec.restart_policy == "Always"
    assert created.status.phase == "Pending"


def test_an_invalid_object_is_refused_with_the_field(core: CoreV1Api) -> None:
    bad = pod("bad")
    bad.spec.containers[0].name = "Not A Name"

    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod(NAMESPACE, bad)

    assert refused.value.status == 422
    assert "spec.containers[0].name" in refused.value.body


def test_lists_are_selected_and_paged(core: CoreV1Api) -> None:
    for number in range(7):
        core.create_namespaced_pod(NAMESPACE, pod(f"page-{number}", page="yes"))

    names: list[str] = []
    token = None
    while token != "":
        page = core.list_namespaced_pod(NAMESPACE, label_selector="page=yes", limit=3, _continue=token)
        assert len(page.items) <= 3
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue or ""

    assert names == [f"page-{number}" for number in range(7)]
    assert not core.list_namespaced_pod(NAMESPACE, field_selector="spec.nodeName=nowhere").items
    assert len(core.list_pod_for_all_namespaces(label_selector="page in (yes)").items) == 7


def test_a_watch_sees_what_happens_after_the_list(
    core: CoreV1Api, server: RunningServer, background: Callable[..., Future[Any]]
) -> None:
    core.create_namespaced_pod(NAMESPACE, pod("watched-0", watched="yes"))
    listed = core.list_namespaced_pod(NAMESPACE, label_selector="watched=yes")

    def follow() -> list[tuple[str, str]]:
        stream = watch.Watch()
        seen = []
        for event in stream.stream(
            core.list_namespaced_pod,
            NAMESPACE,
            label_selector="watched=yes",
            resource_version=listed.metadata.resource_version,
            timeout_seconds=30,
        ):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 4:
                stream.stop()
        return seen

    following = background(follow)
    server.wait_for_watch(f"/api/v1/namespaces/{NAMESPACE}/pods")
    core.create_namespaced_pod(NAMESPACE, pod("watched-1", watched="yes"))
    core.create_namespaced_pod(NAMESPACE, pod("ignored"))
    core.patch_namespaced_pod("watched-1", NAMESPACE, {"metadata": {"annotations": {"a": "b"}}})
    core.patch_namespaced_pod("watched-1", NAMESPACE, {"metadata": {"labels": {"watched": "no"}}})
    core.delete_namespaced_pod("watched-0", NAMESPACE, grace_period_seconds=0)

    assert following.result(30) == [
        ("ADDED", "watched-1"),
        ("MODIFIED", "watched-1"),
        ("DELETED", "watched-1"),
        ("DELETED", "watched-0"),
    ]


def test_a_watch_from_a_version_the_server_never_had_is_refused(core: CoreV1Api) -> None:
    with pytest.raises(ApiException) as refused:
        list(
            watch.Watch().stream(
                core.list_namespaced_pod, NAMESPACE, resource_version="999999999", timeout_seconds=1
            )
        )

    assert refused.value.status == 410


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        pytest.param(
            "application/json-patch+json",
            [
                {"op": "test", "path": "/spec/containers/0/name", "value": "main"},
                {"op": "replace", "path": "/spec/containers/0/image", "value": "nginx:2"},
            ],
            id="json",
        ),
        pytest.param(
            "application/merge-patch+json",
            {"metadata": {"labels": {"team": "a"}, "annotations": None}},
            id="merge",
        ),
        pytest.param(
            "application/strategic-merge-patch+json",
            {"spec": {"containers": [{"name": "main", "image": "nginx:2"}]}},
            id="strategic",
        ),
        pytest.param(
            "application/apply-patch+yaml",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"labels": {"team": "a"}},
                "spec": {"containers": [{"name": "main", "image": "nginx:2"}]},
            },
            id="apply",
        ),
    ],
)
def test_every_kind_of_patch(core: CoreV1Api, content_type: str, patch: Any) -> None:
    name = f"patched-{content_type[12:16]}"
    core.create_namespaced_pod(NAMESPACE, pod(name))
    if isinstance(patch, dict) and "kind" in patch:
        patch["metadata"]["name"] = name
        changed = core.patch_namespaced_pod(
            name, NAMESPACE, patch, field_manager="tests", force=True, _content_type=content_type
        )
        assert changed.metadata.managed_fields[0].manager == "tests"
    else:
        changed = core.patch_namespaced_pod(name, NAMESPACE, patch, _content_type=content_type)

    if content_type != "application/merge-patch+json":
        assert changed.spec.containers[0].image == "nginx:2"
    if content_type.startswith(("application/merge", "application/apply")):
        assert changed.metadata.labels == {"team": "a"}
    assert changed.spec.containers[0].env[0].name == "A"
    assert core.read_namespaced_pod(name, NAMESPACE) == changed


def test_a_failed_test_operation_changes_nothing(core: CoreV1Api) -> None:
    core.create_namespaced_pod(NAMESPACE, pod("tested"))
    patch = [
        {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
        {"op": "test", "path": "/spec/containers/0/name", "value": "other"},
    ]

    with pytest.raises(ApiException) as refused:
        core.patch_namespaced_pod("tested", NAMESPACE, patch, _content_type="application/json-patch+json")

    assert refused.value.status == 422
    assert core.read_namespaced_pod("tested", NAMESPACE).metadata.labels in (None, {})


def test_scale_and_status_are_resources_of_their_own(api: ApiClient, core: CoreV1Api) -> None:
    apps = AppsV1Api(api)
    labels = {"app": "scaled"}
    template = pod("", **labels)
    template.metadata.name = None
    apps.create_namespaced_deployment(
        NAMESPACE,
        client.V1Deployment(
            metadata=client.V1ObjectMeta(name="scaled"),
            spec=client.V1DeploymentSpec(
                replicas=1,
                selector=client.V1LabelSelector(match_labels=labels),
                template=client.V1PodTemplateSpec(metadata=template.metadata, spec=template.spec),
            ),
        ),
    )

    scale = apps.patch_namespaced_deployment_scale("scaled", NAMESPACE, {"spec": {"replicas": 4}})
    assert scale.spec.replicas == 4
    apps.patch_namespaced_deployment_status("scaled", NAMESPACE, {"status": {"replicas": 4}})

    deployment = apps.read_namespaced_deployment("scaled", NAMESPACE)
    assert (deployment.spec.replicas, deployment.status.replicas) == (4, 4)
    assert deployment.metadata.generation == 2


def test_an_eviction_waits_for_the_disruption_budget(
    api: ApiClient, core: CoreV1Api, server: RunningServer
) -> None:
    policy = PolicyV1Api(api)
    core.create_namespaced_pod(NAMESPACE, pod("guarded", app="guarded"))
    policy.create_namespaced_pod_disruption_budget(
        NAMESPACE,
        client.V1PodDisruptionBudget(
            metadata=client.V1ObjectMeta(name="guarded"),
            spec=client.V1PodDisruptionBudgetSpec(
                min_available=1, selector=client.V1LabelSelector(match_labels={"app": "guarded"})
            ),
        ),
    )
    ready = {"type": "Ready", "status": "True"}
    server.set_status(
        f"/api/v1/namespaces/{NAMESPACE}/pods/guarded", {"phase": "Running", "conditions": [ready]}
    )
    eviction = client.V1Eviction(
        metadata=client.V1ObjectMeta(name="guarded", namespace=NAMESPACE),
        delete_options=client.V1DeleteOptions(grace_period_seconds=0),
    )

    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod_eviction("guarded", NAMESPACE, eviction)
    assert refused.value.status == 429

    policy.patch_namespaced_pod_disruption_budget("guarded", NAMESPACE, {"spec": {"minAvailable": 0}})
    core.create_namespaced_pod_eviction("guarded", NAMESPACE, eviction)
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_pod("guarded", NAMESPACE)
    assert gone.value.status == 404


def test_custom_objects_are_served_beside_the_built_in_ones(api: ApiClient) -> None:
    definitions, custom = client.ApiextensionsV1Api(api), client.CustomObjectsApi(api)
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}}},
    }
    definitions.create_custom_resource_definition(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                "versions": [
                    {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
                ],
            },
        }
    )
    where = ("example.com", "v1", NAMESPACE, "widgets")

    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {}}
    created = custom.create_namespaced_custom_object(*where, body)

    assert created["spec"] == {"size": 1}
    assert [item["metadata"]["name"] for item in custom.list_namespaced_custom_object(*where)["items"]] == [
        "w"
    ]


def test_without_the_token_nothing_is_shown(server: RunningServer) -> None:
    settings = client.Configuration()
    config.load_kube_config(str(server.kubeconfig), client_configuration=settings)
    settings.api_key = {}

    with ApiClient(settings) as stranger, pytest.raises(ApiException) as refused:
        CoreV1Api(stranger).list_namespaced_pod(NAMESPACE)
    assert refused.value.status == 401
