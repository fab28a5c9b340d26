"""Why a pod waits, for people and for machines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.cli.output.capacity_text import report_document
from karpool.cli.output.text import NONE, columns, pluralize, printable
from karpool.estimator.departures import Departures
from karpool.estimator.pod_explanation import ComingNode, PodExplanation, PodRemark, PodVerdict, PoolOffer
from karpool.estimator.pod_sentences import arrival, next_step
from karpool.gpu.records.scale_up_record import MEANS, ScaleUpRecord
from karpool.model import durations
from karpool.model.documents import document_of
from karpool.model.kubernetes.times import rfc3339

_QUESTIONS_ANSWERED = (PodVerdict.ENDED, PodVerdict.LEAVING)  # nobody asks further


@dataclass(frozen=True)
class PodAnswer:
    """`promises`: replicas by binding; None when nobody asked for them."""

    cluster: str
    pod: PodExplanation
    now: float
    scale_ups: Sequence[ScaleUpRecord] = ()
    promises: Sequence[tuple[str, int]] | None = None
    price_gaps: Sequence[str] = ()


def pod_document(answer: PodAnswer) -> dict[str, Any]:
    pod = answer.pod
    content: dict[str, Any] = document_of(pod)
    content["report"] = report_document(pod.report)
    content["waitsSince"] = None if pod.waits_since is None else rfc3339(pod.waits_since)
    for remark, document in zip(pod.remarks, content["remarks"], strict=True):
        document["at"] = None if remark.at is None else rfc3339(remark.at)
    content["scaleUps"] = [{"name": record.name, "state": record.state.value} for record in answer.scale_ups]
    if answer.promises is not None:
        content["promises"] = [
            {"binding": binding, "replicas": replicas} for binding, replicas in answer.promises
        ]
    return {"cluster": answer.cluster, **content, "priceGaps": list(answer.price_gaps)}


def pod_text(answer: PodAnswer) -> str:
    return "\n".join(_lines(answer))


def _lines(answer: PodAnswer) -> Iterator[str]:
    pod = answer.pod
    since = "" if pod.waits_since is None else f" (it waits for {_ago(answer.now - pod.waits_since)})"
    at = f" {printable(pod.node)}" if pod.node and pod.verdict is PodVerdict.RUNS else ""
    cluster = printable(answer.cluster)
    yield printable(f"pod {pod.namespace}/{pod.name} {pod.verdict.value}{at}{since}, in {cluster}")
    yield from (f"  {printable(line)}" for line in next_step(pod))
    if pod.verdict in _QUESTIONS_ANSWERED:
        return
    if pod.remarks:
        yield ""
        yield from (_remark(remark, answer.now) for remark in pod.remarks)
    if pod.verdict is PodVerdict.RUNS:
        return
    yield from _existing(pod)
    if pod.would_fit_without is not None:
        yield from _departures(pod.would_fit_without)
    if pod.offers:
        yield from _titled("NEW NODES", _pools(pod.offers))
    elif pod.verdict is not PodVerdict.FITS:
        yield ""
        yield "NEW NODES: there is no NodePool and no node group, so none would be launched"
    if pod.coming:
        yield from _titled("ON THEIR WAY", _coming(pod.coming))
    if pod.volumes:
        table = columns(
            ("VOLUME CLAIM", "READY", "STATE"),
            ((note.claim, "yes" if note.is_ready else "no", note.detail) for note in pod.volumes),
        )
        yield from _titled("VOLUMES", table)
    yield from _others(answer)


def _existing(pod: PodExplanation) -> Iterator[str]:
    title = f"NODES THAT EXIST: {pod.open_nodes} of {pod.nodes} take it"
    if not pod.obstacles:
        yield ""
        yield title
        return
    table = columns(
        ("NODES", "WHY NOT", "WHAT WOULD HAVE TO CHANGE"),
        ((str(obstacle.nodes), obstacle.detail, obstacle.remedy) for obstacle in pod.obstacles),
    )
    yield from _titled(title, table)
    if sum(obstacle.nodes for obstacle in pod.obstacles) > pod.nodes:
        yield "(a node with several reasons is counted under each)"


def _departures(departures: Departures) -> Iterator[str]:
    cut = "; not every set of pods was tried, a smaller one may exist" if departures.is_cut else ""
    if departures.node:
        table = columns(
            ("POD", "PRIORITY", "IT"),
            ((gone.pod, str(gone.priority), gone.why) for gone in departures.pods),
        )
        yield from _titled(f"WOULD FIT ON {printable(departures.node)} IF THESE WENT{cut}", table)
        if departures.forbidden_by:
            yield f"but they cannot all be removed now: {printable(departures.forbidden_by)}"
    elif departures.is_cut:
        yield "it is unknown whether it would fit without other pods: not every set was tried"
    else:
        yield "it would fit nowhere even if every removable pod were removed"


def _pools(offers: Sequence[PoolOffer]) -> str:
    rows: list[Sequence[str]] = []
    for offer in offers:
        reasons = offer.reasons or (NONE,)
        types = ", ".join(offer.instance_types[:3]) or NONE
        price = NONE if offer.price_per_hour is None else f"{offer.price_per_hour:.3f}"
        rows.append((offer.name, offer.outlook.value, types, price, reasons[0]))
        rows += (("", "", "", "", reason) for reason in reasons[1:])
    return columns(("POOL", "FITS", "WOULD LAUNCH", "$/H", "IN THE WAY"), rows)


def _coming(nodes: Sequence[ComingNode]) -> str:
    return columns(
        ("CLAIM", "POOL", "STAGE", "FOR", "EXPECTED", "TAKES IT"),
        (
            (
                node.claim,
                node.pool or NONE,
                node.stage,
                NONE if node.age_seconds is None else _ago(node.age_seconds),
                arrival(node),
                "yes" if node.takes_pod else "no",
            )
            for node in nodes
        ),
    )


def _others(answer: PodAnswer) -> Iterator[str]:
    pod = answer.pod
    lines = [f"resource claims: {reason}" for reason in pod.resource_claims]
    lines += (f"quota {note.quota}: {note.detail}" for note in pod.quotas)
    lines += (
        f"scale-up {record.name} is for it: {record.state.value}, {MEANS[record.state]}"
        for record in answer.scale_ups
    )
    if answer.promises is not None:
        promised = pluralize(sum(replicas for _, replicas in answer.promises), "replica")
        named = ", ".join(f"{replicas} of {binding}" for binding, replicas in answer.promises[:5])
        lines.append(f"promised here and not yet on a node: {promised}" + (f" ({named})" if named else ""))
    if pod.others_waiting:
        waits = "waits" if pod.others_waiting == 1 else "wait"
        lines.append(f"{pluralize(pod.others_waiting, 'other pod')} {waits} for a node, too")
    lines += (f"no price: {gap}" for gap in answer.price_gaps)
    if lines:
        yield ""
        yield from map(printable, lines)


def _remark(remark: PodRemark, now: float) -> str:
    times = f", {remark.times} times" if remark.times > 1 else ""
    when = "" if remark.at is None else f" ({_ago(now - remark.at)} ago{times})"
    return printable(f"{remark.said_by or 'somebody'} says{when}: {remark.message or remark.reason}")


def _titled(title: str, table: str) -> Iterator[str]:
    yield ""
    yield title
    yield table


def _ago(seconds: float) -> str:
    return durations.show(float(max(0, round(seconds))))
