"""`karpool capacity`: can this run here: now, after scaling up, or never, and what is in the way."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from karpool.cli.cluster_source import LoadedCluster, load_cluster, note_skipped, unreadable_lines
from karpool.cli.exit_codes import DoesNotFit
from karpool.cli.options.cluster import (
    ClusterOptions,
    cluster_options,
    output_option,
)
from karpool.cli.options.parameters import with_options
from karpool.cli.output.text import columns, emit, machine, note
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ALL_KINDS
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.capacity import CapacityAnalyzer, CapacityPlace, CapacityReport, CapacityVerdict
from karpool.estimator.plugins.interface import UNLIMITED
from karpool.estimator.providers.cluster_autoscaler import ClusterAutoscalerProvider
from karpool.estimator.providers.karpenter import NODES_MAX, KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.kube.bounded_input import STDIN, read_bounded
from karpool.kube.clock import RealClock
from karpool.kube.snapshots.reader import read_objects
from karpool.manager.options import Catalogue, ContractFile, Options, option, region_problems
from karpool.model import safe_yaml
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.model.kubernetes.components import TemplatePath, WorkloadComponent, components_of
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.packing.fit_reasons import show_count
from karpool.provisioning.market_file import market_of
from karpool.wire.requests import ComponentSetsRequest, EstimateRequest, ReplicasRequest

NONE = "-"
UNKNOWN = "?"
_KINDS_WITHOUT_PODS = ("Service", "ConfigMap", "Secret", "ServiceAccount", "Namespace")
_OWN_NAME = "karpool-capacity"
ASPECTS = Aspect.NAMESPACES | Aspect.VOLUMES | Aspect.DRA
_VOLUME_KINDS = frozenset(str(kind) for kind in ALL_KINDS if kind.aspects & Aspect.VOLUMES)


class _Moment:
    """The time a file was taken, for whoever asks what is overdue in it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class CapacityOptions(Options, frozen=True):
    replicas: Annotated[int | None, option("Instead of those in the file.", least=0, most=UNLIMITED)] = None
    namespace: Annotated[str, option("Namespace, if the file names none.", short="n")] = ""
    template_path: Annotated[
        tuple[str, ...],
        option(
            "Where a custom resource has its pod templates: spec.template, spec.groups[*].template.",
            metavar="PATH",
        ),
    ] = ()
    region: Annotated[
        str, option("Region whose instance types are used. Default: the region of the cluster.")
    ] = ""
    max_potential_nodes: Annotated[
        int,
        option(
            "Maximum number of new nodes counted per pool, even if the pool has no limits.",
            least=0,
            most=1_000_000,
        ),
    ] = NODES_MAX
    catalogue: Catalogue = None
    contract: ContractFile = None

    def problems(self) -> Iterator[Invalid | str]:
        yield from region_problems(self.region, self.catalogue)


@click.command(epilog="Example: karpool capacity -f deployment.yaml --replicas 20 --context prod")
@click.option(
    "-f",
    "--filename",
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="A Pod, or a workload with one or several pod templates; - reads from stdin.",
)
@with_options(CapacityOptions, "options")
@output_option("table", "wide", "json", "yaml")
@cluster_options
def capacity(
    filename: Path,
    options: CapacityOptions,
    output: str,
    cluster: ClusterOptions,
) -> None:
    """Say whether a workload fits: now, after scale-up (pool, machines, price), or never and why.

    A workload with several pod templates (PyTorchJob, RayCluster, FlinkDeployment, JobSet, ...) fits as a
    whole or not at all; --replicas are then copies of it. Reads only. The exit code is 3 when not all fit,
    or when nobody can tell.
    """
    workload = _workload(filename, options)
    replica_count = workload.replicas if options.replicas is None else options.replicas
    clock, pool_failures, group_failures = _Moment(RealClock().now()), LaunchFailures(), LaunchFailures()
    nodes_max = options.max_potential_nodes
    core = CapacityAnalyzer(
        [
            KarpenterProvider(clock, pool_failures, nodes_max=nodes_max),
            ClusterAutoscalerProvider(clock, group_failures, nodes_max=nodes_max),
        ]
    )
    picture = Cluster(
        ASPECTS | core.aspects,
        market=market_of(options.catalogue, options.region, options.contract),
        failures=pool_failures,
        group_failures=group_failures,
    )
    report, loaded = asyncio.run(_answer(workload, replica_count, core, clock, picture, cluster))
    snapshot = picture.snapshot()
    emit(render(report, workload, output, snapshot, loaded.name, picture.market.gaps()))
    for problem in (*loaded.problems, *snapshot.problems):
        note(f"skipped: {problem}")
    if report.verdict in (CapacityVerdict.NO, CapacityVerdict.CANNOT_TELL):
        raise DoesNotFit


async def _answer(
    workload: "Workload",
    replicas: int,
    core: CapacityAnalyzer,
    clock: "_Moment",
    cluster: Cluster,
    options: ClusterOptions,
) -> tuple[CapacityReport, LoadedCluster]:
    loaded = await load_cluster(options, cluster)
    if loaded.as_of is not None:
        clock.seconds = loaded.as_of
    return core.answer(question_of(workload, cluster, loaded.closed, now=clock.now()), replicas), loaded


def question_of(
    workload: "Workload", cluster: Cluster, closed: frozenset[str] = frozenset(), *, now: float | None = None
) -> EstimateQuestion:
    """About one more such pod or set, volumes included unless they are `closed` to us, which was said."""
    request: EstimateRequest
    if len(workload.components) == 1:
        request = ReplicasRequest("", _requirements(workload.components[0].pod, cluster, closed))
    else:
        components = [
            Component(name, replicas, _requirements(pod, cluster, closed))
            for name, pod, replicas in workload.components
        ]
        request = ComponentSetsRequest("", tuple(components), workload.namespace)
    return EstimateQuestion(request, cluster.snapshot(now), topology=True)


def _requirements(pod: Pod, cluster: Cluster, closed: frozenset[str]) -> ReplicaRequirements:
    shape = shape_of(pod)  # raises Invalid with the field
    if pod.spec.volumes and not closed & _VOLUME_KINDS:
        shape = _with_volumes(shape, pod, cluster)
    return ReplicaRequirements(shape, pod.metadata.namespace, pod.spec.priority_class_name)


def _with_volumes(shape: PodShape, pod: Pod, cluster: Cluster) -> PodShape:
    """As the cluster would see it: claims and storage classes decide where its volumes can be, and CSINodes
    how many."""
    named = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, name=_OWN_NAME, owner_references=None)
    )
    cluster.room.upsert_pod(named)
    stored_shape = cluster.room.shape_of(pod.metadata.namespace, _OWN_NAME)
    cluster.room.remove_pod(pod.metadata.namespace, _OWN_NAME)
    if stored_shape is None:
        return shape
    return replace(shape, volume_terms=stored_shape.volume_terms, requests=stored_shape.requests)


@dataclass(frozen=True)
class Workload:
    """What is asked about: pods of one template, or sets of several components."""

    components: Sequence[WorkloadComponent]

    @property
    def pod(self) -> Pod:
        return self.components[0].pod

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def replicas(self) -> int:
        """Of the one template; of a set, one."""
        return self.components[0].replicas if len(self.components) == 1 else 1

    @property
    def unit(self) -> str:
        if len(self.components) == 1:
            return "replicas"
        return f"sets of {', '.join(f'{part.replicas} {part.name}' for part in self.components)}"


def _workload(path: Path, options: CapacityOptions) -> Workload:
    """The one object of a file that has pods. Raises Invalid or UsageError."""
    paths = [TemplatePath(template_path) for template_path in options.template_path]
    workloads: list[Workload] = []
    for document in _documents(path):
        if not isinstance(document, dict) or document.get("kind") in _KINDS_WITHOUT_PODS:
            continue
        if options.namespace:
            metadata = document.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            document["metadata"] = {**metadata, "namespace": metadata.get("namespace") or options.namespace}
        try:
            components = components_of(document, paths)
        except Invalid as error:
            hint = "" if paths else "; say where its pod templates are with --template-path"
            raise Invalid(error.path, error.value, f"{error.reason}{hint}") from None
        workloads.append(Workload(components))
    if len(workloads) != 1:
        raise click.UsageError(f"{path}: has {len(workloads)} objects with pods; give a file with one")
    return workloads[0]


def _documents(path: Path) -> Iterator[Any]:
    if path != STDIN:
        yield from read_objects(path, report=note_skipped)
        return
    try:
        yield from safe_yaml.load_documents(read_bounded(path, safe_yaml.SIZE_LIMIT))
    except OSError as error:
        raise Invalid("-", "stdin", str(error.strerror)) from None
    except safe_yaml.UnusableYaml as error:
        raise Invalid("-", "stdin", str(error)) from None


# Showing


def render(
    report: CapacityReport,
    workload: Workload,
    output: str,
    snapshot: Snapshot,
    cluster: str,
    price_gaps: Sequence[str] = (),
) -> str:
    if output in ("json", "yaml"):
        content = msgspec.to_builtins(report)
        content["refusals"] = [
            {
                "plugin": infeasible.reason.value,
                "reason": infeasible.detail,
                "nodes": infeasible.count,
                "resolvable": infeasible.resolvable,
            }
            for infeasible in report.refusals
        ]
        content |= {
            "price_per_hour": report.price_per_hour,
            "new_nodes": report.new_nodes,
            "unreadable_pods": sum(snapshot.blocked.values()),
            "price_gaps": list(price_gaps),
        }
        if len(workload.components) > 1:
            content["components"] = {part.name: part.replicas for part in workload.components}
        return machine("Capacity", {"cluster": cluster, "workload": _named(workload.pod), **content}, output)
    lines = [_table(report, wide=output == "wide"), "", f"{cluster}: {_summary(report, workload)}"]
    lines += (f"  {limit}" for limit in report.limits)
    lines += (f"  {remark}" for remark in report.remarks)
    lines += (f"  no price: {gap}" for gap in price_gaps)
    lines += (f"  {line}" for line in unreadable_lines(snapshot))
    return "\n".join(lines)


def _table(report: CapacityReport, *, wide: bool) -> str:
    why = list(map(show_count, report.refusals))
    rows = []
    for place in report.places:
        reasons = [*place.reasons, *(why if place is report.places[0] else [])]
        rows.append(
            [
                place.name,
                place.outlook.value,
                str(place.replicas),
                _amount(place.room),
                str(place.nodes) if place.nodes else NONE,
                ",".join(place.instance_types) or NONE,
                _price(place),
                ("; ".join(reasons if wide else reasons[:1])) or NONE,
            ]
        )
    return columns(["WHERE", "FITS", "REPLICAS", "ROOM", "NEW NODES", "TYPES", "$/H", "WHY NOT MORE"], rows)


def _summary(report: CapacityReport, workload: Workload) -> str:
    held = sum(place.replicas for place in report.places)
    text = f"{_named(workload.pod)} {report.verdict.value}: {held} of {report.wanted} {workload.unit}"
    if report.new_nodes:
        price = report.price_per_hour
        cost = "price unknown" if price is None else f"${price:.3f} per hour"
        text += f", {report.new_nodes} new node{'' if report.new_nodes == 1 else 's'}, {cost}"
    return f"{text}; at most {_amount(report.most)} fit"


def _price(place: CapacityPlace) -> str:
    if not place.nodes:
        return NONE
    return UNKNOWN if place.price_per_hour is None else f"{place.price_per_hour:.3f}"


def _amount(replicas: int) -> str:
    return "unlimited" if replicas >= UNLIMITED else str(replicas)


def _named(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod.name or 'pod'}"
