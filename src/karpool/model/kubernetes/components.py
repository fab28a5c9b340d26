"""The pods that a workload of any kind would create: one component per pod template.

Kinds with one template are read by `workload`. Kinds with several are in a table here, with the paths of
their templates and replicas. Flink and Spark have amounts instead of templates; their pods are built as their
operators do. Any other kind is read by paths from the user.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.workload import count_in, job_pods, mapping_in, pod_of_template, pod_template

Object = Mapping[str, Any]
_LISTED = re.compile(r"(.+)\[(\*|\d{1,6})\]")  # all entries of a list, or one
_CONTAINERS = {"Pod": "spec.containers", "CronJob": "spec.jobTemplate.spec.template.spec.containers"}
_FLINK_MAIN = "flink-main-container"  # the other containers of a pod template are sidecars
_COMPONENTS_MAX = 64  # per workload; a set is packed pod by pod, and no kind has nearly as many


class WorkloadComponent(NamedTuple):
    name: str
    pod: Pod
    replicas: int


class TemplatePath(NamedTuple):
    """The path of pod templates: `spec.groups[*].template` for a list, `spec.roles.*.template` for a map.

    The number of pods is beside each template.
    """

    path: str
    default: int = 1  # if `replicas` is not set
    name: str = ""  # otherwise the name in the list or map is used
    replicas: str = "replicas"  # empty: always `default`


_Reader = Callable[[Object], list[WorkloadComponent]]


def components_of(obj: Any, paths: Sequence[TemplatePath] = ()) -> list[WorkloadComponent]:
    """Return the components of a workload; `paths` override the known ones. Raises Invalid with the field."""
    if not isinstance(obj, dict):
        raise Invalid("", obj, "is not a Kubernetes object")
    if paths:
        components = _at_paths(obj, paths)
    elif (reader := _reader(obj)) is not None:
        components = reader(obj)
    else:
        pod, replicas = pod_template(obj)
        if not pod.spec.containers:
            # An unknown kind may have something else there: a missing pod is not an empty pod.
            path = _CONTAINERS.get(str(obj.get("kind", "")), "spec.template.spec.containers")
            raise Invalid(path, None, "is missing: there is no pod template")
        components = [WorkloadComponent(str(obj.get("kind", "")).lower(), pod, replicas)]
    if len(components) > _COMPONENTS_MAX:
        raise Invalid("spec", len(components), f"has more than {_COMPONENTS_MAX} pod templates")
    names = [component.name for component in components]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Invalid("spec", twice[0], "is the name of two components")
    return components


def has_components(obj: Object) -> bool:
    """Whether its kind has several pod templates."""
    return _reader(obj) is not None


def _reader(obj: Object) -> _Reader | None:
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return _KINDS.get((group, str(obj.get("kind", ""))))


# Templates by path


def _at_paths(obj: Object, paths: Sequence[TemplatePath]) -> list[WorkloadComponent]:
    components: list[WorkloadComponent] = []
    for written_path in paths:
        parent_path, _, last = written_path.path.rpartition(".")
        for name, parent, path in _walk(obj, parent_path.split(".") if parent_path else [], "", ""):
            shown = f"{path}.{last}" if path else last
            template = parent.get(last)
            if isinstance(template, dict) and not isinstance(template.get("spec"), dict):
                raise Invalid(f"{shown}.spec", template.get("spec"), "is missing: there is no pod template")
            pod = pod_of_template(obj, template, shown)
            replicas = (
                count_in(parent, written_path.replicas, written_path.default, path)
                if written_path.replicas
                else written_path.default
            )
            components.append(WorkloadComponent(written_path.name or name or last.lower(), pod, replicas))
    return components


def _walk(value: Any, steps: Sequence[str], path: str, name: str) -> Iterator[tuple[str, Object, str]]:
    if not isinstance(value, dict):
        raise Invalid(path, value, "must be an object: the path of pod templates leads through it")
    if not steps:
        yield name, value, path
        return
    step, rest = steps[0], steps[1:]
    if step == "*":
        for key in sorted(value):
            yield from _walk(value[key], rest, f"{path}.{key}" if path else key, key.lower())
        return
    match = _LISTED.fullmatch(step)
    key, chosen = (match[1], match[2]) if match else (step, "")
    below = f"{path}.{key}" if path else key
    if key not in value:
        raise Invalid(below, None, "is missing: the path of pod templates leads through it")
    if not chosen:
        yield from _walk(value[key], rest, below, name)
        return
    if not isinstance(value[key], list):
        raise Invalid(below, value[key], "must be a list")
    if chosen != "*" and int(chosen) >= len(value[key]):
        raise Invalid(f"{below}[{chosen}]", None, f"is missing: the list has {len(value[key])} entries")
    for index, item in enumerate(value[key]):
        if chosen not in ("*", str(index)):
            continue
        called = item.get("name") or item.get("groupName") if isinstance(item, dict) else None
        yield from _walk(item, rest, f"{below}[{index}]", str(called or f"{key.lower()}-{index + 1}"))


def _by_path(*paths: TemplatePath) -> _Reader:
    return lambda obj: _at_paths(obj, paths)


def _roles(field: str, *roles: str, names: Callable[[str], str] = str.lower, workers: int = 1) -> _Reader:
    """Return a reader of Kubeflow roles, `spec.FIELD.ROLE`, some of them missing; `names` are Karmada's."""

    def read(obj: Object) -> list[WorkloadComponent]:
        specs = mapping_in(obj, "spec", field)
        return _at_paths(
            obj,
            [
                TemplatePath(f"spec.{field}.{role}.template", workers if role == "Worker" else 1, names(role))
                for role in roles
                if role in specs
            ],
        )

    return read


# Kinds with rules of their own


def _ray(*steps: str) -> _Reader:
    def read(obj: Object) -> list[WorkloadComponent]:
        cluster, prefix = mapping_in(obj, *steps), ".".join(steps)
        head = TemplatePath(f"{prefix}.headGroupSpec.template", 1, "ray-head", replicas="")
        components = _at_paths(obj, [head])
        if "workerGroupSpecs" in cluster:
            workers = _at_paths(obj, [TemplatePath(f"{prefix}.workerGroupSpecs[*].template", 0)])
            for index, worker in enumerate(workers):
                group, path = cluster["workerGroupSpecs"][index], f"{prefix}.workerGroupSpecs[{index}]"
                hosts = count_in(group, "numOfHosts", 1, path)
                components.append(worker._replace(replicas=worker.replicas * hosts))
        return components

    return read


def _job_set(obj: Object) -> list[WorkloadComponent]:
    components = _at_paths(obj, [TemplatePath("spec.replicatedJobs[*].template.spec.template", replicas="")])
    for index, component in enumerate(components):
        job, path = obj["spec"]["replicatedJobs"][index], f"spec.replicatedJobs[{index}]"
        pods = job_pods(job["template"]["spec"], f"{path}.template.spec")
        components[index] = component._replace(replicas=count_in(job, "replicas", 1, path) * pods)
    return components


def _leader_worker_set(obj: Object) -> list[WorkloadComponent]:
    groups = count_in(mapping_in(obj, "spec"), "replicas", 1, "spec")
    path = "spec.leaderWorkerTemplate"
    template = mapping_in(obj, "spec", "leaderWorkerTemplate")
    size = count_in(template, "size", 1, path)
    leader = "leaderTemplate" if template.get("leaderTemplate") is not None else "workerTemplate"
    (first,) = _at_paths(obj, [TemplatePath(f"{path}.{leader}", groups, "leader", replicas="")])
    (other,) = _at_paths(obj, [TemplatePath(f"{path}.workerTemplate", groups, "worker", replicas="")])
    return [first, other._replace(replicas=groups * max(size - 1, 0))]


def _flink(obj: Object) -> list[WorkloadComponent]:
    spec = mapping_in(obj, "spec")
    components = []
    for name, field in (("jobmanager", "jobManager"), ("taskmanager", "taskManager")):
        part, path = mapping_in(obj, "spec", field), f"spec.{field}"
        asked = mapping_in(obj, "spec", field, "resource")
        amounts = {"cpu": _cores(asked.get("cpu", 1), f"{path}.resource.cpu")}
        if "memory" in asked:
            amounts["memory"] = f"{_jvm_bytes(asked['memory'], f'{path}.resource.memory')}"
        template = _merged(spec.get("podTemplate"), part.get("podTemplate"))
        replicas = 1 if name == "jobmanager" else _task_managers(spec)
        replicas = count_in(part, "replicas", replicas, path)
        components.append(
            WorkloadComponent(name, _asking(obj, template, amounts, path, _FLINK_MAIN), replicas)
        )
    return components


def _task_managers(spec: Object) -> int:
    """Return how many task managers hold the job's parallelism, given their slots."""
    job, settings = spec.get("job"), spec.get("flinkConfiguration")
    parallelism = job.get("parallelism") if isinstance(job, dict) else None
    slots = settings.get("taskmanager.numberOfTaskSlots") if isinstance(settings, dict) else None
    try:
        return max(1, math.ceil(int(parallelism or 1) / int(slots or 1)))
    except (TypeError, ValueError, ZeroDivisionError):
        return 1


def _spark(obj: Object) -> list[WorkloadComponent]:
    spec = mapping_in(obj, "spec")
    # What a process needs beside its heap, as in Spark: less on the JVM alone.
    on_jvm = str(spec.get("type", "")).lower() in ("java", "scala")
    factor = _number(spec.get("memoryOverheadFactor"), 0.1 if on_jvm else 0.4, "spec.memoryOverheadFactor")
    components = []
    for name in ("driver", "executor"):
        part, path = mapping_in(obj, "spec", name), f"spec.{name}"
        heap = _jvm_bytes(part.get("memory", "1g"), f"{path}.memory")
        overhead = max(math.ceil(heap * factor), 384 << 20)
        if part.get("memoryOverhead") is not None:
            overhead = _jvm_bytes(part["memoryOverhead"], f"{path}.memoryOverhead")
        amounts = {
            "cpu": str(part.get("coreRequest") or _cores(part.get("cores", 1), f"{path}.cores")),
            "memory": str(heap + overhead),
        }
        gpu = part.get("gpu")
        if isinstance(gpu, dict) and gpu.get("name"):
            amounts[str(gpu["name"])] = str(count_in(gpu, "quantity", 0, f"{path}.gpu"))
        fields = ("nodeSelector", "tolerations", "affinity", "priorityClassName")
        own = {"spec": {field: part[field] for field in fields if part.get(field)}}
        common = {"spec": {"nodeSelector": spec["nodeSelector"]}} if spec.get("nodeSelector") else None
        replicas = 1 if name == "driver" else _executors(spec, part)
        components.append(
            WorkloadComponent(
                name, _asking(obj, _merged(common, part.get("template"), own), amounts, path), replicas
            )
        )
    return components


def _executors(spec: Object, executor: Object) -> int:
    instances = count_in(executor, "instances", 1, "spec.executor")
    dynamic = spec.get("dynamicAllocation")
    if isinstance(dynamic, dict) and dynamic.get("enabled") is True:
        for field in ("initialExecutors", "minExecutors"):
            instances = max(instances, count_in(dynamic, field, 0, "spec.dynamicAllocation"))
    return instances


# Built pods


def _asking(
    obj: Object, template: dict[str, Any], amounts: Mapping[str, str], path: str, main: str = ""
) -> Pod:
    """Return the template's pod with these requests in the container `main`, which is added if missing.

    Without a name, the requests go to the first container.
    """
    spec = template.get("spec") or {}
    held = spec.get("containers") or [] if isinstance(spec, dict) else None
    if not isinstance(held, list) or not all(isinstance(container, dict) for container in held):
        raise Invalid(path, held, "the containers of its pod template must be a list of objects")
    containers = [dict(container) for container in held]
    chosen = next((item for item in containers if main in ("", item.get("name"))), None)
    if chosen is None:
        chosen = {"name": main or "main"}
        containers.append(chosen)
    chosen["resources"] = _merged(chosen.get("resources"), {"requests": dict(amounts)})
    return pod_of_template(obj, {**template, "spec": {**spec, "containers": containers}}, path)


def _merged(*templates: Any) -> dict[str, Any]:
    """Merge objects, later ones over earlier ones; lists are replaced."""
    whole: dict[str, Any] = {}
    for template in templates:
        if isinstance(template, dict):
            for key, value in template.items():
                both = isinstance(value, dict) and isinstance(whole.get(key), dict)
                whole[key] = _merged(whole[key], value) if both else value
    return whole


def _cores(value: Any, path: str) -> str:
    return f"{_number(value, 1.0, path):.3f}"


def _number(value: Any, default: float, path: str) -> float:
    if value is None:
        return default
    try:
        amount = float(value)
    except (TypeError, ValueError):
        amount = math.nan
    if not math.isfinite(amount) or amount < 0:
        raise Invalid(path, value, "must be a number that is not negative")
    return amount


_JVM_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)")
_JVM_UNITS = {
    unit: 1 << shift
    for shift, units in ((0, ("", "b", "bytes")), (10, "k"), (20, "m"), (30, "g"), (40, "t"))
    for unit in (units if not shift else (units, f"{units}b", f"{units}i", f"{units}ib"))
}


def _jvm_bytes(value: Any, path: str) -> int:
    """Parse a size as Java programs write it: `m` is a mebibyte here, not a thousandth."""
    parsed = _JVM_SIZE.fullmatch(str(value).strip().lower())
    if parsed is None or parsed[2] not in _JVM_UNITS:
        raise Invalid(path, value, "must be a size like 2048m or 4g")
    return math.ceil(float(parsed[1]) * _JVM_UNITS[parsed[2]])


_KUBEFLOW = "kubeflow.org"
_KINDS: Mapping[tuple[str, str], _Reader] = {
    (_KUBEFLOW, "PyTorchJob"): _roles("pytorchReplicaSpecs", "Master", "Worker"),
    (_KUBEFLOW, "TFJob"): _roles("tfReplicaSpecs", "PS", "Worker", "Chief", "Master", "Evaluator"),
    (_KUBEFLOW, "XGBoostJob"): _roles("xgbReplicaSpecs", "Master", "Worker"),
    (_KUBEFLOW, "PaddleJob"): _roles("paddleReplicaSpecs", "Master", "Worker"),
    (_KUBEFLOW, "JAXJob"): _roles("jaxReplicaSpecs", "Worker"),
    (_KUBEFLOW, "MPIJob"): _roles("mpiReplicaSpecs", "Launcher", "Worker", names=str, workers=0),
    ("ray.io", "RayCluster"): _ray("spec"),
    ("ray.io", "RayJob"): _ray("spec", "rayClusterSpec"),
    ("ray.io", "RayService"): _ray("spec", "rayClusterConfig"),
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("batch.volcano.sh", "Job"): _by_path(TemplatePath("spec.tasks[*].template")),
    ("flink.apache.org", "FlinkDeployment"): _flink,
    ("sparkoperator.k8s.io", "SparkApplication"): _spark,
}
