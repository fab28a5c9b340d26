"""`karpool up`: an embedded cluster with something in it, in one command."""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import click

from karpool.cli.cluster_source import connect, load_cluster
from karpool.cli.options import ClusterOptions
from karpool.cli.output import note
from karpool.cli.serving import run_until_stopped
from karpool.cli.top import render
from karpool.fleet.apiserver.kinds.bundled import KARPENTER, bundled_crds
from karpool.fleet.apiserver.run import Running, run_apiserver
from karpool.fleet.example import example_fleet
from karpool.fleet.loading import load_objects
from karpool.model.catalogue_files import load_shipped

REGION = "us-east-1"


@click.command()
@click.option("--once", is_flag=True, help="End after showing the fleet, also in a terminal.")
@click.option(
    "--write-kubeconfig",
    "kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the kubeconfig. Default: a private folder that is removed at the end.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; 0 takes a free one."
)
def up(once: bool, kubeconfig: Path | None, port: int) -> None:
    """Start an embedded cluster, load an example fleet and show it.

    In a terminal it stays until Ctrl-C, for kubectl; without one, or with --once, it ends.
    """
    stays = not once and sys.stdin.isatty() and sys.stdout.isatty()
    if kubeconfig is not None:
        run_until_stopped(lambda stop: _show(stop, kubeconfig, port, stays=stays))
        return
    private = Path(tempfile.mkdtemp(prefix="karpool-"))
    try:
        run_until_stopped(lambda stop: _show(stop, private / "kubeconfig", port, stays=stays))
    finally:
        shutil.rmtree(private, ignore_errors=True)


async def _show(stop: asyncio.Event, kubeconfig: Path, port: int, *, stays: bool) -> None:
    started: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        served = asyncio.Event()
        group.create_task(
            run_apiserver(port=port, kubeconfig=kubeconfig, ready=started.set_result, stop=served)
        )
        try:
            running = await started
            note(f"an embedded Kubernetes API server listens on {running.url}")
            options = ClusterOptions(kubeconfig, None, None, None)
            loaded = await _load_example(options)
            note(f"loaded an example fleet: {loaded} objects\n")
            cluster = await load_cluster(options)
            click.echo(render(cluster, "nodes", "table"))
            _say_how_to_go_on(kubeconfig, stays=stays)
            if stays:
                await stop.wait()
        finally:
            served.set()


async def _load_example(options: ClusterOptions) -> int:
    """Write the example through the API, as anybody would; returns how many objects there are."""
    async with connect(options) as client:
        return await load_objects(client, [*bundled_crds(KARPENTER), *example_fleet(load_shipped(REGION))])


def _say_how_to_go_on(kubeconfig: Path, *, stays: bool) -> None:
    if stays:
        note(f"\nIn another terminal:\n  export KUBECONFIG={kubeconfig}")
        note("  kubectl get nodes -o wide\n  kubectl get pods -A\n  kubectl cordon general-3")
        note("  karpool top pools\nCtrl-C ends it.")
    else:
        note("\nRun `make up` (or `karpool up`) in a terminal and it stays, with a kubeconfig for kubectl.")
