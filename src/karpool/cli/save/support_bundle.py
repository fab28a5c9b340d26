"""`karpool support-bundle`: one file with what somebody else needs to understand a problem.

It holds a snapshot, the records that controllers keep (moves, scale-ups, leases), events where they run,
and their log lines, which are the decision log. Nothing is changed, Secrets are never read, and what cannot
be had is named in `about.json` with the reason. The file is private, and appears only when it is complete.
"""

import asyncio
import io
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from karpool import __version__
from karpool.cli.cluster_source import connect
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.options.cluster import ClusterOptions, connection_options
from karpool.cli.output.text import emit, note, pluralize
from karpool.consolidation.execution.options import STOP_NAMESPACE
from karpool.consolidation.execution.record import selection as moves_in
from karpool.gpu.records.scale_up_object import SCALEUPS
from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError, NotFound
from karpool.kube.replaced_file import replaced_file
from karpool.kube.snapshots.redaction import redact
from karpool.kube.snapshots.writer import ABSENT, take_snapshot
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    EVENTS,
    LEASES,
    PODS,
    ApiResource,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings

PART_OF_KARPOOL = "app.kubernetes.io/part-of=karpool"
LOG_BYTES = 4 * 1024 * 1024  # of one container
PODS_MAX = 40
FOLDER = "karpool-support/"  # of the archive
_SMART_PODS = SmartPodSettings().namespace


@dataclass
class SupportBundle:
    """Files by name, and what is missing, with the reason."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@click.command("support-bundle", epilog="Example: karpool support-bundle --context prod -o problem.tar.gz")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write; an older bundle is replaced only when the new one is complete.",
)
@click.option("--force", is_flag=True, help="Replace the file even if it is not a bundle.")
@click.option("--namespace", default=STOP_NAMESPACE, show_default=True, help="Namespace of the controllers.")
@click.option(
    "--logs/--no-logs", default=True, show_default=True, help="Include the log lines of the controllers."
)
@connection_options
def support_bundle(cluster: ClusterOptions, output: Path, force: bool, namespace: str, logs: bool) -> None:
    """Save a file for a bug report: snapshot, records, events and decision logs.

    Only reads. Secrets are never read and environment values are left out, but the file contains the names of
    your objects: check it before you share it.
    """
    if not force and not _may_be_replaced(output):
        raise CommandFailed(f"{output}: exists and is not a bundle; choose another path, or add --force")
    if output.exists() and not output.is_file():
        raise CommandFailed(f"{output}: is not a regular file; choose another path with -o")
    bundle = asyncio.run(_collect(cluster, namespace, logs))
    for name, reason in bundle.missing.items():
        if reason != ABSENT:
            note(f"without {name}: {reason}")
    if absent := [name for name, reason in bundle.missing.items() if reason == ABSENT]:
        note(f"{pluralize(len(absent), 'kind')} of objects that this cluster does not have: see about.json")
    write(bundle, output)
    emit(f"{output}: {pluralize(len(bundle.files), 'file')}, {output.stat().st_size / 1024:.0f} KiB")


async def _collect(cluster: ClusterOptions, namespace: str, logs: bool) -> SupportBundle:
    async with connect(cluster) as client:
        return await collect(client, namespace, context=cluster.context or "", logs=logs)


async def collect(client: Client, namespace: str, *, context: str = "", logs: bool = True) -> SupportBundle:
    """Raises KubeError when nothing at all can be read."""
    bundle = SupportBundle()
    about: dict[str, Any] = {
        "karpool": __version__,
        "kubernetes": await client.server_version(),
        "takenAt": rfc3339(client.clock.now()),
        "context": context,
        "namespace": namespace,
    }
    with tempfile.TemporaryDirectory(prefix="karpool-") as folder:
        path = Path(folder) / "snapshot"
        summary = await take_snapshot(client, path, context=context)
        bundle.files["snapshot.karpool.gz"] = path.read_bytes()
    about["objects"] = summary.counts
    bundle.missing |= {f"snapshot: {kind.resource}": kind.reason for kind in summary.skipped}
    lists: Sequence[tuple[str, ApiResource, ListOptions]] = (
        ("moves", CONFIGMAPS, moves_in(namespace)),
        ("scale-ups", SCALEUPS, ListOptions()),
        ("leases", LEASES, ListOptions(namespace)),
        ("leases-of-smart-pods", LEASES, ListOptions(_SMART_PODS)),
        ("events", EVENTS, ListOptions(namespace)),
        ("events-of-smart-pods", EVENTS, ListOptions(_SMART_PODS)),
    )
    for name, resource, chosen in lists:
        await _add_list(client, bundle, name, resource, chosen)
    if logs:
        await _add_logs(client, bundle, namespace)
    about["missing"] = bundle.missing
    bundle.files["about.json"] = _json(about)
    return bundle


async def _add_list(
    client: Client, bundle: SupportBundle, name: str, resource: ApiResource, chosen: ListOptions
) -> None:
    try:
        objects = (await client.list(resource, chosen)).items
    except NotFound:
        bundle.missing[name] = ABSENT
        return
    except KubeError as error:
        bundle.missing[name] = str(error)
        return
    bundle.files[f"{name}.json"] = _json([redact(obj) for obj in objects])


async def _add_logs(client: Client, bundle: SupportBundle, namespace: str) -> None:
    try:
        pods = (await client.list(PODS, ListOptions(namespace, PART_OF_KARPOOL))).items
    except KubeError as error:
        bundle.missing["logs"] = str(error)
        return
    if not pods:
        bundle.missing["logs"] = (
            f"no pod of Karpool runs in {namespace}; pass their namespace with --namespace"
        )
    if len(pods) > PODS_MAX:
        bundle.missing["logs of some pods"] = f"{len(pods)} pods, and the limit is {PODS_MAX}"
    for pod in pods[:PODS_MAX]:
        key = ObjectKey(namespace, pod["metadata"]["name"])
        statuses = pod.get("status", {}).get("containerStatuses") or ()
        restarted = any(status.get("restartCount") for status in statuses)
        for previous in (False, True) if restarted else (False,):
            await _add_log(client, bundle, key, previous=previous)


async def _add_log(client: Client, bundle: SupportBundle, pod: ObjectKey, *, previous: bool) -> None:
    name = f"logs/{pod.name}{'.previous' if previous else ''}.jsonl"
    query = [("limitBytes", str(LOG_BYTES)), ("tailLines", "20000"), ("previous", str(previous).lower())]
    try:
        answer = await client.rest.call("GET", PODS.item(pod.name, pod.namespace, "log"), query=query)
    except KubeError as error:
        bundle.missing[name] = str(error)
        return
    bundle.files[name] = answer.body[:LOG_BYTES]


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _may_be_replaced(path: Path) -> bool:
    """One that is not there, holds nothing, or that this command wrote."""
    if not path.is_file() or not path.stat().st_size:
        return True  # what is no file is refused when it is written, and not read before: a pipe has no end
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            first = archive.next()
            return first is not None and first.name.startswith(FOLDER)
    except (OSError, EOFError, tarfile.TarError):
        return False


def write(bundle: SupportBundle, path: Path) -> None:
    """There and complete, or not at all; only the owner may read it. Raises Failed."""
    try:
        with replaced_file(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for file_name, content in sorted(bundle.files.items()):
                info = tarfile.TarInfo(f"{FOLDER}{file_name}")
                info.size, info.mode = len(content), 0o600
                archive.addfile(info, io.BytesIO(content))
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}; choose another path with -o") from None
