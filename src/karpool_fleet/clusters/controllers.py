"""Karpool's controllers as components of embedded clusters, each one entry of a table.

They are the classes that run in production, given a client, its clock and nothing else.
Scheduler and descheduler run beside Karmada, the others in every member cluster. Options
are the flags of the commands. A component that is killed and started again is a new
process to everybody.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import Consolidator, consolidator_settings
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.estimator.serving import options as estimator_flags
from karpool.gpu.controller.controller import GpuScaler
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.kube.api.client import Client
from karpool.kube.flags import Flag
from karpool.manager.manager import Manager
from karpool.manager.options import InvalidOptions, Options, read_options
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import DESCHEDULER_FLAGS, SCHEDULER_FLAGS, defaults, validate
from karpool.scheduler.controller.running import Scheduler
from karpool.scheduler.descheduler.descheduler import Descheduler
from karpool.scheduler.descheduler_process import descheduler_options
from karpool.scheduler.process import scheduler_options
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.clusters.wiring import Flags, InProcessWiring, Team, Wiring, Work

T = TypeVar("T", bound=Options)
_Add = Callable[[Team, Flags], None]


@dataclass(frozen=True)
class _Controller:
    check: Callable[[Flags], None]  # raises Invalid with the flag as its path
    add: _Add


def check_controllers(chosen: Mapping[str, Flags]) -> None:
    """Raises Invalid with the path of the flag."""
    for name, flags in chosen.items():
        if name not in CONTROLLERS:
            raise Invalid(name, name, f"is not a controller; there are {', '.join(CONTROLLERS)}")
        try:
            CONTROLLERS[name].check(flags)
        except Invalid as error:
            raise error.at(name) from None


def add_controllers(fleet: EmbeddedFleet, chosen: Mapping[str, Flags], wiring: Wiring | None = None) -> Team:
    """Start them, in this process unless wired otherwise; `EmbeddedFleet(...,
    furnish=...)` is one place to call it.
    Raises Invalid."""
    check_controllers(chosen)
    team = Team(fleet, wiring or InProcessWiring())
    for name, controller in CONTROLLERS.items():
        if name in chosen:
            controller.add(team, chosen[name])
    return team


def embedded_options(options: type[T], flags: Flags) -> T:
    """Raises Invalid; with the flag as its path, if one is to blame."""
    try:
        return read_options(options, flags, embedded=True)
    except InvalidOptions as error:
        match error.errors:
            case (Invalid(path=path, value=value, reason=reason),):
                raise Invalid(path.removeprefix("--"), value, reason) from None
        raise Invalid("", dict(flags), "; ".join(map(str, error.errors))) from None


# Beside Karmada. None of them is stopped but by ending its task.


def _scheduler(team: Team, flags: Flags) -> None:
    karmada = _karmada(team.fleet)
    options = scheduler_options(defaults(SCHEDULER_FLAGS) | dict(flags))

    async def work(client: Client) -> None:
        asker = team.wiring.asker(client.clock)
        manager = Manager.of(client, lambda env: Scheduler(env, options, asker=asker), component=options.name)
        team.schedulers[karmada.name] = manager.runnable
        await manager.run()

    team.add(karmada, "scheduler", work)


def _descheduler(team: Team, flags: Flags) -> None:
    options = descheduler_options(defaults(DESCHEDULER_FLAGS) | dict(flags))

    async def work(client: Client) -> None:
        asker = team.wiring.asker(client.clock)
        await Manager.of(client, lambda env: Descheduler(env, asker, options), component=options.name).run()

    team.add(_karmada(team.fleet), "descheduler", work)


def _karmada(fleet: EmbeddedFleet) -> EmbeddedCluster:
    if fleet.karmada is None:
        raise Invalid("", "karmada", "the fleet has no Karmada; give it one with `karmada: {}`")
    return fleet.karmada


def _checks_flags(known: tuple[Flag, ...]) -> Callable[[Flags], None]:
    names = {flag.name for flag in known}

    def check(given: Flags) -> None:
        _refuse_unknown(given, names)
        if errors := validate(known, given):
            raise Invalid("", dict(given), "; ".join(errors))

    return check


# In every member


def _estimator(team: Team, flags: Flags) -> None:
    team.wiring.add_estimators(team, flags)


def _check_estimator(given: Flags) -> None:
    _refuse_unknown(given, {flag.name for flag in estimator_flags.FLAGS})
    chosen = estimator_flags.defaults() | {"cluster-name": "any", **given}
    if errors := estimator_flags.validate(chosen):
        raise Invalid("", dict(given), "; ".join(errors))


def _consolidator(team: Team, flags: Flags) -> None:
    options = consolidator_settings(embedded_options(ConsolidatorOptions, flags))

    def of(cluster: LiveCluster) -> Work:
        async def work(client: Client) -> None:
            market = Market(cluster.catalogue)
            manager = Manager.of(
                client, lambda environment: Consolidator(environment, options, market=market)
            )
            team.consolidators[cluster.name] = manager.runnable
            await manager.run()

        return work

    _in_each(team, "consolidator", of)


def _gpu_scaler(team: Team, flags: Flags) -> None:
    options = embedded_options(GpuScalerOptions, flags)

    def of(cluster: LiveCluster) -> Work:
        async def work(client: Client) -> None:
            market = Market(cluster.catalogue)
            await Manager.of(client, lambda environment: GpuScaler(environment, options, market=market)).run()

        return work

    _in_each(team, "gpu-scaler", of)


def _in_each(team: Team, name: str, work_of: Callable[[LiveCluster], Work]) -> None:
    for cluster in team.fleet.clusters.values():
        team.add(cluster.embedded, name, work_of(cluster))


def _refuse_unknown(given: Flags, names: set[str]) -> None:
    for name in given:
        if name not in names:
            raise Invalid(name, given[name], f"is not a flag; there are {', '.join(sorted(names))}")


def _check_consolidator(given: Flags) -> None:
    embedded_options(ConsolidatorOptions, given)


def _check_scaler(given: Flags) -> None:
    embedded_options(GpuScalerOptions, given)


CONTROLLERS: Mapping[str, _Controller] = {
    "estimator": _Controller(_check_estimator, _estimator),
    "scheduler": _Controller(_checks_flags(tuple(SCHEDULER_FLAGS)), _scheduler),
    "descheduler": _Controller(_checks_flags(tuple(DESCHEDULER_FLAGS)), _descheduler),
    "consolidator": _Controller(_check_consolidator, _consolidator),
    "gpu-scaler": _Controller(_check_scaler, _gpu_scaler),
}
