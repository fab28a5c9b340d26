"""`karpool record`: follow a cluster into a file, for `karpool simulate --replay`."""

import asyncio
import math
import os
from functools import partial
from pathlib import Path
from typing import IO

import click

from karpool.cli.cluster_source import connect
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.options.cluster import ClusterOptions, connection_options
from karpool.cli.output.progress_line import ProgressLine, working
from karpool.cli.output.text import emit, note, pluralize
from karpool.kube.clock import Clock
from karpool.kube.snapshots.recording import (
    FORMAT,
    REQUIRED,
    VERSION,
    Recorder,
    RecordingHeader,
    header_line,
    is_recording,
    packed,
)
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.kubernetes.times import rfc3339

WRITE_SECONDS = 5.0  # what a kill may lose
LIST_SECONDS = 120.0  # by then every kind that can be read was read once
POLL_SECONDS = 0.1  # while kinds are listed
_MIB = 2**20


@click.command(epilog="Example: karpool record --context prod --out week.karpool.gz --for 168h")
@click.option(
    "-o",
    "--out",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write; only its owner can read it.",
)
@click.option(
    "--for", "length", default="", help="Duration of the recording, like 24h. Default: until Ctrl-C."
)
@click.option(
    "--max-size",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Stop recording when the file has this size in MiB.",
)
@click.option("--force", is_flag=True, help="Replace the file even if it is not a recording.")
@connection_options
def record(output: Path, length: str, max_size: int, force: bool, cluster: ClusterOptions) -> None:
    """Record the changes of a cluster: pods, nodes, claims, workloads.

    Only reads. Secrets are never read; environment values, commands and arguments are left out. Simulate the
    file under other policies with `karpool simulate --replay FILE`.
    """
    seconds = _seconds(length)
    if output.exists() and output.stat().st_size and not force and not is_recording(output):
        raise CommandFailed(f"{output}: exists and is not a recording; choose another path, or add --force")
    follow = partial(_follow, cluster=cluster, output=output, seconds=seconds, size_max=max_size * _MIB)
    emit(run_until_signalled(follow))


def _seconds(length: str) -> float | None:
    if not length:
        return None
    try:
        seconds = durations.seconds(length)
    except Invalid as error:
        raise click.UsageError(f"--for: {error}") from None
    if seconds <= 0:
        raise click.UsageError(f"--for: {length!r} must be longer than 0s")
    return seconds


async def _follow(
    stop: Stop, *, cluster: ClusterOptions, output: Path, seconds: float | None, size_max: int
) -> str:
    async with connect(cluster) as client:
        clock, began = client.clock, [0.0]
        recorder = Recorder(lambda: round(clock.monotonic() - began[0], 3) if began[0] else 0.0)
        informers = InformerSet(client, recorder.watches())
        following = asyncio.ensure_future(informers.run())
        try:
            with working(f"reading {client.name}"):
                if await _listed(clock, informers, stop):
                    raise KeyboardInterrupt
            with _opened(output) as file:
                header = RecordingHeader(
                    format=FORMAT,
                    version=VERSION,
                    started_at=rfc3339(clock.now()),
                    cluster=client.name,
                    context=cluster.context or "",
                )
                file.write(packed([header_line(header)]) + recorder.written())
                for trouble in informers.troubled():
                    note(f"without {trouble}")
                objects = recorder.changes
                note(f"{client.name}: {pluralize(objects, 'object')}; press Ctrl-C to stop")
                began[0] = clock.monotonic()
                with working(f"recording {client.name}") as line:
                    why = await _written(clock, recorder, file, stop, seconds, size_max, line)
                size = f"{file.tell() / 1024:.0f} KiB"
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        passed, changes = durations.show(round(clock.monotonic() - began[0])), recorder.changes - objects
        return f"{output}: {objects} objects, {pluralize(changes, 'change')} in {passed}, {size}{why}"


async def _listed(clock: Clock, informers: InformerSet, stop: Stop) -> bool:
    """Waits until every kind that can be read was read once; whether asked to stop before."""
    deadline = clock.monotonic() + LIST_SECONDS
    while (missing := informers.not_ready()) is not None:
        for informer in informers.informers:
            if informer.resource in REQUIRED and informer.last_error is not None:
                raise informer.last_error  # as every other command does, instead of trying for two minutes
        if clock.monotonic() > deadline:
            raise CommandFailed(f"{missing}; grant get, list and watch, and try again")
        if await stop.sleep(POLL_SECONDS):
            return True
    return False


async def _written(
    clock: Clock,
    recorder: Recorder,
    file: IO[bytes],
    stop: Stop,
    seconds: float | None,
    size_max: int,
    line: ProgressLine,
) -> str:
    """Until the time is over, the file is full or somebody ends it; says which, if it is worth a word."""
    end = clock.monotonic() + (math.inf if seconds is None else seconds)
    while True:
        asked = await stop.sleep(max(min(end - clock.monotonic(), WRITE_SECONDS), 0.0))
        file.write(recorder.written())
        file.flush()
        line.begins(f"recording: {recorder.changes:,} objects and changes, {file.tell() / 1024:,.0f} KiB")
        if file.tell() >= size_max:
            return f"; stopped, because the file reached --max-size {size_max // _MIB}"
        if asked or clock.monotonic() >= end:
            return ""


def _opened(path: Path) -> IO[bytes]:
    if path.exists() and not path.is_file():
        raise CommandFailed(f"{path}: is not a regular file; choose another path with --out")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(handle, 0o600)
        return os.fdopen(handle, "wb")
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}; choose another path with --out") from None
