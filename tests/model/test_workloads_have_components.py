"""Every kind of workload becomes the pods that its controller would create, template by template."""

from functools import partial

import pytest

from karpool.model.errors import Invalid
from karpool.model.kubernetes.components import TemplatePath, components_of, has_components
from karpool.model.kubernetes.pod import effective_requests
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.resources import CPU, GPU, MEMORY

GI = 1 << 30


def template(cpu, **spec):
    return {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **spec}}


def workload(api_version, kind, **spec):
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "w", "namespace": "ml"},
        "spec": spec,
    }


pytorch = partial(workload, "kubeflow.org/v1", "PyTorchJob")
mpi = partial(workload, "kubeflow.org/v2beta1", "MPIJob")
flink = partial(workload, "flink.apache.org/v1beta1", "FlinkDeployment")
job_set = partial(workload, "jobset.x-k8s.io/v1alpha2", "JobSet")


def told(obj, paths=()):
    return [
        (name, effective_requests(pod).get(CPU, 0), count) for name, pod, count in components_of(obj, paths)
    ]


def roles(field, **specs):
    return {
        field: {role: {"replicas": count, "template": template(cpu)} for role, (count, cpu) in specs.items()}
    }


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (workload("apps/v1", "Deployment", replicas=3, template=template("2")), [("deployment", 2000, 3)]),
        (
            workload("argoproj.io/v1alpha1", "Rollout", replicas=2, template=template("1")),
            [("rollout", 1000, 2)],
        ),
        (
            workload(
                "kubeflow.org/v1",
                "PyTorchJob",
                **roles("pytorchReplicaSpecs", Worker=(3, "4"), Master=(1, "1")),
            ),
            [("master", 1000, 1), ("worker", 4000, 3)],
        ),
        (
            workload("kubeflow.org/v1", "TFJob", **roles("tfReplicaSpecs", Chief=(1, "1"), PS=(2, "3"))),
            [("ps", 3000, 2), ("chief", 1000, 1)],
        ),
        (
            workload(
                "kubeflow.org/v2beta1",
                "MPIJob",
                **roles("mpiReplicaSpecs", Worker=(None, "2"), Launcher=(1, "1")),
            ),
            [("Launcher", 1000, 1), ("Worker", 2000, 0)],
        ),
        (
            workload(
                "ray.io/v1",
                "RayJob",
                rayClusterSpec={
                    "headGroupSpec": {"template": template("1")},
                    "workerGroupSpecs": [
                        {"groupName": "gpu", "replicas": 2, "numOfHosts": 3, "template": template("8")},
                        {"template": template("1")},
                    ],
                },
            ),
            [("ray-head", 1000, 1), ("gpu", 8000, 6), ("workergroupspecs-2", 1000, 0)],
        ),
        (
            workload(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                replicatedJobs=[
                    {"name": "driver", "template": {"spec": {"template": template("1")}}},
                    {
                        "name": "workers",
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 4, "completions": 3, "template": template("2")}},
                    },
                ],
            ),
            [("driver", 1000, 1), ("workers", 2000, 6)],
        ),
        (
            workload(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                replicas=2,
                leaderWorkerTemplate={"size": 4, "workerTemplate": template("3")},
            ),
            [("leader", 3000, 2), ("worker", 3000, 6)],
        ),
        (
            workload(
                "batch.volcano.sh/v1alpha1",
                "Job",
                tasks=[{"name": "ps", "replicas": 2, "template": template("1")}, {"template": template("2")}],
            ),
            [("ps", 1000, 2), ("tasks-2", 2000, 1)],
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_templates_and_counts(obj, expected):
    assert told(obj) == expected
    assert has_components(obj) == (obj["kind"] not in ("Deployment", "Rollout"))


def test_flink_asks_as_its_operator_does():
    obj = flink(
        flinkConfiguration={"taskmanager.numberOfTaskSlots": "2"},
        podTemplate={"spec": {"nodeSelector": {"disk": "ssd"}}},
        jobManager={"resource": {"cpu": 0.5, "memory": "2048m"}},
        taskManager={
            "resource": {"cpu": 2, "memory": "4g"},
            "podTemplate": {"spec": {"priorityClassName": "high"}},
        },
        job={"parallelism": 7},
    )
    manager, tasks = components_of(obj)
    assert (manager.name, manager.replicas, tasks.name, tasks.replicas) == ("jobmanager", 1, "taskmanager", 4)
    assert effective_requests(manager.pod) == {CPU: 500, MEMORY: 2 * GI}  # not two bytes
    assert effective_requests(tasks.pod) == {CPU: 2000, MEMORY: 4 * GI}
    assert manager.pod.spec.node_selector == tasks.pod.spec.node_selector == {"disk": "ssd"}
    assert tasks.pod.spec.priority_class_name == "high"


@pytest.mark.parametrize(("language", "memory"), [("Scala", 4 * GI * 1.1), ("Python", 4 * GI * 1.4)])
def test_spark_adds_its_overhead(language, memory):
    obj = workload(
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
        type=language,
        driver={"cores": 1, "memory": "512m", "memoryOverhead": "256m"},
        executor={"cores": 4, "memory": "4g", "instances": 2, "gpu": {"name": GPU, "quantity": 1}},
        dynamicAllocation={"enabled": True, "minExecutors": 5},
    )
    driver, executor = components_of(obj)
    assert effective_requests(driver.pod)[MEMORY] == 768 << 20
    assert (driver.replicas, executor.replicas) == (1, 5)
    assert effective_requests(executor.pod)[GPU] == 1
    assert effective_requests(executor.pod)[MEMORY] == pytest.approx(memory, abs=2)


def test_paths_find_the_templates_of_any_kind():
    obj = workload(
        "example.com/v1",
        "Pipeline",
        head={"template": template("1")},
        stages=[{"name": "a", "replicas": 2, "podTemplate": template("2")}, {"podTemplate": template("3")}],
        roles={"Cache": {"replicas": 4, "template": template("4")}},
    )
    paths = [
        TemplatePath("spec.head.template", name="head"),
        TemplatePath("spec.stages[*].podTemplate"),
        TemplatePath("spec.roles.*.template"),
    ]
    assert told(obj, paths) == [("head", 1000, 1), ("a", 2000, 2), ("stages-2", 3000, 1), ("cache", 4000, 4)]


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (pytorch(), "spec.pytorchReplicaSpecs"),
        (
            workload(
                "kubeflow.org/v1",
                "PyTorchJob",
                pytorchReplicaSpecs={"Worker": {"replicas": -1, "template": template("1")}},
            ),
            "spec.pytorchReplicaSpecs.Worker.replicas",
        ),
        (
            pytorch(pytorchReplicaSpecs={"Worker": {"replicas": 1}}),
            "spec.pytorchReplicaSpecs.Worker.template",
        ),
        (workload("ray.io/v1", "RayCluster", headGroupSpec=7), "spec.headGroupSpec"),
        (workload("batch.volcano.sh/v1alpha1", "Job", tasks=[7]), "spec.tasks[0]"),
        (workload("batch.volcano.sh/v1alpha1", "Job", tasks={"a": 1}), "spec.tasks"),
        (
            job_set(replicatedJobs=[{"name": "a"}]),
            "spec.replicatedJobs[0].template",
        ),
        (
            workload(
                "flink.apache.org/v1beta1",
                "FlinkDeployment",
                jobManager={"resource": {"cpu": -1}},
                taskManager={},
            ),
            "spec.jobManager.resource.cpu",
        ),
        (
            workload(
                "flink.apache.org/v1beta1", "FlinkDeployment", jobManager={"resource": {"memory": "much"}}
            ),
            "spec.jobManager.resource.memory",
        ),
    ],
)
def test_bad_input_names_the_path(obj, path):
    with pytest.raises(Invalid) as refused:
        components_of(obj)
    assert refused.value.path == path


def test_names_are_told_apart_and_templates_are_bounded():
    twice = workload("batch.volcano.sh/v1alpha1", "Job", tasks=[{"name": "a", "template": template("1")}] * 2)
    with pytest.raises(Invalid, match="two components"):
        components_of(twice)
    tasks = [{"name": f"t{number}", "template": template("1")} for number in range(65)]
    with pytest.raises(Invalid, match="more than 64"):
        components_of(workload("batch.volcano.sh/v1alpha1", "Job", tasks=tasks))
    for odd in (None, 7, [], "text"):
        with pytest.raises(Invalid):
            components_of(odd)


def test_a_component_is_a_pod_like_any_other():
    obj = workload("kubeflow.org/v1", "JAXJob", **roles("jaxReplicaSpecs", Worker=(2, "3")))
    (worker,) = components_of(obj)
    assert shape_of(worker.pod).namespace == "ml"
    assert worker.pod.metadata.owner_references[0].kind == "JAXJob"


def test_a_flink_sidecar_keeps_its_requests_wherever_it_stands():
    sidecar = {"name": "logs", "resources": {"requests": {"cpu": "500m"}}}
    main = {"name": "flink-main-container"}
    for containers in ([sidecar, main], [main, sidecar], [sidecar]):
        obj = flink(
            podTemplate={"spec": {"containers": containers}},
            jobManager={"resource": {"cpu": 1, "memory": "1g"}},
            taskManager={"resource": {"cpu": 2, "memory": "1g"}, "replicas": 4},
        )
        assert told(obj) == [("jobmanager", 1500, 1), ("taskmanager", 2500, 4)]


@pytest.mark.parametrize("spec", [{"containers": ["logs"]}, {"containers": "logs"}, "logs"])
def test_containers_that_are_no_objects_are_refused(spec):
    obj = flink(podTemplate={"spec": spec}, jobManager={"resource": {}}, taskManager={"resource": {}})
    with pytest.raises(Invalid, match="must be a list of objects"):
        components_of(obj)


def test_what_a_template_calls_itself_is_not_the_name_of_the_workload():
    named = {**template("1"), "metadata": {"name": "pod-template"}}
    (component,) = components_of(workload("apps/v1", "Deployment", template=named))
    assert component.pod.name == "w"


@pytest.mark.parametrize("held", [{}, {"spec": {}}, {"type": "Scala", "driver": {"cores": 1}}])
def test_a_template_without_containers_is_no_pod_template(held):
    """A ScheduledSparkApplication has a SparkApplication there, which is not a pod that asks for nothing."""
    scheduled = workload("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication", template=held)
    with pytest.raises(Invalid, match=r"spec\.template\.spec\.containers"):
        components_of(scheduled)
