"""`karpool explain pod NAME`: why it waits, what would have to change, what could come and what is coming."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import click
import msgspec

from karpool.cli.cluster_source import LoadedCluster, connect, own_namespace, unreadable_lines
from karpool.cli.exit_codes import CommandFailed, DoesNotFit
from karpool.cli.inspect.capacity import (
    ASPECTS,
    MarketOptions,
    capacity_picture,
    requirements_of,
)
from karpool.cli.inspect.get_promises import lines
from karpool.cli.inspect.get_scale_ups import understood
from karpool.cli.inspect.workload_source import Workload, no_such_pod, without_waiting
from karpool.cli.options.cluster import ClusterOptions, cluster_options, output_option
from karpool.cli.options.parameters import with_options
from karpool.cli.output.pod_text import PodAnswer, pod_document, pod_text
from karpool.cli.output.text import emit, machine, note
from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.changes import PutDropSink
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.departures import find_departures
from karpool.estimator.pod_explanation import PodExplanation, PodVerdict, waiting_pod_explained
from karpool.gpu.records.scale_up_record import ScaleUpRecord
from karpool.kube.watched import WatchedKind
from karpool.manager.options import Options, option
from karpool.model.kubernetes.api_resources import EVENTS, PDBS, ListOptions, ObjectKey
from karpool.model.kubernetes.components import WorkloadComponent
from karpool.model.kubernetes.event import KubeEvent
from karpool.scheduler.cycle.what_if import listed
from karpool.scheduler.promises.promise import PromiseLifetime

# Verdicts on pods that no node takes as things are.
_WAITING = (PodVerdict.NOWHERE, PodVerdict.NODE_CAN_COME, PodVerdict.NODE_COMES, PodVerdict.CANNOT_TELL)
_POD_ASPECTS = ASPECTS | Aspect.RECORDS | Aspect.BUDGETS


class PodOptions(Options, frozen=True):
    namespace: Annotated[
        str, option("Namespace of the pod. Default: the namespace of the context.", short="n")
    ] = ""
    karmada_context: Annotated[
        str, option("Context of the Karmada API server, to show the promises in this cluster. Default: none.")
    ] = ""
    cluster_name: Annotated[
        str, option("Name of this cluster in Karmada. Default: the name of the context.")
    ] = ""


@click.command(epilog="Example: karpool explain pod web-7d9c5b8f4-x2x7k -n shop --context prod")
@click.argument("name", metavar="[NAMESPACE/]NAME")
@with_options(PodOptions, "options")
@with_options(MarketOptions, "market")
@output_option("text", "json", "yaml")
@cluster_options
def pod(name: str, options: PodOptions, market: MarketOptions, output: str, cluster: ClusterOptions) -> None:
    """Show why a pod is pending.

    The output shows the message of the scheduler; why existing nodes do not take the pod, the largest group
    first, and what would have to change; what each pool could launch and at what price, or what prevents it;
    starting nodes and when to expect them; volumes, resource claims, quotas and scale-ups by name; and with
    --karmada-context the promises in this cluster.

    Only reads. The exit code is 3 if the pod has no node and nothing would bring one.
    """
    key = _key(name, options, cluster)
    answer, snapshot, loaded = asyncio.run(_explained(key, options, market, cluster))
    if output == "text":
        emit("\n".join([pod_text(answer), *unreadable_lines(snapshot)]))
    else:
        emit(machine("PodExplanation", pod_document(answer), output))
    for problem in (*loaded.problems, *snapshot.problems):
        note(f"skipped: {problem}")
    if not answer.pod.verdict.has_place:
        raise DoesNotFit


def _key(name: str, options: PodOptions, cluster: ClusterOptions) -> ObjectKey:
    namespace, _, short = name.removeprefix("pod/").rpartition("/")
    if namespace and options.namespace not in ("", namespace):
        raise click.UsageError(f"{name} names namespace {namespace}, and --namespace {options.namespace}")
    if not short or "/" in namespace:
        raise click.BadParameter(f"{name!r} is not like web-0 or shop/web-0", param_hint="[NAMESPACE/]NAME")
    return ObjectKey(namespace or options.namespace or own_namespace(cluster), short)


async def _explained(
    key: ObjectKey, options: PodOptions, market: MarketOptions, cluster: ClusterOptions
) -> tuple[PodAnswer, Snapshot, LoadedCluster]:
    picture = capacity_picture(market, keeps_namespace=None, aspects=_POD_ASPECTS)
    events: list[KubeEvent] = []
    sink: PutDropSink[KubeEvent] = PutDropSink(lambda _, event: events.append(event), lambda _: None)
    about = ListOptions(key.namespace, field_selector=f"involvedObject.name={key.name}")
    watched = WatchedKind(EVENTS, KubeEvent, sink, about, optional=True)
    loaded = await picture.load(cluster, (watched,))
    state, now = picture.cluster, picture.clock.now()
    pod = state.kept_pods.get(key)
    if pod is None:
        near = {other: pod for other, pod in state.kept_pods.items() if other.namespace == key.namespace}
        raise CommandFailed(no_such_pod(key.namespace, key.name, near, loaded.name))
    workload = Workload([WorkloadComponent("pod", pod, 1)], [] if pod.spec.node_name else [key])
    needs = requirements_of(workload, state, loaded.closed)
    volumes = state.room.volumes_of(pod)
    without_waiting(state, [workload], now)
    snapshot = state.snapshot(now)
    explanation = waiting_pod_explained(
        pod,
        needs[0],
        snapshot,
        picture.analyzer,
        picture.karpenter,
        now=now,
        volumes=volumes,
        events=events,
    )
    if explanation.verdict in _WAITING:
        priority = pod.spec.priority or 0
        going = find_departures(state, state.kept_pods, needs[0].shape, priority, now)
        if going is not None and going.node and str(PDBS) in loaded.closed:
            going = replace(going, forbidden_by="disruption budgets cannot be read and may forbid it")
        explanation = replace(explanation, would_fit_without=going)
    answer = PodAnswer(
        loaded.name,
        explanation,
        now,
        scale_ups=_scale_ups(snapshot, explanation, now),
        promises=await _promises(options, cluster, loaded.name) if options.karmada_context else None,
        price_gaps=tuple(state.market.gaps()),
    )
    return answer, snapshot, loaded


def _scale_ups(snapshot: Snapshot, explanation: PodExplanation, now: float) -> Sequence[ScaleUpRecord]:
    """Those that name the pod among who waits."""
    raw = snapshot.objects(kinds.SCALE_UPS).values()
    listing = understood([{**obj, "kind": kinds.SCALE_UPS.resource.kind} for obj in raw], now)
    names = {explanation.name, f"{explanation.namespace}/{explanation.name}"}
    return [record for record in listing.records if names & set(record.demand)]


async def _promises(options: PodOptions, cluster: ClusterOptions, loaded_name: str) -> list[tuple[str, int]]:
    """What is promised in this cluster, as the Karmada API server has it."""
    if cluster.snapshot is not None:
        raise CommandFailed("--karmada-context reads a live cluster; it cannot be combined with --snapshot")
    member = options.cluster_name or loaded_name
    async with connect(msgspec.structs.replace(cluster, context=options.karmada_context)) as client:
        view = await listed(client, PromiseLifetime())
        assert view.ledger is not None
        promised = lines(view.ledger, client.clock.monotonic())
        return [(str(line.binding), line.replicas) for line in promised if line.cluster == member]
