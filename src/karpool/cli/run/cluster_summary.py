"""`karpool cluster-summary`: shows an unmodified karmada-scheduler what could be launched."""

from karpool.cli.options.parameters import controller_command
from karpool.scheduler.controller.options import ClusterSummaryOptions


def _cluster_summary(options: ClusterSummaryOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.scheduler.cluster_summary_process import CLUSTER_SUMMARY

    serve(CLUSTER_SUMMARY, options, ready=lambda writer: "keeping summaries", logs=options.logs)


cluster_summary = controller_command(
    ClusterSummaryOptions,
    _cluster_summary,
    help_text="""Show an unmodified karmada-scheduler what autoscalers could launch.

    karmada-scheduler gives a cluster no more than its status.resourceSummary, so a cluster without nodes
    receives no replicas. This controller writes to the summary what the cluster's Karpool estimator sees:
    existing nodes and nodes that could be launched. Start Karmada's controllers with
    --enable-cluster-resource-modeling=false, otherwise they overwrite the field every few seconds. Not
    needed with karpool scheduler.
    """,
    epilog="Example: karpool cluster-summary --kubeconfig karmada.yaml",
)
