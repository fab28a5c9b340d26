"""`karpool snapshot`."""

import asyncio
from pathlib import Path

import click

from karpool.cli.cluster_source import connect
from karpool.cli.options.cluster import ClusterOptions, connection_options
from karpool.cli.output.progress_line import working
from karpool.cli.output.text import emit, note
from karpool.kube.snapshots.writer import SnapshotSummary, take_snapshot


@click.command(epilog="Example: karpool snapshot --context prod -o prod.karpool.gz")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write; an older snapshot is replaced only when the new one is complete.",
)
@click.option("--force", is_flag=True, help="Replace the file even if it is not a snapshot.")
@connection_options
def snapshot(output: Path, force: bool, cluster: ClusterOptions) -> None:
    """Save the state of a cluster to a file, for commands with --snapshot.

    Only reads, in pages. Secrets are never read; environment values are left out.
    """
    summary = asyncio.run(_take(cluster, output, force))
    for skipped in summary.skipped:
        note(f"without {skipped.resource}: {skipped.reason}")
    emit(f"{output}: {summary.objects} objects, {output.stat().st_size / 1024:.0f} KiB")


async def _take(cluster: ClusterOptions, output: Path, force: bool) -> SnapshotSummary:
    async with connect(cluster) as client:
        with working(f"reading {client.name}") as line:

            def progress(resource: str, count: int) -> None:
                line.begins(f"reading {client.name}: {count:,} {resource}")

            return await take_snapshot(
                client, output, context=cluster.context or "", replace_any=force, progress=progress
            )
