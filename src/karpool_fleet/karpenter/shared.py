"""State that the controllers of one Karpenter share."""

from dataclasses import dataclass

from karpool_fleet.cloud.cloud import Cloud
from karpool_fleet.karpenter.lifecycle.health import RegistrationHealth
from karpool_fleet.karpenter.provisioning.machines import Machines
from karpool_fleet.karpenter.provisioning.market import LaunchMarket, UnavailableOfferings
from karpool_fleet.karpenter.reporting import KarpenterReporter
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.karpenter.view import KarpenterState
from karpool_fleet.runtime.supervisor import Context


@dataclass(frozen=True)
class Shared:
    context: Context
    settings: KarpenterSettings
    cloud: Cloud
    view: KarpenterState
    market: LaunchMarket
    machines: Machines
    health: RegistrationHealth
    say: KarpenterReporter


def shared(context: Context, cloud: Cloud, settings: KarpenterSettings) -> Shared:
    unavailable = UnavailableOfferings(context.clock, settings.unavailable_seconds)
    state = KarpenterState(context)
    market = LaunchMarket(cloud.catalogue, unavailable, settings.launch_types_max, state.overlays)
    return Shared(
        context,
        settings,
        cloud,
        state,
        market,
        Machines(context.cluster, cloud, market),
        RegistrationHealth(),
        KarpenterReporter(context),
    )
