"""What the controllers of one Karpenter share."""

from dataclasses import dataclass

from karpool.fleet.cloud import Cloud
from karpool.fleet.karpenter.announcing import Announcer
from karpool.fleet.karpenter.health import RegistrationHealth
from karpool.fleet.karpenter.machines import Machines
from karpool.fleet.karpenter.market import Market, Unavailable
from karpool.fleet.karpenter.settings import KarpenterSettings
from karpool.fleet.karpenter.view import View
from karpool.fleet.runtime import Context


@dataclass(frozen=True)
class Shared:
    context: Context
    settings: KarpenterSettings
    cloud: Cloud
    view: View
    market: Market
    machines: Machines
    health: RegistrationHealth
    say: Announcer


def shared(context: Context, cloud: Cloud, settings: KarpenterSettings) -> Shared:
    unavailable = Unavailable(context.clock, settings.unavailable_seconds)
    market = Market(cloud.catalogue, unavailable, settings.launch_types_max)
    return Shared(
        context,
        settings,
        cloud,
        View(context),
        market,
        Machines(context.cluster, cloud, market),
        RegistrationHealth(),
        Announcer(context),
    )
