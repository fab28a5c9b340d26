"""`karpool estimator`: takes the place of karmada-scheduler-estimator, flags and all."""

from typing import TYPE_CHECKING

from karpool.cli.options.parameters import controller_command
from karpool.estimator.serving.options import EstimatorOptions

if TYPE_CHECKING:
    from karpool.estimator.process import FleetEstimator


def _estimator(options: EstimatorOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.estimator.process import ESTIMATOR

    def ready(estimators: "FleetEstimator") -> str:
        assert estimators.server is not None, "prepared"
        return f"listening on port {estimators.server.port} for {', '.join(estimators.members)}"

    serve(ESTIMATOR, options, ready=ready, logs=options.logs)


estimator = controller_command(
    EstimatorOptions,
    _estimator,
    help_text="""Tell Karmada's schedulers how many replicas fit into a member cluster.

    Replaces karmada-scheduler-estimator, with the same protocol and flags. Answers UNAVAILABLE until every
    pod of the cluster is counted.
    """,
    epilog="Example: karpool estimator --cluster-name member1 --kubeconfig member1.yaml",
)
