"""`karpool estimator`: takes the place of karmada-scheduler-estimator, flags and all."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.estimator.serving.options import EstimatorOptions

if TYPE_CHECKING:
    from karpool.estimator.process import Running
    from karpool.manager.stop import Stop


def _estimator(options: EstimatorOptions) -> None:
    from karpool.cli import logging
    from karpool.cli.output.text import note
    from karpool.estimator.process import run
    from karpool.manager.shutdown import run_until_signalled

    logging.configure(options.logs.v, as_json=options.logs.logging_format == "json")

    def ready(running: "Running") -> None:
        note(f"listening on port {running.grpc_port} for {', '.join(running.clusters)}")

    async def serve(stop: "Stop") -> None:
        await run(options, stop, ready=ready)

    run_until_signalled(serve)


estimator = controller_command(
    EstimatorOptions,
    _estimator,
    help_text="""Answer Karmada's schedulers how many replicas fit into a member cluster.

    Speaks karmada-scheduler-estimator's protocol and takes its flags, so that it can take its place.
    Until every pod of the cluster is counted it answers UNAVAILABLE.
    """,
    epilog="Example: karpool estimator --cluster-name member1 --kubeconfig member1.yaml",
)
