"""From flags to a running descheduler; probes, lease and shutdown as the scheduler's."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from karpool.kube.flags import InvalidOptions
from karpool.kube.leases import Leadership
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import DESCHEDULER_FLAGS, DESCHEDULER_NAME, defaults, validate
from karpool.scheduler.descheduler.descheduler import DescheduledReplicas, Descheduler, DeschedulerOptions
from karpool.scheduler.process import controlling, estimator_clients, leading


async def run(
    given: Mapping[str, Any],
    stop: asyncio.Event,
    *,
    ready: Callable[[], None] = lambda: None,
    taken: Callable[[DescheduledReplicas], None] | None = None,
) -> None:
    """Deschedule until `stop` is set. `taken` is for a dry run: nothing is written then.

    Raises WrongOptions, ConfigError, Invalid or OSError if it cannot start, LeadershipLost when the
    lease was lost.
    """
    chosen = defaults(DESCHEDULER_FLAGS) | dict(given)
    if errors := validate(DESCHEDULER_FLAGS, chosen):
        raise InvalidOptions("\n".join(errors))
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(controlling(chosen, DESCHEDULER_NAME))
        estimators = estimator_clients(chosen, control.client)
        if estimators is None:
            raise Invalid("--enable-scheduler-estimator", False, "the descheduler has nobody else to ask")
        stack.push_async_callback(estimators.close)

        async def led(leadership: Leadership | None) -> None:
            descheduler = Descheduler(
                control.client,
                estimators,
                descheduler_options(chosen),
                metrics=control.registry,
                check=leadership.check if leadership is not None else lambda: None,
                show=taken,
            )
            control.health.add("readyz", "informers", descheduler.not_ready)
            ready()
            await descheduler.run(stop)

        elected = chosen if taken is None else chosen | {"leader-elect": False}
        await leading(elected, control.client, stop, led)


def descheduler_options(chosen: Mapping[str, Any]) -> DeschedulerOptions:
    return DeschedulerOptions(
        schedulers=tuple(chosen["scheduler-names"]),
        interval_seconds=durations.seconds(chosen["descheduling-interval"]),
        threshold_seconds=durations.seconds(chosen["unschedulable-threshold"]),
        cool_down_seconds=durations.seconds(chosen["cool-down"]),
        workers=chosen["workers"],
    )
