"""`karpool estimator`: takes the place of karmada-scheduler-estimator, flags and all."""

from typing import Any

import click

from karpool.cli import logging
from karpool.cli.options.karmada import SPELLING, parameters, values
from karpool.cli.output.text import note
from karpool.estimator.process import Running, run
from karpool.estimator.serving.options import FLAGS, validate
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop


def _estimator(**given: Any) -> None:
    chosen = values(FLAGS, given)
    logging.configure(chosen["v"], as_json=chosen["logging-format"] == "json")
    if errors := validate(chosen):
        raise click.UsageError("\n".join(errors))

    def ready(running: Running) -> None:
        note(f"listening on port {running.grpc_port} for {', '.join(running.clusters)}")

    async def serve(stop: Stop) -> None:
        await run(chosen, stop, ready=ready)

    run_until_signalled(serve)


estimator = click.Command(
    "estimator",
    callback=_estimator,
    params=parameters(FLAGS),
    context_settings=SPELLING,
    help="""Answer Karmada's schedulers how many replicas fit into a member cluster.

    Speaks karmada-scheduler-estimator's protocol and takes its flags, so that it can take its place.
    Until every pod of the cluster is counted it answers UNAVAILABLE.
    """,
    epilog="Example: karpool estimator --cluster-name member1 --kubeconfig member1.yaml",
)
