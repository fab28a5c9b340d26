"""`karpool apiserver`."""

import asyncio
from pathlib import Path

import click

from karpool.cli.output.text import note
from karpool.manager.shutdown import run_until_signalled
from karpool_fleet.apiserver.serve.run import RunningServer, read_token, run_apiserver


@click.command(epilog="Example: karpool apiserver --write-kubeconfig kube.yaml --data-dir ./data")
@click.option(
    "--write-kubeconfig",
    "kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Write a kubeconfig for the server to this file.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: 0, a free port."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Store objects, certificates and token here; acknowledged writes survive a crash. "
    "Default: in memory.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the bearer token to require. Default: a new token.",
)
@click.option(
    "--insecure-http",
    is_flag=True,
    help="Serve without TLS. Does not work with kubectl, which sends no token over plain HTTP.",
)
def apiserver(
    kubeconfig: Path,
    host: str,
    port: int,
    data_dir: Path | None,
    token_file: Path | None,
    insecure_http: bool,
) -> None:
    """Run an embedded Kubernetes API server until Ctrl-C.

    It listens on loopback with TLS and a bearer token. The kubeconfig that it writes contains all of this.
    """

    token = read_token(token_file) if token_file else None

    def ready(running: RunningServer) -> None:
        note(f"listening on {running.url}")
        note(f"try: kubectl --kubeconfig {kubeconfig} get namespaces")

    async def serve(stop: asyncio.Event) -> None:
        await run_apiserver(
            host=host,
            port=port,
            kubeconfig=kubeconfig,
            data_dir=data_dir,
            token=token,
            tls=not insecure_http,
            ready=ready,
            stop=stop,
        )

    run_until_signalled(serve)
