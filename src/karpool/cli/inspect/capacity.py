"""`karpool capacity`: can this run here: now, after scaling up, or never, and what is in the way."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from karpool.cli.cluster_source import LoadedCluster, load_cluster, own_namespace, unreadable_lines
from karpool.cli.exit_codes import DoesNotFit
from karpool.cli.inspect.workload_source import (
    ClusterWorkload,
    Workload,
    reference_of,
    without_waiting,
    workloads_of_file,
    workloads_of_selector,
)
from karpool.cli.options.cluster import (
    ClusterOptions,
    cluster_options,
    output_option,
)
from karpool.cli.options.parameters import with_options
from karpool.cli.output.capacity_text import notes, places_table, report_document, summary
from karpool.cli.output.text import emit, machine, note
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.kinds import ALL_KINDS
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.capacity import CapacityAnalyzer, CapacityReport, CapacityVerdict
from karpool.estimator.plugins.interface import UNLIMITED
from karpool.estimator.pod_explanation import quota_notes
from karpool.estimator.providers.cluster_autoscaler import ClusterAutoscalerProvider
from karpool.estimator.providers.karpenter import NODES_MAX, KarpenterProvider
from karpool.estimator.question import EstimateQuestion
from karpool.kube.clock import RealClock
from karpool.kube.watched import WatchedKind
from karpool.manager.options import Catalogue, ContractCluster, ContractFile, Options, option, region_problems
from karpool.model.documents import camel_case
from karpool.model.errors import Invalid
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.model.labels import LabelMatcher, parse_selector
from karpool.provisioning.device_shapes import device_shapes_of
from karpool.provisioning.market_file import market_of
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, EstimateRequest, ReplicasRequest

__all__ = ["ASPECTS", "Workload", "question_of", "requirements_of"]

_OWN_NAME = "karpool-capacity"
ASPECTS = Aspect.NAMESPACES | Aspect.VOLUMES | Aspect.DRA
_VOLUME_KINDS = frozenset(str(kind) for kind in ALL_KINDS if kind.aspects & Aspect.VOLUMES)


class Moment:
    """The time a file was taken, for whoever asks what is overdue in it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MarketOptions(Options, frozen=True):
    """What new nodes could be bought, for commands that say what could be launched."""

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
    contract_cluster: ContractCluster = ""
    device_shapes: Annotated[
        Path | None,
        option(
            "File of ResourceSlices that drivers publish on new nodes, labelled with their instance type."
            " Default: what nodes of the type publish, else the GPUs of the catalogue.",
            exists=True,
        ),
    ] = None

    def problems(self) -> Iterator[Invalid | str]:
        yield from region_problems(self.region, self.catalogue)


class CapacityOptions(Options, frozen=True):
    replicas: Annotated[
        int | None,
        option(
            "Number of replicas. Default: the number in the file, or the number of missing replicas.",
            least=0,
            most=UNLIMITED,
        ),
    ] = None
    namespace: Annotated[
        str,
        option(
            "Namespace of the workload. Default: the namespace in the file, or that of the context.",
            short="n",
        ),
    ] = ""
    all_namespaces: Annotated[bool, option("With -l: select in all namespaces.", short="A")] = False
    selector: Annotated[
        str,
        option(
            "Pending pods with these labels. Default: none.",
            short="l",
            metavar="LABELS",
        ),
    ] = ""
    template_path: Annotated[
        tuple[str, ...],
        option(
            "Path of the pod templates in a custom resource, like spec.template or spec.groups[*].template.",
            metavar="PATH",
        ),
    ] = ()

    def problems(self) -> Iterator[Invalid | str]:
        if self.all_namespaces and (not self.selector or self.namespace):
            yield "--all-namespaces needs --selector and cannot be combined with --namespace"


@dataclass(frozen=True)
class CapacityPicture:
    """A cluster with what could be launched in it."""

    cluster: Cluster
    analyzer: CapacityAnalyzer
    karpenter: KarpenterProvider
    clock: Moment

    async def load(self, options: ClusterOptions, watches: Sequence[WatchedKind[Any]] = ()) -> LoadedCluster:
        loaded = await load_cluster(options, self.cluster, watches)
        if loaded.as_of is not None:
            self.clock.seconds = loaded.as_of
        return loaded


def capacity_picture(
    market: MarketOptions, *, keeps_namespace: str | None = "", aspects: Aspect = ASPECTS
) -> CapacityPicture:
    """`keeps_namespace`: whose pods are kept as they are; None: of all namespaces; empty: of none."""
    clock, pool_failures, group_failures = Moment(RealClock().now()), LaunchFailures(), LaunchFailures()
    nodes_max = market.max_potential_nodes
    shapes = device_shapes_of(market.device_shapes)
    karpenter = KarpenterProvider(clock, pool_failures, nodes_max=nodes_max, shapes=shapes)
    autoscaler = ClusterAutoscalerProvider(clock, group_failures, nodes_max=nodes_max, shapes=shapes)
    analyzer = CapacityAnalyzer([karpenter, autoscaler])
    cluster = Cluster(
        aspects | analyzer.aspects,
        market=market_of(
            market.catalogue, market.region, market.contract, contract_cluster=market.contract_cluster
        ),
        failures=pool_failures,
        group_failures=group_failures,
        keeps=lambda pod: keeps_namespace in (None, pod.metadata.namespace),
    )
    return CapacityPicture(cluster, analyzer, karpenter, clock)


@click.command(
    epilog="Examples: karpool capacity -f deployment.yaml --replicas 20 --context prod;  "
    "karpool capacity deployment/web -n shop;  karpool capacity -l app=web -A"
)
@click.argument("workload", nargs=-1, metavar="[pod/NAME|deployment/NAME|...]")
@click.option(
    "-f",
    "--filename",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File of pods or workloads; - reads from stdin. Default: the named workloads of the cluster.",
)
@with_options(CapacityOptions, "options")
@with_options(MarketOptions, "market")
@output_option("table", "wide", "json", "yaml")
@cluster_options
def capacity(
    workload: tuple[str, ...],
    filename: Path | None,
    options: CapacityOptions,
    market: MarketOptions,
    output: str,
    cluster: ClusterOptions,
) -> None:
    """Show whether a workload fits: now, after scale-up (pool, machines, price), or never and why.

    The workload is in a file, or in the cluster (pod/NAME, deployment/NAME, statefulset/NAME,
    replicaset/NAME, job/NAME: the replicas that have no node yet), or labels select pending pods. Each of
    several workloads is counted after the ones before it.

    A workload with several pod templates (PyTorchJob, RayCluster, FlinkDeployment, JobSet, ...) fits as a
    whole or not at all; --replicas is then the number of copies. Only reads. The exit code is 3 if not all
    replicas fit, or if the answer is unknown.
    """
    subject = _subject(workload, filename, options, cluster)
    picture = capacity_picture(market, keeps_namespace=subject.namespace)
    answers, loaded = asyncio.run(_answer(subject, options, picture, cluster))
    snapshot = picture.cluster.snapshot(picture.clock.now())
    emit(render(answers, output, snapshot, loaded.name, picture.cluster.market.gaps()))
    for problem in (*loaded.problems, *snapshot.problems):
        note(f"skipped: {problem}")
    refused = (CapacityVerdict.NO, CapacityVerdict.CANNOT_TELL, CapacityVerdict.UNTOLD)
    if any(answer.report.verdict in refused for answer in answers):
        raise DoesNotFit


@dataclass(frozen=True)
class _Subject:
    """What is asked about: workloads of a file, one of the cluster, or pods by label.

    `namespace` is the one whose pods matter; None: all; empty: none."""

    namespace: str | None = ""
    workloads: Sequence[Workload] = ()
    reference: ClusterWorkload | None = None
    selector: LabelMatcher | None = None

    def all(self, pods: Mapping[ObjectKey, Pod], cluster_name: str) -> list[Workload]:
        if self.reference is not None:
            return [self.reference.workload(pods, cluster_name)]
        if self.selector is not None:
            return workloads_of_selector(self.selector, pods, self.namespace)
        return list(self.workloads)


def _subject(
    words: Sequence[str], filename: Path | None, options: CapacityOptions, cluster: ClusterOptions
) -> _Subject:
    sources = [bool(words), filename is not None, bool(options.selector)]
    if sum(sources) != 1:
        raise click.UsageError(
            "name the workload in one way: pass -f FILE, or pod/NAME or deployment/NAME, or -l LABELS"
        )
    if filename is not None:
        return _Subject(workloads=workloads_of_file(filename, options.namespace, options.template_path))
    if options.template_path:
        raise click.UsageError("--template-path needs -f FILE")
    namespace = None if options.all_namespaces else options.namespace or own_namespace(cluster)
    if words:
        assert namespace is not None
        return _Subject(namespace, reference=reference_of(words, namespace))
    try:
        return _Subject(namespace, selector=parse_selector(options.selector))
    except Invalid as error:
        raise click.UsageError(f"--selector: {error}") from None


@dataclass(frozen=True)
class CapacityAnswer:
    workload: Workload
    report: CapacityReport
    quotas: Sequence[str] = ()


async def _answer(
    subject: _Subject, options: CapacityOptions, picture: CapacityPicture, cluster: ClusterOptions
) -> tuple[list[CapacityAnswer], LoadedCluster]:
    watches = subject.reference.watches if subject.reference is not None else ()
    loaded = await picture.load(cluster, watches)
    workloads = subject.all(picture.cluster.kept_pods, loaded.name)
    return answer_in_order(workloads, options.replicas, picture, loaded.closed), loaded


def answer_in_order(
    workloads: Sequence[Workload], replicas_each: int | None, picture: CapacityPicture, closed: frozenset[str]
) -> list[CapacityAnswer]:
    """Each after those before it have their room. Raises Invalid with the field."""
    state, now = picture.cluster, picture.clock.now()
    requirements = [requirements_of(workload, state, closed) for workload in workloads]
    without_waiting(state, workloads, now)
    answers: list[CapacityAnswer] = []
    before: list[AssumedWorkload] = []
    for workload, needs in zip(workloads, requirements, strict=True):
        replicas = workload.replicas if replicas_each is None else replicas_each
        question = replace(question_of(workload, needs, state.snapshot(now)), assumed=tuple(before))
        exclusive = sorted({key for part in workload.components for key in state.room.exclusive(part.pod)})
        report = picture.analyzer.answer(question, replicas, [f"claim {key}" for key in exclusive])
        quotas = [
            f"quota {quota.quota}: {quota.detail}"
            for need in needs
            for quota in quota_notes(question.snapshot, need.namespace, need.shape, need.priority_class_name)
        ]
        answers.append(CapacityAnswer(workload, report, quotas if report.limits else ()))
        before.append(_assumed(workload, needs, replicas))
    return answers


def _assumed(workload: Workload, needs: Sequence[ReplicaRequirements], replicas: int) -> AssumedWorkload:
    """As if it had its room."""
    sets = 1 if len(needs) == 1 else replicas
    components = [
        Component(part.name, replicas if len(needs) == 1 else part.replicas * sets, need)
        for part, need in zip(workload.components, needs, strict=True)
    ]
    return AssumedWorkload(workload.namespace, tuple(components))


def question_of(
    workload: Workload, needs: Sequence[ReplicaRequirements], snapshot: Snapshot
) -> EstimateQuestion:
    """About one more such pod or set."""
    request: EstimateRequest
    if len(needs) == 1:
        request = ReplicasRequest("", needs[0])
    else:
        components = [
            Component(part.name, part.replicas, need)
            for part, need in zip(workload.components, needs, strict=True)
        ]
        request = ComponentSetsRequest("", tuple(components), workload.namespace)
    return EstimateQuestion(request, snapshot, topology=True)


def requirements_of(
    workload: Workload, cluster: Cluster, closed: frozenset[str] = frozenset()
) -> list[ReplicaRequirements]:
    """Of each component, volumes included unless they are `closed` to us, which was said. Raises Invalid with
    the field."""
    return [_requirements(part.pod, cluster, closed) for part in workload.components]


def _requirements(pod: Pod, cluster: Cluster, closed: frozenset[str]) -> ReplicaRequirements:
    shape = shape_of(pod)
    if pod.spec.volumes and not closed & _VOLUME_KINDS:
        shape = _with_volumes(shape, pod, cluster)
    return ReplicaRequirements(shape, pod.metadata.namespace, pod.spec.priority_class_name)


def _with_volumes(shape: PodShape, pod: Pod, cluster: Cluster) -> PodShape:
    """As the cluster would see it: claims and storage classes decide where its volumes can be, and CSINodes
    how many."""
    key = ObjectKey(pod.metadata.namespace, pod.name)
    if cluster.kept_pods.get(key) is pod:  # it is there, with claims of its own
        stored_shape = cluster.room.shape_of(*key)
    else:
        named = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, name=_OWN_NAME, owner_references=None)
        )
        cluster.room.upsert_pod(named)
        stored_shape = cluster.room.shape_of(pod.metadata.namespace, _OWN_NAME)
        cluster.room.remove_pod(pod.metadata.namespace, _OWN_NAME)
    if stored_shape is None:
        return shape
    return replace(shape, volume_terms=stored_shape.volume_terms, requests=stored_shape.requests)


# Showing


def render(
    answers: Sequence[CapacityAnswer],
    output: str,
    snapshot: Snapshot,
    cluster: str,
    price_gaps: Sequence[str] = (),
) -> str:
    if output in ("json", "yaml"):
        documents = [_document(answer, snapshot, price_gaps) for answer in answers]
        if len(documents) == 1:
            return machine("Capacity", {"cluster": cluster, **documents[0]}, output)
        return machine("CapacityList", {"cluster": cluster, "items": documents}, output)
    return "\n\n".join(_shown(answer, output, snapshot, cluster, price_gaps) for answer in answers)


def _document(answer: CapacityAnswer, snapshot: Snapshot, price_gaps: Sequence[str]) -> dict[str, Any]:
    workload = answer.workload
    content = {"workload": workload.name, **report_document(answer.report)}
    content["quotas"] = list(answer.quotas)
    if workload.remark:
        content["about"] = workload.remark
    more = {"unreadable_pods": sum(snapshot.blocked.values()), "price_gaps": list(price_gaps)}
    content |= camel_case(more, old_keys=True)
    if len(workload.components) > 1:
        content["components"] = {part.name: part.replicas for part in workload.components}
    return content


def _shown(
    answer: CapacityAnswer, output: str, snapshot: Snapshot, cluster: str, price_gaps: Sequence[str]
) -> str:
    workload, report = answer.workload, answer.report
    lines = [places_table(report, wide=output == "wide"), ""]
    lines.append(f"{cluster}: {summary(report, workload.name, workload.unit)}")
    lines += [f"  {workload.remark}"] if workload.remark else []
    lines += notes(report)
    lines += (f"  {quota}" for quota in answer.quotas)
    lines += (f"  no price: {gap}" for gap in price_gaps)
    lines += (f"  {line}" for line in unreadable_lines(snapshot))
    return "\n".join(lines)
