"""The writer of cluster summaries as the manager runs it."""

from karpool.manager.controller import Controller, Environment, ManagerOptions, Place
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import CLUSTER_SUMMARY_NAME, ClusterSummaryOptions
from karpool.scheduler.process import check_estimators, estimator_clients, manager_options
from karpool.scheduler.summaries.summary_writer import ClusterSummaryWriter, SummarySettings, SummarySource


def _manages(options: ClusterSummaryOptions) -> ManagerOptions:
    return manager_options(options.connection, options.lease, options.probes, options.watch)


async def _build(
    environment: Environment, options: ClusterSummaryOptions, *, source: SummarySource | None = None
) -> ClusterSummaryWriter:
    estimators = None if source is not None else estimator_clients(options.estimators, environment.client)
    if (asked := source or estimators) is None:
        raise Invalid("--enable-scheduler-estimator", False, "must be true: cluster-summary needs estimators")
    settings = SummarySettings(options.interval_seconds, options.withdraw_after_seconds)
    return ClusterSummaryWriter(environment, asked, settings, estimators=estimators)


CLUSTER_SUMMARY = Controller[ClusterSummaryOptions](
    name="cluster-summary",
    place=Place.CONTROL_PLANE,
    component=lambda options: CLUSTER_SUMMARY_NAME,
    manages=_manages,
    build=_build,
    before_lease=lambda client, options: check_estimators(client, options.estimators),
)
