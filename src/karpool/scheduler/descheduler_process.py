"""The descheduler as the manager runs it."""

from collections.abc import Callable, Mapping
from typing import Any

from karpool.kube.flags import InvalidOptions
from karpool.manager.controller import Controller, Environment, ManagerOptions, Place
from karpool.manager.manager import run_process
from karpool.manager.stop import Stop
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import DESCHEDULER_FLAGS, DESCHEDULER_NAME, defaults, validate
from karpool.scheduler.descheduler.descheduler import (
    DescheduledReplicas,
    Descheduler,
    DeschedulerOptions,
    UnschedulableSource,
)
from karpool.scheduler.process import check_estimators, estimator_clients, manager_options


async def run(
    given: Mapping[str, Any],
    stop: Stop,
    *,
    ready: Callable[[], None] = lambda: None,
    taken: Callable[[DescheduledReplicas], None] | None = None,
) -> None:
    """Deschedule until `stop` is set. `taken` is for a dry run: nothing is written then. Raises as
    `run_process` does."""
    chosen = defaults(DESCHEDULER_FLAGS) | dict(given)
    controller = DESCHEDULER.given(show=taken)
    await run_process(
        controller, chosen, stop, ready=lambda descheduler: ready(), reads_only=taken is not None
    )


def _manages(chosen: Mapping[str, Any]) -> ManagerOptions:
    if errors := validate(DESCHEDULER_FLAGS, chosen):
        raise InvalidOptions("\n".join(errors))
    return manager_options(chosen)


async def _build(
    environment: Environment,
    chosen: Mapping[str, Any],
    *,
    asker: UnschedulableSource | None = None,
    show: Callable[[DescheduledReplicas], None] | None = None,
) -> Descheduler:
    estimators = None if asker is not None else estimator_clients(chosen, environment.client)
    source = asker or estimators
    if source is None:
        raise Invalid("--enable-scheduler-estimator", False, "the descheduler has nobody else to ask")
    return Descheduler(environment, source, descheduler_options(chosen), estimators=estimators, show=show)


DESCHEDULER = Controller[Mapping[str, Any]](
    name="descheduler",
    place=Place.CONTROL_PLANE,
    component=lambda chosen: DESCHEDULER_NAME,
    manages=_manages,
    build=_build,
    before_lease=check_estimators,
)


def descheduler_options(chosen: Mapping[str, Any]) -> DeschedulerOptions:
    return DeschedulerOptions(
        schedulers=tuple(chosen["scheduler-names"]),
        interval_seconds=durations.seconds(chosen["descheduling-interval"]),
        threshold_seconds=durations.seconds(chosen["unschedulable-threshold"]),
        cool_down_seconds=durations.seconds(chosen["cool-down"]),
        workers=chosen["workers"],
    )
