"""From a manifest to the pods it would create."""

from typing import Any

import pytest

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod import effective_requests
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.volumes import volume_needs
from karpool.model.kubernetes.workload import pod_template
from karpool.model.taints import Taint, untolerated
from tests.model.build import Raw, container


def workload(
    kind: str, *containers: Raw, api: str = "apps/v1", pod_spec: Raw | None = None, **spec: Any
) -> Raw:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": list(containers) or [container(cpu="1")], **(pod_spec or {})},
    }
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": template, **spec},
    }


@pytest.mark.parametrize(
    ("kind", "spec", "replicas"),
    [
        ("Deployment", {"replicas": 5}, 5),
        ("Deployment", {}, 1),
        ("Deployment", {"replicas": 0}, 0),
        ("StatefulSet", {"replicas": 3}, 3),
        ("ReplicaSet", {"replicas": 2}, 2),
        ("DaemonSet", {}, 1),
        ("Job", {}, 1),
        ("Job", {"parallelism": 8}, 8),
        ("Job", {"parallelism": 8, "completions": 3}, 3),
        ("Job", {"parallelism": 2, "completions": 30}, 2),
        ("Rollout", {"replicas": 4}, 4),
    ],
)
def test_how_many_pods(kind: str, spec: Raw, replicas: int) -> None:
    pod, found = pod_template(workload(kind, **spec))

    assert found == replicas
    assert (pod.metadata.namespace, pod.name) == ("shop", "web")
    assert pod.labels == {"app": "web"}
    assert [owner.kind for owner in pod.metadata.owner_references] == [kind]
    assert effective_requests(pod) == {"cpu": 1000}


def test_a_cron_job_runs_the_pods_of_its_job() -> None:
    job = workload("Job", container(cpu="2"), parallelism=3)
    made = {
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"jobTemplate": {"spec": job["spec"]}},
    }

    pod, replicas = pod_template(made)

    assert replicas == 3
    assert effective_requests(pod) == {"cpu": 2000}


def test_a_bare_pod_is_one_pod() -> None:
    pod, replicas = pod_template(
        {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container(cpu="1")]}}
    )

    assert (replicas, pod.name, pod.metadata.namespace) == (1, "a", "default")


def test_a_limit_without_a_request_is_the_request() -> None:
    made = container(limits={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}, cpu="500m")

    pod, _ = pod_template(
        workload("Deployment", made, pod_spec={"initContainers": [container("i", limits={"cpu": "3"})]})
    )

    assert effective_requests(pod) == {"cpu": 3000, "memory": 2**30, "nvidia.com/gpu": 1}


def test_daemon_pods_tolerate_what_the_controller_says_they_do() -> None:
    own = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    daemon, _ = pod_template(workload("DaemonSet", pod_spec={"tolerations": [own]}))
    on_host, _ = pod_template(workload("DaemonSet", pod_spec={"hostNetwork": True}))
    other, _ = pod_template(workload("Deployment"))
    troubles = [
        Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"),
        Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),
        Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule"),
    ]
    no_network = Taint(key="node.kubernetes.io/network-unavailable", effect="NoSchedule")

    assert untolerated(troubles, daemon.spec.tolerations or ()) is None
    assert untolerated([no_network], daemon.spec.tolerations or ()) == no_network
    assert untolerated([no_network], on_host.spec.tolerations or ()) is None
    assert untolerated(troubles, other.spec.tolerations or ()) == troubles[0]
    assert len(daemon.spec.tolerations or ()) == 6


def test_the_volumes_of_a_stateful_set_belong_to_its_pods() -> None:
    claims = [{"metadata": {"name": "data"}, "spec": {"storageClassName": "missing"}}]
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "cfg", "configMap": {}}]

    pod, _ = pod_template(workload("StatefulSet", volumeClaimTemplates=claims, pod_spec={"volumes": volumes}))

    assert [volume.name for volume in pod.spec.volumes or ()] == ["cfg", "data"]
    assert "StorageClass missing" in volume_needs(pod, {}, {}, {}).waits[0]


def test_all_replicas_share_one_shape() -> None:
    first, _ = pod_template(workload("Deployment", replicas=2))
    second, _ = pod_template(workload("Deployment", replicas=9))

    assert shape_of(first) == shape_of(second)


@pytest.mark.parametrize(
    ("made", "path"),
    [
        pytest.param({"kind": "Service", "spec": {}}, "spec.template", id="no template"),
        pytest.param({"kind": "ConfigMap"}, "spec", id="no spec"),
        pytest.param({"kind": "CronJob", "spec": {}}, "spec.jobTemplate", id="no job template"),
        pytest.param(
            {"kind": "Deployment", "spec": {"template": []}}, "spec.template", id="template is a list"
        ),
        pytest.param(workload("Deployment", replicas=-1), "spec.replicas", id="negative replicas"),
        pytest.param(workload("Deployment", replicas="3"), "spec.replicas", id="replicas as text"),
        pytest.param(workload("Deployment", replicas=2**40), "spec.replicas", id="too many replicas"),
        pytest.param(workload("Job", parallelism=True), "spec.parallelism", id="parallelism"),
        pytest.param(
            workload("Deployment", pod_spec={"priority": "high"}),
            "spec.template.spec.priority",
            id="inside the template",
        ),
        pytest.param(
            workload("StatefulSet", volumeClaimTemplates="x"),
            "spec.volumeClaimTemplates",
            id="claims as text",
        ),
        pytest.param(
            workload("StatefulSet", volumeClaimTemplates=[{"metadata": {}}]),
            "spec.volumeClaimTemplates[0].metadata.name",
            id="claim without a name",
        ),
        pytest.param([], "", id="a list"),
        pytest.param(None, "", id="nothing"),
    ],
)
def test_what_has_no_pods_is_named(made: Any, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        pod_template(made)

    assert caught.value.path == path
