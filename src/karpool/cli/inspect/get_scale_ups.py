"""`karpool get scale-ups`: nodes asked for on behalf of waiting GPU workers, and how far they are."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click

from karpool.cli.cluster_source import connect, note_skipped
from karpool.cli.inspect.listing_options import ListingOptions, NamespaceOptions, show_listing
from karpool.cli.options.cluster import ClusterOptions, cluster_options
from karpool.cli.options.parameters import with_options
from karpool.cli.output.listing import ListedItem, Listing
from karpool.cli.output.text import NONE, note, pluralize
from karpool.gpu.records.scale_up_object import SCALEUPS, from_object
from karpool.gpu.records.scale_up_record import ScaleUpRecord, ScaleUpState, ScaleUpUnit
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.errors import NotFound
from karpool.kube.snapshots.reader import ObjectFile
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import PODS, ListOptions
from karpool.model.kubernetes.meta import condition, decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool.provisioning.placeholders.placeholder import CANDIDATE, INDEX, REQUEST
from karpool.provisioning.placeholders.smart_pod import SELECTOR

Object = dict[str, Any]


@dataclass(frozen=True)
class ScaleUpListing:
    """What a cluster shows of its scale-ups. `words` are candidates in words, by key."""

    records: Sequence[ScaleUpRecord]
    now: float
    problems: Sequence[str] = ()
    words: dict[str, str] = field(default_factory=dict)
    said: dict[tuple[str, int], str] = field(default_factory=dict)  # of the scheduler, by record and index
    cluster: str = ""
    namespaces: dict[str, str] = field(default_factory=dict)  # of records, by name


def list_scale_ups(options: ClusterOptions, namespace: str = "") -> ScaleUpListing:
    """Of all namespaces, where none is named. Raises KubeError or SnapshotError."""
    if options.snapshot is not None:
        file = ObjectFile(options.snapshot, report=note_skipped)
        objects = [obj for obj in file.objects() if namespace in ("", _namespace(obj))]
        now = parse_rfc3339(file.header.taken_at) if file.header else RealClock().now()
        name = (file.header.cluster if file.header else "") or options.snapshot.name
        return replace(understood(objects, now), cluster=name)
    return asyncio.run(_live(options, namespace))


def _namespace(obj: Object) -> str:
    return str((obj.get("metadata") or {}).get("namespace", ""))


async def _live(options: ClusterOptions, namespace: str) -> ScaleUpListing:
    async with connect(options) as client:
        objects = [{**raw, "kind": SCALEUPS.kind} for raw in await _listed(client, namespace)]
        chosen = ListOptions(namespace=namespace or None, label_selector=SELECTOR)
        pods = (await client.list(PODS, chosen)).items
        listed = understood([*objects, *({**pod, "kind": "Pod"} for pod in pods)], client.clock.now())
        return replace(listed, cluster=client.name)


async def _listed(client: Client, namespace: str) -> list[Object]:
    try:
        return (await client.list(SCALEUPS, ListOptions(namespace=namespace or None))).items
    except NotFound:
        return []  # a cluster without the definition has no scale-ups


def understood(objects: Iterable[Object], now: float) -> ScaleUpListing:
    """One that cannot be read is a problem, and the others are shown."""
    records: list[ScaleUpRecord] = []
    problems: list[str] = []
    words: dict[str, str] = {}
    said: dict[tuple[str, int], str] = {}
    namespaces: dict[str, str] = {}
    for raw in objects:
        name = f"{raw.get('kind')} {(raw.get('metadata') or {}).get('name', '')}"
        try:
            if raw.get("kind") == SCALEUPS.kind:
                records.append(record := from_object(raw))
                namespaces[record.name] = _namespace(raw)
                words |= {unit.candidate: unit.about for unit in record.units if unit.about}
            elif raw.get("kind") == "Pod":
                _read_pod(decode(raw, Pod), words, said)
        except Invalid as error:
            problems.append(str(error.at(name)))
    records.sort(key=lambda record: (record.first_seen, record.name))
    return ScaleUpListing(records, now, problems, words, said, namespaces=namespaces)


def _read_pod(pod: Pod, words: dict[str, str], said: dict[tuple[str, int], str]) -> None:
    key, request, index = (pod.labels.get(label, "") for label in (CANDIDATE, REQUEST, INDEX))
    if not key or not request or not index.isdecimal():
        return
    words[key] = pod.annotations.get(f"{CANDIDATE}-constraints", key)
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.message and not pod.spec.node_name:
        said[request, int(index)] = scheduled.message


def age(now: float, since: float) -> str:
    return durations.show(float(max(0, round(now - since)))) if since else "-"


def document(listing: ScaleUpListing, record: ScaleUpRecord) -> Object:
    """A scale-up for machines; moments as the API writes them."""
    return {
        "name": record.name,
        "namespace": listing.namespaces.get(record.name, ""),
        "pool": record.key.pool,
        "model": record.key.model,
        "demand": str(record.key),
        "state": record.state.value,
        "reason": record.reason,
        "message": record.message,
        "stateSince": _moment(record.state_since),
        "firstSeen": _moment(record.first_seen),
        "nextAttemptAt": _moment(record.next_attempt),
        "waiting": record.waiting,
        "waitingPods": list(record.demand),
        "epoch": record.epoch,
        "round": record.round,
        "units": [_unit(listing, record, unit) for unit in record.units],
        "failures": {
            key: {
                "candidate": listing.words.get(key, ""),
                "last": tried.last.value,
                "lastAt": _moment(tried.last_at),
                "count": tried.count,
                "excluded": tried.excluded,
            }
            for key, tried in record.memory.items()
        },
        "badNodes": list(record.bad_nodes),
    }


def _unit(listing: ScaleUpListing, record: ScaleUpRecord, unit: ScaleUpUnit) -> Object:
    return {
        "index": unit.index,
        "gpus": unit.gpus,
        "stage": unit.stage.value,
        "since": _moment(unit.since),
        "candidate": listing.words.get(unit.candidate, unit.candidate),
        "claim": unit.claim,
        "node": unit.node,
        "held": list(unit.held),
        "ended": str(unit.ended or ""),
        "says": listing.said.get((record.name, unit.index), "") if unit.is_active else "",
    }


def _moment(at: float) -> str | None:
    return rfc3339(at) if at else None


def scale_ups_listing(listing: ScaleUpListing, records: Sequence[ScaleUpRecord]) -> Listing:
    waiting = sum(up_record.waiting for up_record in records)
    where = f" in {listing.cluster}" if listing.cluster else ""
    return Listing(
        "ScaleUpList",
        "scaleup",
        ("NAME", "POOL", "MODEL", "WAITING", "NODES", "STATE", "FOR", "AGE", "REASON"),
        [
            ListedItem(
                record.name,
                document(listing, record),
                (
                    record.name,
                    record.key.pool or "-",
                    record.key.model,
                    str(record.waiting),
                    f"{sum(bool(unit.node) for unit in record.active_units)}/{len(record.active_units)}",
                    record.state.value,
                    age(listing.now, record.state_since),
                    age(listing.now, record.first_seen),
                    record.reason or "-",
                ),
                [listing.namespaces.get(record.name, "") or NONE, record.message or NONE],
                namespace=listing.namespaces.get(record.name, ""),
            )
            for record in records
        ],
        ["NAMESPACE", "MESSAGE"],
        {"cluster": listing.cluster} if listing.cluster else {},
        [f"{pluralize(len(records), 'scale-up')}, {pluralize(waiting, 'worker')} waiting{where}"],
        f"no scale-ups{where}",
    )


@click.command("scale-ups", epilog="Example: karpool get scale-ups --pool shared -o json")
@click.option("--pool", help="Show only this GPU pool. Default: all.")
@click.option(
    "--state",
    type=click.Choice([state.value for state in ScaleUpState], case_sensitive=False),
    metavar="STATE",
    help="Show only this state, like Pending. Default: all.",
)
@with_options(NamespaceOptions, "places")
@with_options(ListingOptions, "listing")
@cluster_options
def scale_ups(
    cluster: ClusterOptions,
    pool: str | None,
    state: str | None,
    places: NamespaceOptions,
    listing: ListingOptions,
) -> None:
    """List nodes that were requested because workers found no GPU, the oldest first.

    NODES shows the number of nodes that have started and of requested nodes. See also `karpool explain
    scale-up NAME`.
    """
    problems: list[str] = []

    def look() -> Listing:
        listed = list_scale_ups(cluster, places.namespace)
        problems[:] = listed.problems
        chosen = [
            record
            for record in listed.records
            if pool in (None, record.key.pool) and state in (None, record.state.value)
        ]
        return scale_ups_listing(listed, chosen)

    show_listing(look, listing)
    for problem in problems:
        note(f"skipped: {problem}")
