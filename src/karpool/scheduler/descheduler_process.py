"""The descheduler as the manager runs it."""

from collections.abc import Callable

from karpool.manager.controller import Controller, Environment, ManagerOptions, Place
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import DESCHEDULER_NAME, DeschedulerOptions
from karpool.scheduler.descheduler.descheduler import (
    DescheduledReplicas,
    Descheduler,
    DeschedulerSettings,
    UnschedulableSource,
)
from karpool.scheduler.process import check_estimators, estimator_clients, manager_options


def _manages(options: DeschedulerOptions) -> ManagerOptions:
    return manager_options(options.connection, options.lease, options.probes, options.watch)


async def _build(
    environment: Environment,
    options: DeschedulerOptions,
    *,
    asker: UnschedulableSource | None = None,
    show: Callable[[DescheduledReplicas], None] | None = None,
) -> Descheduler:
    estimators = None if asker is not None else estimator_clients(options.estimators, environment.client)
    source = asker or estimators
    if source is None:
        raise Invalid("--enable-scheduler-estimator", False, "must be true: the descheduler needs estimators")
    return Descheduler(environment, source, descheduler_settings(options), estimators=estimators, show=show)


DESCHEDULER = Controller[DeschedulerOptions](
    name="descheduler",
    place=Place.CONTROL_PLANE,
    component=lambda options: DESCHEDULER_NAME,
    manages=_manages,
    build=_build,
    before_lease=lambda client, options: check_estimators(client, options.estimators),
)


def descheduler_settings(options: DeschedulerOptions) -> DeschedulerSettings:
    return DeschedulerSettings(
        schedulers=options.scheduler_names,
        interval_seconds=options.interval_seconds,
        threshold_seconds=options.unschedulable_threshold_seconds,
        cool_down_seconds=options.cool_down_seconds,
        workers=options.workers,
    )
