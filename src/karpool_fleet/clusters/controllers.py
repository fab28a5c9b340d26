"""Karpool's controllers as components of embedded clusters, from the same declarations as in production.

Scheduler and descheduler run next to Karmada, the others in every member cluster. Options are the flags of
the commands. A component that is killed and restarted is a new process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.consolidation.process import CONSOLIDATOR
from karpool.estimator.process import ESTIMATOR
from karpool.estimator.serving.options import EstimatorOptions
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.gpu.process import GPU_SCALER
from karpool.kube.api.client import Client
from karpool.manager.controller import Controller, Place
from karpool.manager.options import InvalidOptions, Options, read_options
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.errors import Invalid
from karpool.scheduler.controller.options import DeschedulerOptions, SchedulerOptions
from karpool.scheduler.descheduler_process import DESCHEDULER
from karpool.scheduler.process import SCHEDULER
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.clusters.wiring import Flags, InProcessWiring, Team, Wiring

T = TypeVar("T", bound=Options)


@dataclass(frozen=True)
class EmbeddedController:
    declared: Controller[Any]
    read: Callable[[Flags], Any]  # parses the options; raises Invalid with the flag as its path


def check_controllers(chosen: Mapping[str, Flags]) -> None:
    """Check the flags. Raises Invalid with the path of the flag."""
    for name, flags in chosen.items():
        if name not in CONTROLLERS:
            raise Invalid(name, name, f"is not a controller; there are {', '.join(CONTROLLERS)}")
        try:
            CONTROLLERS[name].read(flags)
        except Invalid as error:
            raise error.at(name) from None


def add_controllers(
    fleet: EmbeddedFleet,
    chosen: Mapping[str, Flags],
    wiring: Wiring | None = None,
    contract: SharedContract | None = None,
) -> Team:
    """Start the controllers, in this process unless `wiring` says otherwise.

    It can be called from `EmbeddedFleet(..., furnish=...)`. Raises Invalid.
    """
    check_controllers(chosen)
    team = Team(fleet, wiring or InProcessWiring())
    for name, controller in CONTROLLERS.items():
        if name in chosen:
            _add(team, controller, chosen[name], contract)
    return team


def _add(team: Team, controller: EmbeddedController, flags: Flags, contract: SharedContract | None) -> None:
    """Add a controller to its clusters; it runs until its task ends."""
    match controller.declared.place:
        case Place.MANY:
            team.wiring.add_estimators(team, flags)
        case Place.CONTROL_PLANE:
            asking = lambda client: {"asker": team.wiring.asker(client.clock)}  # noqa: E731
            team.manage(_karmada(team.fleet), controller.declared, controller.read(flags), asking)
        case Place.EACH_CLUSTER:
            for cluster in team.fleet.clusters.values():
                selling = partial(_with_market, team.fleet, cluster, contract, controller.declared)
                team.manage(cluster.embedded, controller.declared, controller.read(flags), selling)


def _with_market(
    fleet: EmbeddedFleet,
    cluster: LiveCluster,
    contract: SharedContract | None,
    declared: Controller[Any],
    client: Client,
) -> dict[str, Any]:
    """Return market and contract of a cluster; consolidators that share a contract inform each other."""
    if contract is None:
        return {"market": Market(cluster.catalogue)}
    if not contract.contract.shared_by or declared is not CONSOLIDATOR:
        return {"market": Market(cluster.catalogue, contract=contract.member(cluster.name))}
    place = fleet.karmada or next(iter(fleet.clusters.values())).embedded
    return {
        "market": Market(cluster.catalogue, contract=contract.apart(cluster.name)),
        "contract_cluster": cluster.name,
        "contract_place": place.client(f"contract of {cluster.name}"),
    }


def _karmada(fleet: EmbeddedFleet) -> EmbeddedCluster:
    if fleet.karmada is None:
        raise Invalid("", "karmada", "the fleet has no Karmada; give it one with `karmada: {}`")
    return fleet.karmada


def embedded_options(options: type[T], flags: Flags) -> T:
    """Parse the options. Raises Invalid, with the flag as its path if one flag is wrong."""
    try:
        return read_options(options, flags, embedded=True)
    except InvalidOptions as error:
        match error.errors:
            case (Invalid(path=path, value=value, reason=reason),):
                raise Invalid(path.removeprefix("--"), value, reason) from None
        raise Invalid("", dict(flags), "; ".join(map(str, error.errors))) from None


# Options


def _estimator_options(flags: Flags) -> EstimatorOptions:
    """Parse the options with a placeholder name: each estimator gets its name when it starts."""
    return embedded_options(EstimatorOptions, {"cluster-name": "any", **flags})


def _gpu_scaler_options(flags: Flags) -> GpuScalerOptions:
    """Accept unenforced shares: embedded kubelets run no containers, so nothing enforces a share."""
    return embedded_options(GpuScalerOptions, {"accept-unenforced-shares": True, **flags})


CONTROLLERS: Mapping[str, EmbeddedController] = {
    "estimator": EmbeddedController(ESTIMATOR, _estimator_options),
    "scheduler": EmbeddedController(SCHEDULER, partial(embedded_options, SchedulerOptions)),
    "descheduler": EmbeddedController(DESCHEDULER, partial(embedded_options, DeschedulerOptions)),
    "consolidator": EmbeddedController(CONSOLIDATOR, partial(embedded_options, ConsolidatorOptions)),
    "gpu-scaler": EmbeddedController(GPU_SCALER, _gpu_scaler_options),
}
